"""Cost of a method compared with FedPav: seconds and memory of a round.

  python -m benchmarks.overhead [--rounds=10]
    [--recipes='fedpav;fedprox;moon:moon.mu=5.0'] [--arg='synthetic,seed=1']

Every recipe has its own process and runs one round at a time in turn, so that
the rounds of all recipes interleave. Memory is the peak of the process,
including images and compiler. If a method passes over all images for statistics
after training, this pass is part of a round and also shown separately.
"""

import os
import resource
import time

import numpy as np
from absl import app, flags

from benchmarks import show, turns
from fedreid_jax.data import cache

FAMILY = (
  'fedpav',
  'fedavg',
  'fedprox',
  'fednova',
  'moon',
  'fedatt',
  'scaffold',
  'fedopt',
  'fedpav_cdw',
  'fedpav_kd',
  'fedpav_kd_cdw',
  'fedpav_cc',
  'fedpav_cc_cdw',
)
_RECIPES = flags.DEFINE_string(
  'recipes',
  ';'.join(FAMILY),
  'NAME[:key=value,...] of each, the first is the base.',
)
_ARG = flags.DEFINE_string(
  'arg', 'synthetic,data.public=park', 'Preset and changes of every recipe.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Measured rounds per recipe.')
_WORKER = flags.DEFINE_string('worker', '', 'Internal: recipe and arg.')

WARM_UP = 3


def worker(name: str, arg: str) -> None:
  """Runs rounds of one recipe on request."""
  import jax

  from fedreid_jax.config import recipes, validation
  from fedreid_jax.training import build

  name, _, own = name.partition(':')
  arg = f'{arg},{own}' if own else arg
  setup = build.build(validation.validate(recipes.recipe(name, arg)))
  executor = setup.rounds
  server, states = executor.init(setup.variables, setup.pretrained)
  server, _ = executor.prepare(server, states)
  number = 0

  def once() -> str:
    nonlocal server, number
    start = time.perf_counter()
    server, log = executor.round(server, states, number)
    jax.block_until_ready(server)
    seconds = time.perf_counter() - start
    number += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    sent = sum(log['up'].values()) + sum(log['down'].values())
    start = time.perf_counter()
    server, _ = executor.prepare(server, states)
    jax.block_until_ready(server)
    survey = time.perf_counter() - start
    return f'{seconds} {peak} {sent / 1e6} {survey}'

  turns.serve(once)


def main(argv: list[str]) -> None:
  """Prints seconds, memory and traffic of a round of each recipe."""
  del argv
  if _WORKER.value:
    name, _, arg = _WORKER.value.partition('|')
    worker(name, arg)
    return
  shared = {
    # Same value as in the launchers.
    'JAX_NUM_CPU_DEVICES': str(os.cpu_count()),
    'JAX_COMPILATION_CACHE_DIR': str(cache.cache_dir() / 'xla'),
  }
  contenders = {
    f'{name}|{_ARG.value}': shared for name in _RECIPES.value.split(';')
  }
  lines = turns.compete(
    'benchmarks.overhead', contenders, _ROUNDS.value, WARM_UP
  )
  found = {
    name.partition('|')[0]: np.asarray([line.split() for line in rows], float)
    for name, rows in lines.items()
  }
  base = next(iter(found.values()))
  columns = 'recipe', 's, median', 'over the base', 'MiB', 'MB sent', 'pass, s'
  shown = [
    (
      name,
      f'{np.median(rows[:, 0]):.3f}',
      f'{100 * (np.median(rows[:, 0] / base[:, 0]) - 1):+.1f} %',
      f'{rows[-1, 1]:.0f} ({rows[-1, 1] - base[-1, 1]:+.0f})',
      f'{rows[-1, 2]:.1f}',
      f'{np.median(rows[:, 3]):.3f}',
    )
    for name, rows in found.items()
  ]
  show.rows(f'a round, {_ARG.value}, {_ROUNDS.value} each', columns, shown)


if __name__ == '__main__':
  app.run(main)
