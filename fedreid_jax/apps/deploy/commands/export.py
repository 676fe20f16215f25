"""Export a model: `fedreid export --workdir=DIR --format=FORMAT`.

  jax          a program of jax.export for CPU, CUDA and TPU
  onnx         a program for ONNX Runtime and other runtimes
  safetensors  weights, in the names of torchvision, torchreid or timm if one of
               them has the network
  torch        weights in a .pth file, in the same names

A program maps uint8 pixels to the embedding that the evaluation of the run
ranks; the normalisation of pixels is part of the program. Each file contains a
description. The file is WORKDIR/MODEL-STEP.SUFFIX, or `--out=FILE`.

The formats jax and onnx need fedreid_jax[export], and torch needs PyTorch.

  fedreid export --workdir=runs/first --format=onnx
  fedreid export --workdir=runs/first --format=jax --checkpoint=best
"""

from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

FORMATS = ('jax', 'onnx', 'safetensors', 'torch')
_FORMAT = flags.DEFINE_enum('format', None, FORMATS, 'Format of the file.')
_OUT = flags.DEFINE_string('out', '', 'File to write.')
_CHECKPOINT = run.define_checkpoint()
_MODEL = flags.DEFINE_string(
  'model', '', "'cluster:I' or 'client:NAME' (default: the server's model)."
)


def main(argv: list[str]) -> None:
  """Writes a file and prints how to use it."""

  def body():
    if _FORMAT.value is None:
      raise errors.ConfigError(
        'no format', '--format', f'one of {", ".join(FORMATS)}'
      )
    workdir = run.given_workdir()
    out = Path(_OUT.value).expanduser().absolute() if _OUT.value else None
    from fedreid_jax.apps.deploy import exchange

    written = exchange.export(
      workdir,
      _FORMAT.value,
      out,
      _CHECKPOINT.value,
      _MODEL.value,
    )
    print(f'wrote {written.path} ({written.size:,} bytes)')
    if written.difference is None:
      print(f'{written.num_tensors} tensors in the names of {written.names}')
    else:
      print(written.about['summary'])
      print(f'largest difference from the evaluation: {written.difference:.1e}')
    if _FORMAT.value == 'jax':
      print(exchange.READABLE)
    print(f'next: {exchange.next_command(written, _FORMAT.value)}')

  run.guarded(argv, body)
