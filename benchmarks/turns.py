"""Contenders that run in turn, each in its own process."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

# Page faults otherwise take a fifth of the time of PyTorch.
MALLOC = {
  'MALLOC_MMAP_THRESHOLD_': '1073741824',
  'MALLOC_TRIM_THRESHOLD_': '1073741824',
}


def serve(run: Callable[[], str]) -> None:
  """Runs once and prints a line for every line read, until the input ends."""
  for _ in sys.stdin:
    print(run(), flush=True)


def compete(
  module: str,
  contenders: Mapping[str, Mapping[str, str]],
  rounds: int,
  warm_up: int,
  flags: Sequence[str] = (),
) -> dict[str, list[str]]:
  """Returns the lines each contender printed after warming up.

  Args:
    module: `python -m MODULE --worker=NAME` is a contender that `serve`s.
    contenders: additional environment variables of each, by name.
    rounds: counted turns of each.
    warm_up: turns before them.
    flags: additional flags of all contenders.
  """
  processes = {
    name: subprocess.Popen(
      [sys.executable, '-m', module, f'--worker={name}', *flags],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=os.environ | dict(extra),
    )
    for name, extra in contenders.items()
  }
  lines: dict[str, list[str]] = {name: [] for name in contenders}
  for number in range(warm_up + rounds):
    for name, process in processes.items():
      assert process.stdin and process.stdout
      process.stdin.write('go\n')
      process.stdin.flush()
      line = process.stdout.readline()
      if number >= warm_up:
        lines[name].append(line)
  for process in processes.values():
    process.communicate()
  return lines
