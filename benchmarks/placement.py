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
import resource
from contextlib import nullcontext
from typing import Any

import numpy as np
from absl import app, flags
from rich import console, table

from benchmarks import cells, made_up

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

  run, cost = make(width, devices, dtype)
  seconds = [run()[1] for _ in range(_ROUNDS.value)]
  with jax.profiler.trace(_TRACE.value) if _TRACE.value else nullcontext():
    images, last = run()
  seconds.append(last)
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


def make(width: int, devices: int, dtype: str) -> tuple[made_up.Timed, int]:
  """Returns the rounds, and the multiply-adds of an image.

  Args:
    width: number of clients vmapped at a time, 0 for all.
    devices: of the mesh.
    dtype: of computation.
  """
  from fedreid_jax.config import schema
  from fedreid_jax.models import flops

  config = schema.default()
  config.model.name, config.model.dtype = _MODEL.value, dtype
  config.model.width = _SCALE.value
  config.local.batch = _BATCH.value
  config.execution.deterministic = False
  config.execution.width = width
  shape = (_HEIGHT.value, _WIDTH.value, 3)
  clients = made_up.clients(
    _CLIENTS.value, _IMAGES.value, shape, NUM_IDENTITIES
  )
  executor, model, variables, _ = made_up.rounds(config, clients, devices)
  run = made_up.Timed(executor, *executor.init(variables))
  return run, flops.count(model, shape, classifier=True).multiply_adds


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
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
  for dtype in _DTYPES.value:
    for devices in _DEVICES.value:
      row = [dtype, devices]
      for width in _WIDTHS.value:
        found = cells.measure(
          'benchmarks.placement',
          f'{width},{devices},{dtype}',
          devices,
          cells.given(),
        )
        if 'error' in found:
          row.append(found['error'][:40])
        else:
          row.append(f'{found["speed"]:.0f} ({found["memory"]:.0f})')
      out.add_row(*row)
  console.Console(width=110).print(out)


if __name__ == '__main__':
  app.run(main)
