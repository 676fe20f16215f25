"""A round of ResNet-50 on a GPU, this engine beside PyTorch, as one JSON file.

  python -m benchmarks.torch_gpu [--json=torch_gpu.json] [--profile]

Every row has its own process, which has the device for itself; PyTorch is
measured before and after the rows of the engine. Both train the same network on
random images of 256x128 pixels that are on the device: nine clients, batches
of 32, random crops after a padding of 4 pixels, mirroring, cross-entropy, SGD
with Nesterov momentum, and the mean of the clients' models. PyTorch has
channels_last, `torch.compile`, and either automatic mixed precision in bfloat16
or float32 with TF32 products. `--cohorts=1,8` adds rounds of eight times as
many clients. `--profile` adds the ten kernels that take most time.
"""

import json
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import cells, kernels, show

_JSON = flags.DEFINE_string('json', 'torch_gpu.json', 'File to write.')
_MODEL = flags.DEFINE_string('network', 'resnet50', 'resnet18 or resnet50.')
_SIZE = flags.DEFINE_string('size', '256x128', 'Height x width in pixels.')
_BATCHES = flags.DEFINE_string('batches', '32', 'Number of images in a step.')
_WIDTHS = flags.DEFINE_list(
  'vmapped', ['1', '2', '4', '9'], 'Numbers of clients vmapped at a time.'
)
_DTYPES = flags.DEFINE_list(
  'types', ['bfloat16', 'float32'], 'Types of computation.'
)
_SILOS = flags.DEFINE_integer('silos', 9, 'Number of clients.')
_COHORTS = flags.DEFINE_list(
  'cohorts', ['1', '8'], 'Multiples of the number of clients.'
)
_IMAGES = flags.DEFINE_integer('each', 512, 'Number of images of a client.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Measured rounds of a row.')
_PROFILE = flags.DEFINE_bool('profile', False, 'Add the ten longest kernels.')

Row = dict[str, Any]


def _workload(clients: int) -> list[str]:
  """Returns the flags of a workload, those of `benchmarks.placement`."""
  height, width = _SIZE.value.split('x')
  return [
    f'--model={_MODEL.value}',
    f'--height={height}',
    f'--width_px={width}',
    f'--batch={_BATCHES.value}',
    f'--images={_IMAGES.value}',
    f'--clients={clients}',
    f'--rounds={_REPEATS.value}',
  ]


def _engine(width: str, dtype: str, clients: int) -> Row:
  arguments = _workload(clients)
  row = {'who': 'fedreid_jax', 'width': int(width), 'dtype': dtype}
  row['clients'] = clients
  with tempfile.TemporaryDirectory() as folder:
    if _PROFILE.value:
      arguments.append(f'--trace={folder}')
    row |= cells.measure(
      'benchmarks.placement', f'{width},1,{dtype}', 1, arguments
    )
    if _PROFILE.value and 'error' not in row:
      row['kernels'] = kernels.longest(Path(folder), 10)
  return row


def _torch(dtype: str) -> Row:
  row = {'who': 'PyTorch', 'width': 1, 'dtype': dtype, 'clients': _SILOS.value}
  found = subprocess.run(
    [sys.executable, '-m', 'benchmarks.torch_rounds', f'--dtype={dtype}']
    + _workload(_SILOS.value),
    capture_output=True,
    text=True,
    check=False,
  )
  if found.returncode:
    return row | {'error': found.stderr.strip().splitlines()[-1]}
  return row | json.loads(found.stdout.splitlines()[-1])


def _rows():
  """Yields the rows, in the order in which they are measured."""
  for dtype in _DTYPES.value:
    yield _torch(dtype)
    for width in _WIDTHS.value:
      yield _engine(width, dtype, _SILOS.value)
    yield _torch(dtype)
  for times in _COHORTS.value:
    if times != '1':
      yield _engine('1', _DTYPES.value[0], int(times) * _SILOS.value)


def main(argv: list[str]) -> None:
  """Measures, prints and writes all rows."""
  del argv
  facts = {
    'date': str(date.today()),
    'processor': platform.processor() or platform.machine(),
    'workload': _workload(_SILOS.value),
  }
  rows: list[Row] = []
  for row in _rows():
    rows.append(row)
    # A run that is stopped keeps the rows that it has measured.
    Path(_JSON.value).write_text(json.dumps(facts | {'rows': rows}, indent=1))
  show.rows(
    ' '.join(facts['workload']),
    ('who', 'type', 'clients', 'vmapped', 'images/s', 'TFLOP/s', 'MiB', 's'),
    [
      (
        row['who'],
        row['dtype'],
        str(row['clients']),
        str(row['width']),
        *(
          (row['error'][:40], '', '', '')
          if 'error' in row
          else (
            f'{row["speed"]:.0f}',
            f'{row["tera"]:.1f}' if 'tera' in row else '',
            f'{row["memory"]:.0f}',
            f'{row["compile"]:.0f}',
          )
        ),
      )
      for row in rows
    ],
  )


if __name__ == '__main__':
  app.run(main)
