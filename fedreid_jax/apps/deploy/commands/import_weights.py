"""Convert weights: `fedreid import-weights FILE.pth --out=FILE.safetensors`.

FILE.pth contains the weights of a ResNet in PyTorch's format. PyTorch reads it
with `weights_only=True`, so no code in the file is run. The command removes the
prefixes `module.` and `backbone.`, converts other types to float32, leaves out
the classifier, and prints what it did. PyTorch must be installed.

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
    from fedreid_jax.apps.deploy import exchange

    given = argv[1], _OUT.value
    source, out = (Path(name).expanduser().absolute() for name in given)
    imported = exchange.convert(source, out)
    for line in imported.lines():
      print(errors.printable(line))
    print(
      'next: fedreid train RECIPE '
      f'--config.model.name={imported.network} '
      f'--config.model.pretrained={out}'
    )

  run.guarded(argv[:1], body, with_jax=False)
