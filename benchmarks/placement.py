"""Placement of clients: widths by devices, images per second and peak memory.

  python -m benchmarks.placement [--model=convnet] [--devices=1,2,4,8]
  python -m benchmarks.placement --model=resnet50 --height=256 --width_px=128 \
    --dtypes=float32,bfloat16 --devices=1

The program measures a round of the engine, including averaging, with eight
clients of equal size and random images. On a CPU the devices are simulated and
use the same cores. Every cell has its own process. Its peak memory is that of
the device if the device reports it, and otherwise that of the process.
"""

import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
from absl import app, flags
from rich import console, table

_MODEL = flags.DEFINE_string('model', 'convnet', 'Name of the network.')
_HEIGHT = flags.DEFINE_integer('height', 32, 'Height of images in pixels.')
_WIDTH = flags.DEFINE_integer('width_px', 32, 'Width of images in pixels.')
_IMAGES = flags.DEFINE_integer('images', 256, 'Number of images of a client.')
_BATCH = flags.DEFINE_integer('batch', 32, 'Number of images in a step.')
_WIDTHS = flags.DEFINE_list(
  'widths', ['1', '2', '4', '0'], 'Numbers of clients vmapped at a time.'
)
_DEVICES = flags.DEFINE_list(
  'devices', ['1', '2', '4', '8'], 'Numbers of devices of the mesh.'
)
_DTYPES = flags.DEFINE_list('dtypes', ['float32'], 'Types of computation.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Measured rounds of a cell.')
_CELL = flags.DEFINE_string('cell', '', 'Internal: the cell to measure.')

NUM_CLIENTS, NUM_IDENTITIES = 8, 16


def measure(width: int, devices: int, dtype: str) -> dict[str, float]:
  """Returns images per second and peak memory of one cell."""
  import jax

  from fedreid_jax import algorithms
  from fedreid_jax.config import schema
  from fedreid_jax.core import compose, placement
  from fedreid_jax.core.types import ClientData
  from fedreid_jax.data import augment
  from fedreid_jax.data.federation import Federation
  from fedreid_jax.models import functional, networks
  from fedreid_jax.training import engine

  config = schema.default()
  config.model.name, config.model.dtype = _MODEL.value, dtype
  config.local.batch = _BATCH.value
  config.execution.deterministic = False
  config.execution.width = width
  rng = np.random.default_rng(0)
  shape = (_HEIGHT.value, _WIDTH.value, 3)
  pixels = rng.integers(0, 256, (_IMAGES.value, *shape), dtype=np.uint8)
  labels = np.arange(_IMAGES.value, dtype=np.int32) % NUM_IDENTITIES
  zeros = np.zeros_like(labels)
  clients = tuple(
    ClientData(f'c{k}', lambda: pixels, labels, zeros, zeros, NUM_IDENTITIES)
    for k in range(NUM_CLIENTS)
  )
  mean, std = config.data.mean, config.data.std
  model = functional.wrap(networks.build(config.model, NUM_IDENTITIES), shape)
  executor = engine.make_executor(
    config,
    Federation(clients, (), shape, mean, std, 'made up'),
    model,
    compose.load(('fedpav',), {}, algorithms),
    augment.make(config.augment, mean, std),
    placement.make_mesh(devices),
  )
  server, states = executor.init(jax.jit(model.init)(jax.random.key(0)))
  speeds = []
  for number in range(1 + _ROUNDS.value):
    start = time.perf_counter()
    server, log = executor.round(server, states, number)
    jax.block_until_ready(server)
    speeds.append(log['images'] / (time.perf_counter() - start))
  stats = jax.devices()[0].memory_stats() or {}
  own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return {
    'speed': float(np.median(speeds[1:])),
    'memory': stats.get('peak_bytes_in_use', own) / 2**20,
  }


def main(argv: list[str]) -> None:
  """Prints the table."""
  if _CELL.value:
    width, devices, dtype = _CELL.value.split(',')
    print(json.dumps(measure(int(width), int(devices), dtype)))
    return
  out = table.Table(
    title=f'{_MODEL.value}, {_HEIGHT.value}x{_WIDTH.value}, batch '
    f'{_BATCH.value}, {NUM_CLIENTS} clients: images/s (peak MiB)'
  )
  for column in ('dtype', 'devices', *(f'width {w}' for w in _WIDTHS.value)):
    out.add_column(column.replace('width 0', 'all at once'), justify='right')
  for dtype in _DTYPES.value:
    for devices in _DEVICES.value:
      row = [dtype, devices]
      for width in _WIDTHS.value:
        cell = subprocess.run(
          [sys.executable, '-m', 'benchmarks.placement', *argv[1:]]
          + [f for f in sys.argv[1:] if f.startswith('--')]
          + [f'--cell={width},{devices},{dtype}'],
          env=os.environ | {'JAX_NUM_CPU_DEVICES': devices},
          capture_output=True,
          text=True,
          check=False,
        )
        if cell.returncode:
          row.append(cell.stderr.strip().splitlines()[-1][:40])
          continue
        found = json.loads(cell.stdout.splitlines()[-1])
        row.append(f'{found["speed"]:.0f} ({found["memory"]:.0f})')
      out.add_row(*row)
  console.Console(width=110).print(out)


if __name__ == '__main__':
  app.run(main)
