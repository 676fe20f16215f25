"""One FedPav round of this engine and of a plain PyTorch loop, in turn.

  python -m benchmarks.round [--rounds=15]

There are four clients with the sizes of Omniglot's alphabets, 32x32 grey
images, batches of 32 and the four-block network; augmentation and averaging are
included. Every contender has its own process and runs one round at a time in
turn, so that the rounds of all contenders interleave. PyTorch is skipped if it
is not installed.
"""

import importlib.util
import os

import numpy as np
from absl import app, flags

from benchmarks import made_up, show, turns

_ROUNDS = flags.DEFINE_integer('rounds', 15, 'Measured rounds per contender.')
_WORKER = flags.DEFINE_string('worker', '', 'Internal: name of the contender.')

SIZES = (('Balinese', 24), ('Early_Aramaic', 22), ('Korean', 40), ('Latin', 26))
SHOTS, BATCH, WARM_UP = 20, 32, 3
CONTENDERS = {
  # One device per core, as in the launchers.
  'fedreid_jax': {'JAX_NUM_CPU_DEVICES': str(os.cpu_count())},
  'PyTorch, default settings': {},
  'PyTorch, channels_last, malloc thresholds raised': turns.MALLOC,
}


def made_up_clients():
  """Random images with the clients' sizes: `{name: (images, labels)}`."""
  rng = np.random.default_rng(0)
  return {
    name: (
      rng.integers(0, 256, (num * SHOTS, 32, 32, 1), dtype=np.uint8),
      np.repeat(np.arange(num, dtype=np.int32), SHOTS),
    )
    for name, num in SIZES
  }


def engine_round():
  """Returns a function that runs one round of the engine."""
  import fedreid_jax as fr
  from fedreid_jax.config import presets, schema

  config = schema.default()
  presets.omniglot(config)
  config.data.mean, config.data.std = (0.0,), (1.0,)
  executor, _, variables, _ = made_up.rounds(
    config,
    [
      fr.client_data(name, images, labels)
      for name, (images, labels) in made_up_clients().items()
    ],
  )
  return made_up.Timed(executor, *executor.init(variables))


def worker(name: str) -> None:
  """Runs rounds of one contender on request."""
  if name == 'fedreid_jax':
    run = engine_round()
  else:
    from benchmarks import torch_fedpav

    clients = list(made_up_clients().values())
    run = torch_fedpav.Round(clients, BATCH, best='channels_last' in name)

  def once() -> str:
    images, seconds = run()
    return str(images / seconds)

  turns.serve(once)


def main(argv: list[str]) -> None:
  """Prints images per second of each contender."""
  del argv
  if _WORKER.value:
    worker(_WORKER.value)
    return
  names = list(CONTENDERS)
  if importlib.util.find_spec('torch') is None:
    names = names[:1]
  chosen = {name: CONTENDERS[name] for name in names}
  lines = turns.compete('benchmarks.round', chosen, _ROUNDS.value, WARM_UP)
  speeds = {
    name: [float(line) for line in found] for name, found in lines.items()
  }
  ours = np.asarray(speeds[names[0]])
  rows = []
  for name in names:
    values = np.asarray(speeds[name])
    row = [f'{f(values):.0f}' for f in (np.min, np.median, np.max)]
    rows.append((name, *row, f'{np.median(ours / values):.2f}'))
  columns = 'program', 'min', 'median', 'max', 'ours / it, median'
  show.rows(f'FedPav rounds, images/s, {_ROUNDS.value} each', columns, rows)


if __name__ == '__main__':
  app.run(main)
