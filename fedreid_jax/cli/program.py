"""The program `fedreid`: `fedreid COMMAND [RECIPE] --flags`.

Commands of applications and of other packages are entry points of the group
`fedreid.commands`: the name of the command, and its module, which has
`main(argv)` and the flags of the command.
"""

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence

from fedreid_jax import errors
from fedreid_jax.training.processes import signals

GROUP = 'fedreid.commands'
CORE = (
  *('train', 'evaluate', 'data', 'report', 'privacy'),
  *('check-component', 'list', 'completion'),
)


@functools.cache
def commands() -> dict[str, str]:
  """Returns the modules of the commands by name, core commands first."""
  core = {name: f'{__package__}.{name.replace("-", "_")}' for name in CORE}
  found = importlib.metadata.entry_points(group=GROUP)
  # Another package can add commands, but not replace those of the core.
  others = {one.name: one.value for one in found if one.name not in core}
  return core | dict(sorted(others.items()))


@functools.cache
def syntax(module: str) -> ast.Module:
  """Returns the syntax tree of a module, an empty one if it is unknown."""
  # Not imported: two commands may define the same flag.
  spec = importlib.util.find_spec(module)
  if spec is None or spec.origin is None:
    return ast.Module([], [])
  with open(spec.origin, encoding='utf-8') as file:
    return ast.parse(file.read())


def first_line(module: str) -> str:
  """Returns the first line of the docstring of a module, or an empty string."""
  return (ast.get_docstring(syntax(module)) or '').partition('\n')[0]


def takes_recipe(module: str) -> bool:
  """Returns whether a module of a command has a constant `TAKES_RECIPE`.

  The first argument of such a command may be a recipe.
  """
  targets = [
    n.targets for n in syntax(module).body if isinstance(n, ast.Assign)
  ]
  return any(getattr(t, 'id', '') == 'TAKES_RECIPE' for (t, *_) in targets)


def main() -> None:
  """Runs the command in the first argument."""
  command = sys.argv[1] if len(sys.argv) > 1 else ''
  if command in ('', 'help', '-h', '--help', '--version'):
    print(_version() if command == '--version' else _usage())
    return
  if command not in commands():
    # Printed here, because flags and their `--debug` exist only once a command
    # is imported.
    error = errors.ConfigError(
      f'unknown command {command!r}',
      'command line',
      errors.one_of(command, commands()),
    )
    print(error.line(), file=sys.stderr)
    sys.exit(error.exit_code)
  arguments = sys.argv[2:]
  named = bool(arguments) and not arguments[0].startswith('-')
  if named and takes_recipe(commands()[command]):
    arguments[0] = f'--config={arguments[0]}'
  run(command, f'fedreid {command}', arguments)


def run(
  command: str, name: str, arguments: Sequence[str] | None = None
) -> None:
  """Runs a command.

  Args:
    command: one of `commands`.
    name: name of the program in its help.
    arguments: arguments of the command; None means `sys.argv`.
  """
  # First: the imports take seconds, in which a signal would end with a
  # traceback.
  signals.listen()
  module = importlib.import_module(commands()[command])
  from fedreid_jax.cli import run as running

  sys.argv = [name, *(sys.argv[1:] if arguments is None else arguments)]
  running.start(module)


def _usage() -> str:
  def line(name: str, module: str) -> str:
    about = first_line(module).partition(': `')[0]
    return f'  {name:<16} {about[:1].lower()}{about[1:]}'

  lines = [line(name, module) for name, module in commands().items()]
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
