"""Rounds on a CPU, this engine beside PyTorch, for networks of several sizes.

  python -m benchmarks.cpu [--rounds=5] [--only=convnet]

Four clients train one epoch of random images, with crops, mirroring,
cross-entropy and SGD with Nesterov momentum, and their models are averaged. The
engine has one device for each core. PyTorch has images in channels_last and
glibc's mmap and trim thresholds raised, since page faults otherwise take a
fifth of its time. Both compute in float32 and in bfloat16. Every contender has
its own process and runs one round at a time in turn.
"""

import os

import numpy as np
from absl import app, flags

from benchmarks import placement, show, turns

_ONLY = flags.DEFINE_string('only', '', 'Name of one workload.')
_WORKER = flags.DEFINE_string('worker', '', 'Internal: name of the contender.')

CLIENTS, WARM_UP = 4, 2
# Network, its width, height and width in pixels, batch, images of a client.
WORKLOADS = {
  'convnet': ('convnet', 1.0, 64, 32, 64, 512),
  'resnet18/4': ('resnet18', 0.25, 64, 32, 64, 512),
  'resnet50': ('resnet50', 1.0, 128, 64, 16, 32),
}
CORES = os.cpu_count() or 1
CONTENDERS = {
  'fedreid_jax float32': {'JAX_NUM_CPU_DEVICES': str(CORES)},
  'fedreid_jax bfloat16': {'JAX_NUM_CPU_DEVICES': str(CORES)},
  'PyTorch float32': turns.MALLOC,
  'PyTorch bfloat16': turns.MALLOC,
}


def worker(name: str) -> None:
  """Runs rounds of one contender on request."""
  who, dtype = name.split()
  if who == 'PyTorch':
    from benchmarks import torch_rounds

    model, width, height, width_px, batch, images = WORKLOADS[_ONLY.value]
    run = torch_rounds.Rounds(
      model,
      width,
      (images, height, width_px),
      CLIENTS,
      batch,
      mixed=dtype == 'bfloat16',
      compiled=False,
    )
  else:
    run, _ = placement.make(1, CORES, dtype)

  def once() -> str:
    images, seconds = run()
    return str(images / seconds)

  turns.serve(once)


def measure(workload: str, rounds: int) -> list[tuple[str, ...]]:
  """Returns a row for each contender.

  Args:
    workload: name of one.
    rounds: counted rounds of each.
  """
  model, width, height, width_px, batch, images = WORKLOADS[workload]
  given = [
    f'--only={workload}',
    f'--model={model}',
    f'--scale={width}',
    f'--height={height}',
    f'--width_px={width_px}',
    f'--batch={batch}',
    f'--images={images}',
    f'--clients={CLIENTS}',
  ]
  found = turns.compete('benchmarks.cpu', CONTENDERS, rounds, WARM_UP, given)
  speeds = {n: np.array([float(x) for x in xs]) for n, xs in found.items()}
  best = max((np.median(x) for n, x in speeds.items() if 'PyTorch' in n))
  return [
    (
      f'{workload}, {name}',
      *(f'{f(x):.0f}' for f in (np.min, np.median, np.max)),
      f'{np.median(x) / best:.2f}',
    )
    for name, x in speeds.items()
  ]


def main(argv: list[str]) -> None:
  """Prints images per second of each contender."""
  del argv
  if _WORKER.value:
    worker(_WORKER.value)
    return
  names = [_ONLY.value] if _ONLY.value else list(WORKLOADS)
  rounds = int(flags.FLAGS['rounds'].value or 0)
  rows = [row for name in names for row in measure(name, rounds)]
  columns = 'program', 'min', 'median', 'max', 'over the best PyTorch'
  show.rows('Images per second', columns, rows)


if __name__ == '__main__':
  app.run(main)
