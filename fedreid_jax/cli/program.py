"""The program `fedreid`: `fedreid COMMAND [RECIPE] --flags`."""

import importlib
import sys
from collections.abc import Sequence

from fedreid_jax import errors
from fedreid_jax.training import signals

COMMANDS = {
  'train': 'train or resume a run',
  'evaluate': 'evaluate a checkpoint',
  'data': 'check or prepare a data set, or write a miniature',
  'sweep': 'run a grid of configurations',
  'compare': 'compare methods with a baseline, seed by seed',
  'site': 'train at a site of a federation, for Flower',
  'coordinate': 'prepare a run at real sites',
  'table': 'run a table of a paper',
  'study': 'try the claims of the papers',
  'visualize': 'draw runs',
  'embed': 'write the vectors of a folder of images',
  'search': 'find the images that are nearest to a query',
  'serve': 'search a gallery in a browser',
  'report': 'write a page about runs',
  'invert': 'reconstruct images from a model',
  'audit': 'measure what a run gives away',
  'export': 'write a model for JAX, ONNX or PyTorch',
  'import-weights': 'convert weights of PyTorch',
  'privacy': 'plan a guarantee of differential privacy',
  'check-component': 'check a component outside the package',
  'list': 'list recipes, presets, components, data sets, tables or fields',
  'completion': 'print a script that completes words of a shell',
}
WITH_RECIPE = (
  'train',
  'sweep',
  'site',
  'coordinate',
)  # their first argument may be a recipe


def main() -> None:
  """Runs the command in the first argument."""
  command = sys.argv[1] if len(sys.argv) > 1 else ''
  if command in ('', 'help', '-h', '--help', '--version'):
    print(_version() if command == '--version' else _usage())
    return
  if command not in COMMANDS:
    error = errors.ConfigError(
      f'unknown command {command!r}',
      'command line',
      errors.one_of(command, COMMANDS),
    )
    print(error.line(), file=sys.stderr)
    sys.exit(error.exit_code)
  arguments = sys.argv[2:]
  if command in WITH_RECIPE and arguments and not arguments[0].startswith('-'):
    arguments[0] = f'--config={arguments[0]}'
  run(command, f'fedreid {command}', arguments)


def run(
  command: str, name: str, arguments: Sequence[str] | None = None
) -> None:
  """Runs a command.

  Args:
    command: one of `COMMANDS`.
    name: name of the program in its help.
    arguments: arguments of the command; None means those of this process.
  """
  signals.listen()
  module = importlib.import_module(
    f'fedreid_jax.cli.{command.replace("-", "_")}'
  )
  from fedreid_jax.cli import run as running

  sys.argv = [name, *(sys.argv[1:] if arguments is None else arguments)]
  running.start(module)


def _usage() -> str:
  lines = [f'  {name:<16} {text}' for name, text in COMMANDS.items()]
  return (
    'usage: fedreid COMMAND [RECIPE[:PRESET,key=value,...]] [--flags]\n\n'
    + '\n'.join(lines)
    + '\n\nfedreid COMMAND --help lists the flags of a command.'
  )


def _version() -> str:
  import fedreid_jax

  return fedreid_jax.__version__


if __name__ == '__main__':
  main()
