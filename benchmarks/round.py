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

from benchmarks import show, turns

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
  import time

  import jax

  from fedreid_jax import algorithms
  from fedreid_jax.config import presets, schema
  from fedreid_jax.core import compose, placement
  from fedreid_jax.core.types import ClientData
  from fedreid_jax.data import augment
  from fedreid_jax.data.federation import Federation
  from fedreid_jax.models import functional, networks
  from fedreid_jax.training import engine

  config = schema.default()
  presets.omniglot(config)
  clients = tuple(
    ClientData(
      name,
      lambda images=images: images,
      labels,
      np.zeros_like(labels),
      np.zeros_like(labels),
      int(labels.max()) + 1,
    )
    for name, (images, labels) in made_up_clients().items()
  )
  shape = (32, 32, 1)
  federation = Federation(clients, (), shape, (0.0,), (1.0,), 'made up')
  model = functional.wrap(networks.build(config.model, 40), shape)
  executor = engine.make_executor(
    config,
    federation,
    model,
    compose.load(('fedpav',), {}, algorithms),
    augment.make(config.augment, (0.0,), (1.0,)),
    placement.make_mesh(),
  )
  variables = jax.jit(model.init)(jax.random.key(0))
  server, states = executor.init(variables)
  number = 0

  def run() -> tuple[int, float]:
    nonlocal server, number
    start = time.perf_counter()
    server, log = executor.round(server, states, number)
    jax.block_until_ready(server)
    number += 1
    return log['images'], time.perf_counter() - start

  return run


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
