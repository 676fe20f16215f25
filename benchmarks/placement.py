"""Placement of clients: widths by devices, images per second and peak memory.

  python -m benchmarks.placement [--model=convnet] [--devices=1,2,4,8]
  python -m benchmarks.placement --model=resnet50 --height=256 --width_px=128 \
    --dtypes=float32,bfloat16 --devices=1

The program measures a round of the engine, including averaging, with eight
clients of equal size and random images. On a CPU the devices are simulated and
use the same cores. Every cell has its own process. Its peak memory is that of
the device if the device reports it, and otherwise that of the process.
`benchmarks.torch_gpu` runs the cells of a GPU beside PyTorch.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from absl import app, flags
from rich import console, table

_MODEL = flags.DEFINE_string('model', 'convnet', 'Name of the network.')
_SCALE = flags.DEFINE_float(
  'scale', 1.0, 'Channels of a ResNet over those of the standard one.'
)
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
_CLIENTS = flags.DEFINE_integer('clients', 8, 'Number of clients.')
_TRACE = flags.DEFINE_string('trace', '', 'Folder for a profile of a round.')
_CELL = flags.DEFINE_string('cell', '', 'Internal: the cell to measure.')

NUM_IDENTITIES = 16


def measure(width: int, devices: int, dtype: str) -> dict[str, Any]:
  """Returns the figures of one cell.

  They are `speed` in images per second, `memory` in MiB at its peak, `compile`
  in seconds (of the first round, without a later round's), `tera` in FLOP per
  second divided by 1e12, the `device` and the version of `jax`.
  """
  import jax

  executor, server, states, cost = make(width, devices, dtype)
  seconds, images = [], 0
  for number in range(1 + _ROUNDS.value):
    last = number == _ROUNDS.value and _TRACE.value
    start = time.perf_counter()
    with jax.profiler.trace(_TRACE.value) if last else nullcontext():
      server, log = executor.round(server, states, number)
      jax.block_until_ready(server)
    seconds.append(time.perf_counter() - start)
    images = log['images']
  stats = jax.devices()[0].memory_stats() or {}
  own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  took = float(np.median(seconds[1:]))
  return {
    'speed': images / took,
    'memory': stats.get('peak_bytes_in_use', own) / 2**20,
    'compile': seconds[0] - took,
    'tera': 6e-12 * cost * images / took,
    'device': jax.devices()[0].device_kind,
    'jax': jax.__version__,
  }


def make(width: int, devices: int, dtype: str):
  """Returns (executor, server, states, multiply-adds of an image).

  Args:
    width: number of clients vmapped at a time, 0 for all.
    devices: of the mesh.
    dtype: of computation.
  """
  import jax

  from fedreid_jax import algorithms
  from fedreid_jax.config import schema
  from fedreid_jax.core import compose, placement
  from fedreid_jax.core.types import ClientData
  from fedreid_jax.data import augment
  from fedreid_jax.data.federation import Federation
  from fedreid_jax.models import flops, functional, networks
  from fedreid_jax.training import engine

  config = schema.default()
  config.model.name, config.model.dtype = _MODEL.value, dtype
  config.model.width = _SCALE.value
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
    for k in range(_CLIENTS.value)
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
  cost = flops.count(model, shape, classifier=True).multiply_adds
  return executor, server, states, cost


def run_cell(
  cell: str, arguments: Sequence[str], devices: str
) -> dict[str, Any]:
  """Measures a cell in its own process.

  Args:
    cell: `WIDTH,DEVICES,DTYPE`.
    arguments: flags of this program.
    devices: number of devices to simulate on a CPU.

  Returns:
    The figures of `measure`, or the last line of an `error`.
  """
  found = subprocess.run(
    [sys.executable, '-m', 'benchmarks.placement', *arguments]
    + [f'--cell={cell}'],
    env=os.environ | {'JAX_NUM_CPU_DEVICES': devices},
    capture_output=True,
    text=True,
    check=False,
  )
  if found.returncode:
    return {'error': found.stderr.strip().splitlines()[-1]}
  return json.loads(found.stdout.splitlines()[-1])


def main(argv: list[str]) -> None:
  """Prints the table."""
  if _CELL.value:
    width, devices, dtype = _CELL.value.split(',')
    print(json.dumps(measure(int(width), int(devices), dtype)))
    return
  out = table.Table(
    title=f'{_MODEL.value}, {_HEIGHT.value}x{_WIDTH.value}, batch '
    f'{_BATCH.value}, {_CLIENTS.value} clients: images/s (peak MiB)'
  )
  for column in ('dtype', 'devices', *(f'width {w}' for w in _WIDTHS.value)):
    out.add_column(column.replace('width 0', 'all at once'), justify='right')
  given = argv[1:] + [f for f in sys.argv[1:] if f.startswith('--')]
  for dtype in _DTYPES.value:
    for devices in _DEVICES.value:
      row = [dtype, devices]
      for width in _WIDTHS.value:
        found = run_cell(f'{width},{devices},{dtype}', given, devices)
        if 'error' in found:
          row.append(found['error'][:40])
        else:
          row.append(f'{found["speed"]:.0f} ({found["memory"]:.0f})')
      out.add_row(*row)
  console.Console(width=110).print(out)


if __name__ == '__main__':
  app.run(main)
