"""Memory and time of a round by the number of clients, summed and gathered.

  python -m benchmarks.scale [--clients=8,64,512] [--devices=2] [--rounds=3]

Clients of 32 random images take two steps of batch 16 with a convnet of about
1 MB (FedPav). Every cell has its own process and prints

- MB a device: the compiler's count of the larger of both programs of a round,
  temporary memory and results, and arguments of the aggregation. Images and
  states of clients, which are the arguments of the training, do not count;
- MB of the process: its largest memory during the rounds over that before
  them, when the programs are compiled and the images are on the devices;
- ms a client: the median time of a round over the number of clients.
"""

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import cells, made_up, show

_CLIENTS = flags.DEFINE_list('clients', ['8', '64', '512'], 'Clients a round.')
_DEVICES = flags.DEFINE_integer('devices', 2, 'Number of simulated devices.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Measured rounds of a cell.')
_CELL = flags.DEFINE_string('cell', '', 'Internal: the cell to measure.')

MODES = {
  'gathered (FedATT)': (('fedpav', 'fedatt'), True),
  'summed, float32': (('fedpav',), False),
  'summed, fixed point': (('fedpav',), True),
}
SHAPE, IMAGES, IDENTITIES = (32, 32, 3), 32, 8
MB = 1e6


def rounds(
  num: int, components: tuple[str, ...], exact: bool
) -> made_up.Rounds:
  """Returns the rounds of `num` clients."""
  from fedreid_jax.config import schema

  config = schema.default()
  config.model.name, config.model.features = 'convnet', (32, 64, 128, 128)
  config.local.batch, config.local.steps = 16, 2
  config.components = components
  config.execution.stack_budget_mb = 1e6
  config.execution.deterministic = exact
  clients = made_up.clients(num, IMAGES, SHAPE, IDENTITIES)
  return made_up.rounds(config, clients)


def status(field: str) -> float:
  """Returns a field of /proc/self/status in MB."""
  for line in Path('/proc/self/status').read_text().splitlines():
    if line.startswith(f'{field}:'):
      return int(line.split()[1]) * 1024 / MB
  raise ValueError(field)


def device_bytes(programs: dict[str, Any]) -> int:
  """Returns the bytes on a device that the uploads of a round need."""
  found = []
  for name, program in programs.items():
    memory = program.lower().compile().memory_analysis()
    size = memory.temp_size_in_bytes + memory.output_size_in_bytes
    size -= memory.alias_size_in_bytes
    if name == 'aggregation':
      size += memory.argument_size_in_bytes
    found.append(size)
  return max(found)


def measure(num: int, mode: str) -> dict[str, float]:
  """Returns the numbers of one cell."""
  import jax

  from fedreid_jax.round import ahead

  with tempfile.TemporaryDirectory() as folder:
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    executor, _, variables, _ = rounds(num, *MODES[mode])
    server, states = executor.init(variables)
    size = device_bytes(ahead.programs(executor, server, states))
    run = made_up.Timed(executor, server, states)
    before = status('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')  # resets the peak, VmHWM
    seconds = [run()[1] for _ in range(1 + _ROUNDS.value)]
    return {
      'device': size / MB,
      'process': status('VmHWM') - before,
      'ms': 1000 * float(np.median(seconds[1:])) / num,
    }


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  if _CELL.value:
    num, mode = _CELL.value.split(':')
    print(json.dumps(measure(int(num), mode)))
    return
  rows = []
  for num, mode in itertools.product(_CLIENTS.value, MODES):
    found = cells.measure(
      'benchmarks.scale', f'{num}:{mode}', _DEVICES.value, cells.given()
    )
    if 'error' in found:
      rows.append((f'{num} {mode}', found['error'][:40]))
      continue
    numbers = f'{found["device"]:.1f}', f'{found["process"]:+.0f}'
    rows.append((f'{num} {mode}', *numbers, f'{found["ms"]:.1f}'))
  columns = 'clients', 'MB a device', 'MB of the process', 'ms a client'
  show.rows(f'A round on {_DEVICES.value} devices', columns, rows)


if __name__ == '__main__':
  app.run(main)
