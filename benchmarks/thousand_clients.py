"""Rounds of 64 of 1,000 clients: this engine, pfl and Flower's simulation.

  pip install torch==2.13.0 'pfl[pytorch]' 'flwr[simulation]'
  python -m benchmarks.thousand_clients [--rounds=10] [--seed=0]

Every contender has its own process and runs one round at a time in turn. All
train one epoch of SGD with batches of 16 on the same images with the same small
network, and average it by number of images (FedAvg). The number of images of a
client is log-normal with a median of 100, at most 400. The table has the loss
of the last round, the seconds until the first round is done (imports, data and
compilation included), those of a later round, and the peak memory of all
processes of a contender. A contender that is not installed is left out.

Compare losses before times. `--seed` sets initial weights, cohorts and order of
batches. pfl and Flower draw the same weights from a seed, and this engine
others with other cohorts, so that its loss agrees with theirs over several
seeds only.
"""

import importlib.util
import json
import os
from collections.abc import Iterator

import numpy as np
from absl import app, flags

from benchmarks import show, small_work, turns

_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Measured rounds.')
_CLIENTS = flags.DEFINE_integer('clients', 1000, 'Number of clients.')
_COHORT = flags.DEFINE_integer('cohort', 64, 'Number of clients in a round.')
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of weights and cohorts.', 0)
_WORKER = flags.DEFINE_string('worker', '', 'Internal: the contender.')

NEEDS = {'fedreid_jax': 'jax', 'pfl': 'pfl', 'Flower': 'ray'}


def engine() -> Iterator[float]:
  """Yields the mean loss of each round of this engine."""
  import jax

  import fedreid_jax as fr
  from fedreid_jax.algorithms import fedavg
  from fedreid_jax.models import convnet, reid
  from fedreid_jax.round import placement

  simulation = fr.Simulation(
    lambda identities: reid.ReIDNet(
      convnet.ConvNet(small_work.CHANNELS), identities
    ),
    [fedavg.make()],
    [
      fr.client_data(
        f'{k:05d}', pixels, labels, num_identities=small_work.IDENTITIES
      )
      for k, (pixels, labels) in enumerate(small_work.clients(_CLIENTS.value))
    ],
    fields={
      'seed': _SEED.value,
      'local.batch': small_work.BATCH,
      'local.epochs': 1,
      'fraction': _COHORT.value / _CLIENTS.value,
      'optim.lr': small_work.RATE,
      'optim.momentum': 0.0,
      'optim.nesterov': False,
      'optim.weight_decay': 0.0,
      'augment.pad': 0,
      'augment.flip': 0.0,
    },
    mesh=placement.make_mesh(os.cpu_count()),
    mean=(0.5,),
    std=(0.25,),
  )
  state = simulation.init(jax.random.key(_SEED.value))
  while True:
    state, log = simulation.round(state)
    jax.block_until_ready(state.server)
    yield log['metrics']['loss']


def _work(name: str) -> None:
  """Runs the rounds of a contender."""
  turn = small_work.Turn()
  if name == 'fedreid_jax':
    for loss in engine():
      turn.done(loss)
  elif name == 'pfl':
    from benchmarks import pfl_rounds

    pfl_rounds.run(turn, _CLIENTS.value, _COHORT.value, _SEED.value)
  else:
    from benchmarks import flower_rounds

    flower_rounds.run(turn, _CLIENTS.value, _COHORT.value, _SEED.value)


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  if _WORKER.value:
    _work(_WORKER.value)
    return
  contenders = {
    name: {'JAX_NUM_CPU_DEVICES': str(os.cpu_count())}
    for name, package in NEEDS.items()
    if importlib.util.find_spec(package)
  }
  found = turns.compete(
    'benchmarks.thousand_clients',
    contenders,
    1 + _ROUNDS.value,
    0,
    [
      f'--clients={_CLIENTS.value}',
      f'--cohort={_COHORT.value}',
      f'--seed={_SEED.value}',
    ],
  )
  rows = []
  for name, lines in found.items():
    first, *rounds = map(json.loads, lines)
    seconds = [each['seconds'] for each in rounds]
    rows.append(
      (
        name,
        f'{rounds[-1]["loss"]:.3f}',
        f'{first["seconds"]:.1f}',
        f'{np.median(seconds):.2f}',
        f'{1e3 * np.median(seconds) / _COHORT.value:.1f}',
        f'{max(each["memory"] for each in rounds):.0f}',
      )
    )
  show.rows(
    f'{_COHORT.value} of {_CLIENTS.value} clients',
    ('program', 'loss', 's to round 1', 's a round', 'ms a client', 'MiB'),
    rows,
  )


if __name__ == '__main__':
  app.run(main)
