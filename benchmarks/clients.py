"""A round, its memory and its checkpoint by numbers of clients and cohorts.

  python -m benchmarks.clients [--clients=10,100,1000] [--cohorts=8,64,512]

Clients have 16 grey images of 16x16 pixels and take one step with a small
network (FedPav: every client keeps its classifier). Images are not resident
(`execution.image_budget_mb`), uploads are added as clients end and states of
clients are in files. Every cell has its own process. `ms a client` is the time
of a round over K, and `bare` the time of the same steps in one compiled loop on
one device, without clients. `device` is the compiler's count of the memory on a
device that the largest program of a round needs. `host` is the peak of the
process, `save` the time of a checkpoint after the measured rounds.
"""

import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import cells, made_up, show, step

_CLIENTS = flags.DEFINE_list('clients', ['10', '100', '1000', '10000'], 'N.')
_COHORTS = flags.DEFINE_list('cohorts', ['8', '64', '512'], 'K.')
_DEVICES = flags.DEFINE_integer('devices', 2, 'Number of simulated devices.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Measured rounds of a cell.')
_BUDGET = flags.DEFINE_float('budget_mb', 0.5, 'Limit of images on a device.')
_CELL = flags.DEFINE_string('cell', '', 'Internal: `N,K`.')

SHAPE, IMAGES, IDENTITIES = (16, 16, 1), 16, 8
STEPS = 200  # of the loop without clients


def build(count: int, cohort: int) -> made_up.Rounds:
  """Returns the rounds of some clients."""
  from fedreid_jax.config import schema

  config = schema.default()
  config.model.name, config.model.features = 'convnet', (8, 16)
  config.local.batch, config.local.steps = IMAGES, 1
  config.data.mean = config.data.std = (0.5,)
  config.data.channels = 'grey'
  config.fraction = cohort / count
  config.execution.store = 'disk'
  config.execution.image_budget_mb = _BUDGET.value
  clients = made_up.clients(count, IMAGES, SHAPE, IDENTITIES)
  return made_up.rounds(config, clients)


def bare(model: Any) -> float:
  """Returns the seconds of one step in a loop over many of them."""
  run = step.loop_of(model, (STEPS, IMAGES, *SHAPE), IDENTITIES)
  seconds = []
  for _ in range(4):
    start = time.perf_counter()
    run()
    seconds.append((time.perf_counter() - start) / STEPS)
  return min(seconds)


def measure(count: int, cohort: int, folder: Path) -> dict[str, float]:
  """Returns the figures of one cell."""
  from fedreid_jax.round import ahead
  from fedreid_jax.training.files import checkpoint, client_states

  executor, model, variables, names = build(count, cohort)
  server, store = executor.init(variables)
  saved = checkpoint.Checkpoints(folder)
  states = client_states.ClientStates(store, saved, names, 'disk')
  states.restore(None, server)
  costs = ahead.forecast(executor, server, store)
  run = made_up.Timed(executor, server, store)
  seconds = [run()[1] for _ in range(1 + _ROUNDS.value)]
  start = time.perf_counter()
  states.save(run.number, run.server, {'clients': names}, None)
  save = time.perf_counter() - start
  size = sum(x.stat().st_size for x in folder.rglob('*') if x.is_file())
  return {
    'round': float(np.median(seconds[1:])),
    'bare': bare(model),
    'device': max(map(sum, costs.memory.values())) / 1e6,
    'host': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    'save': save,
    'size': size / 1e6,
  }


def _row(count: str, cohort: str) -> list[str]:
  """Returns the line of one cell, measured in its own process."""
  cell = cells.measure(
    'benchmarks.clients', f'{count},{cohort}', _DEVICES.value, cells.given()
  )
  if 'error' in cell:
    return [count, cohort, cell['error'][:50], *5 * ['']]
  return [
    f'{int(count):,}',
    cohort,
    f'{cell["round"]:.3f}',
    f'{1e3 * cell["round"] / int(cohort):.2f}',
    f'{1e3 * cell["bare"]:.2f}',
    f'{cell["device"]:.2f}',
    f'{cell["host"]:.0f}',
    f'{cell["save"]:.2f} ({cell["size"]:.1f})',
  ]


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  if _CELL.value:
    count, cohort = map(int, _CELL.value.split(','))
    with tempfile.TemporaryDirectory() as folder:
      print(json.dumps(measure(count, cohort, Path(folder))))
    return
  columns = ('N', 'K', 's a round', 'ms a client', 'bare', 'device MB')
  show.rows(
    f'{_DEVICES.value} devices, budget {_BUDGET.value:g} MB',
    (*columns, 'host MB', 's a save (MB)'),
    [
      _row(count, cohort)
      for count in _CLIENTS.value
      for cohort in _COHORTS.value
      if int(cohort) <= int(count)
    ],
  )


if __name__ == '__main__':
  app.run(main)
