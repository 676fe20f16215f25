"""Export a model: `fedreid export --workdir=DIR --format=FORMAT`.

  jax          a program of jax.export for CPU, CUDA and TPU
  onnx         a program for ONNX Runtime and other runtimes
  safetensors  weights, in the names of torchvision, torchreid or timm if one of
               them has the network
  torch        weights in a .pth file, in the same names
  trackers     a folder for Roboflow's trackers: reid_config.json and
               weights.safetensors

A program maps uint8 pixels to the embedding that the evaluation of the run
ranks; the normalisation of pixels is part of the program. Each file contains a
description. The file is WORKDIR/MODEL-STEP.SUFFIX, or `--out=FILE`; a folder is
WORKDIR/MODEL-STEP-trackers, or `--out=FOLDER`.

An onnx file can have another input, as other programs send it. `--layout` is
nhwc or nchw (channels before rows), and `--input` is one of

  uint8        integers, 0 to 255
  unit         float32, 0 to 1
  normalised   float32, 0 to 1 minus the mean, divided by the standard deviation
               of the run (data.mean, data.std)
  imagenet     the same with ImageNet's mean and standard deviation, as most
               trackers normalise, also if the run has others

The formats jax and onnx need fedreid_jax[export], and torch needs PyTorch.

  fedreid export --workdir=runs/first --format=onnx
  fedreid export --workdir=run --format=onnx --layout=nchw --input=imagenet
  fedreid export --workdir=runs/first --format=jax --checkpoint=best
  fedreid export --weights=convnet-synthetic --format=onnx   # without a run
"""

from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import model_flags
from fedreid_jax.apps.deploy.export_choices import FORMATS, LAYOUTS, VALUES
from fedreid_jax.cli import run

flags.adopt_module_key_flags(model_flags)
_FORMAT = flags.DEFINE_enum(
  'format', None, FORMATS, 'Format of the file or folder.'
)
_LAYOUT = flags.DEFINE_enum(
  'layout', LAYOUTS[0], LAYOUTS, 'onnx: order of the axes of the images.'
)
_INPUT = flags.DEFINE_enum(
  'input', VALUES[0], VALUES, 'onnx: type and values of the images.'
)
_OUT = flags.DEFINE_string('out', '', 'File or folder to write.')


def main(argv: list[str]) -> None:
  """Writes a file and prints how to use it."""

  def body():
    if _FORMAT.value is None:
      raise errors.ConfigError(
        'no format', '--format', f'one of {", ".join(FORMATS)}'
      )
    model_flags.check()
    named = model_flags.weights() or ''
    out = Path(_OUT.value).expanduser().absolute() if _OUT.value else None
    from fedreid_jax.apps.deploy import exchange, image_input

    written = exchange.export(
      None if named else run.given_workdir(),
      _FORMAT.value,
      out,
      *model_flags.checkpoint(),
      image_input.ImageInput(_LAYOUT.value, _INPUT.value),
      named,
      model_flags.changes(),
    )
    print(f'wrote {written.path} ({written.size:,} bytes)')
    if written.difference is None:
      # A family has the name of its program first.
      program = written.names.partition(',')[0]
      print(f'{written.num_tensors} tensors in the names of {program}')
    else:
      print(written.about['summary'])
      print(f'largest difference from the evaluation: {written.difference:.1e}')
    if _FORMAT.value == 'jax':
      print(exchange.READABLE)
    print(f'next: {exchange.next_command(written, _FORMAT.value)}')

  run.guarded(argv, body)
