"""Convert weights: `fedreid import-weights FILE.pth --out=FILE.safetensors`.

FILE.pth contains weights of torchvision, IBN-Net, timm, DINOv2, DINOv3, CLIP,
torchreid, fast-reid or TransReID. PyTorch reads it with `weights_only=True`, so
no code in the file is run. The command recognises the program by the names of
the tensors, removes prefixes such as `module.`, converts other types to
float32, leaves out the classifier, and prints what it did and how pixels were
normalised. PyTorch must be installed, unless the file is `.npz` or
`.safetensors`.

  fedreid import-weights resnet50.pth --out=resnet50.safetensors
"""

from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

_OUT = flags.DEFINE_string('out', '', 'File to write, .safetensors.')


def main(argv: list[str]) -> None:
  """Writes a file of weights and prints what was changed."""

  def body():
    if len(argv) != 2 or not _OUT.value:
      raise errors.ConfigError(
        f'{len(argv) - 1} files of weights'
        if len(argv) != 2
        else 'no file to write',
        'command line',
        'give fedreid import-weights FILE.pth --out=FILE.safetensors',
      )
    from fedreid_jax.apps.deploy import conversion

    given = argv[1], _OUT.value
    source, out = (Path(name).expanduser().absolute() for name in given)
    imported = conversion.convert(source, out)
    for line in imported.lines():
      print(errors.folded(errors.printable(line)))
    print(f'next: {imported.command()}')

  run.guarded(argv[:1], body, with_jax=False)
