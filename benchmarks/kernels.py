"""The kernels of a profile that take most time."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any


def longest(folder: Path, num: int) -> list[dict[str, Any]]:
  """Returns the kernels that take most time in a profile of JAX.

  Args:
    folder: folder of `jax.profiler.trace`.
    num: number of kernels.

  Returns:
    `name`, `share` of the time of all kernels, and `calls`, longest first. The
    events of devices are used, or those of XLA's threads on a CPU.
  """
  events: list[dict[str, Any]] = []
  for path in folder.rglob('*.trace.json.gz'):
    events += json.loads(gzip.decompress(path.read_bytes()))['traceEvents']
  named = {
    (e['pid'], e.get('tid')): e['args']['name']
    for e in events
    if e.get('ph') == 'M' and e['name'] in ('process_name', 'thread_name')
  }
  devices = {
    pid for (pid, _), name in named.items() if name.startswith('/device:')
  }

  def is_kernel(event: dict[str, Any]) -> bool:
    if event.get('ph') != 'X':
      return False
    thread = named.get((event['pid'], event['tid']), '')
    if devices:
      return event['pid'] in devices and thread.startswith('Stream')
    # A loop contains the events of its body.
    loop = event['name'].startswith(('while', 'call', 'conditional'))
    return 'hlo_op' in event.get('args', {}) and not loop

  seconds: Counter[str] = Counter()
  calls: Counter[str] = Counter()
  for event in filter(is_kernel, events):
    seconds[event['name']] += event['dur']
    calls[event['name']] += 1
  total = sum(seconds.values())
  return [
    {'name': name, 'share': time / total, 'calls': calls[name]}
    for name, time in seconds.most_common(num)
  ]
