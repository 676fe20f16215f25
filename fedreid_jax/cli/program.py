"""The program `fedreid`: `fedreid COMMAND [RECIPE] --flags`.

Commands of applications and of other packages are entry points of the group
`fedreid.commands`: the name of the command, and its module, which has
`main(argv)` and the flags of the command.
"""

import ast
import errno
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

from absl import flags

from fedreid_jax import errors
from fedreid_jax.training.processes import signals
from fedreid_jax.version import __version__

GROUP = 'fedreid.commands'
FULL = {'--helpfull', '-helpfull'}
ASKED = {'--help', '-help', '-h', '-?', *FULL}
CORE = (
  *('train', 'evaluate', 'data', 'report', 'privacy', 'compile'),
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
  """Returns the first line of the docstring of a module, or ''."""
  return (ast.get_docstring(syntax(module)) or '').partition('\n')[0]


def takes_recipe(module: str) -> bool:
  """Whether a module has `TAKES_RECIPE`, so that a recipe may come first."""
  targets = [
    n.targets for n in syntax(module).body if isinstance(n, ast.Assign)
  ]
  return any(getattr(t, 'id', '') == 'TAKES_RECIPE' for (t, *_) in targets)


def main() -> None:
  """Runs the command in the first argument."""
  command = sys.argv[1] if len(sys.argv) > 1 else ''
  if command in ('', 'help', '-h', '--help', '--version'):
    print(__version__ if command == '--version' else _usage())
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
  """Runs one of `commands` with `name` in its help; None: as in `sys.argv`."""
  # First: the imports take seconds, in which a signal would end with a
  # traceback.
  signals.listen()
  module = importlib.import_module(commands()[command])
  sys.argv = [name, *(sys.argv[1:] if arguments is None else arguments)]
  start(module)


def start(command: ModuleType) -> None:
  """Parses `sys.argv` and runs a command.

  The module has `main(argv)` and the flags of the command; a constant
  `RECIPE` is the default of `--config`.
  """
  from absl import app

  from fedreid_jax.cli import run as running

  open_all()
  # Before absl, whose own `--help` lists the flags of libraries, too, and no
  # fields.
  if ASKED & {*sys.argv[1:]}:
    print(_help(sys.argv[0], command, running, bool(FULL & {*sys.argv[1:]})))
    return
  parse = functools.partial(running.parse, getattr(command, 'RECIPE', None))
  app.run(command.main, argv=sys.argv, flags_parser=parse)


def _usage() -> str:
  def line(name: str, module: str) -> str:
    about = first_line(module).partition(': `')[0]
    text = f'  {name:<16} {about[:1].lower()}{about[1:]}'
    return errors.folded(text, indent=' ' * 17)

  lines = [line(name, module) for name, module in commands().items()]
  return (
    'usage: fedreid COMMAND [RECIPE[+COMPONENT][:PRESET,key=value,...]] '
    '[--flags]\n\n'
    + '\n'.join(lines)
    + '\n\nfedreid COMMAND --help lists the flags of a command.'
  )


def _help(
  name: str, command: ModuleType, common: ModuleType, with_fields: bool
) -> str:
  """The docstring of a command, its flags and those of `common`."""
  from fedreid_jax.config import reference

  known = flags.FLAGS
  parts = [f'usage: {name} [--flags]', inspect.getdoc(command) or '']
  if own := known.get_key_flags_for_module(command.__name__):
    parts.append(f'Flags:\n{_flags(own)}')
  of_all = known.get_key_flags_for_module(common.__name__)
  parts.append(f'Flags of every command:\n{_flags(of_all)}')
  if with_fields:
    entries = '\n'.join(reference.entries())
    parts.append(f'Fields, as --config.FIELD=VALUE:\n{entries}')
  else:
    text = (
      '`--helpfull` also lists the fields of the configuration, and `fedreid '
      'list fields [WORD]` those with a word.'
    )
    parts.append(errors.folded(text, indent=''))
  return '\n\n'.join(parts)


def _flags(given: Iterable[flags.Flag]) -> str:
  lines = []
  for flag in sorted(given, key=lambda flag: flag.name):
    shown = f' (default: {value})' if (value := default(flag)) else ''
    text = errors.folded(f'      {meaning(flag)}{shown}', indent='')
    lines.append(f'  {shape(flag)}\n{text}')
  return '\n'.join(lines)


def shape(flag: flags.Flag) -> str:
  """Returns how a flag is written, `--[no]NAME` or `--NAME=VALUE`."""
  return f'--[no]{flag.name}' if flag.boolean else f'--{flag.name}=VALUE'


def default(flag: flags.Flag) -> str:
  """Returns the default of a flag, '' for none."""
  value = flag.default
  # 0 is a default to show, although it equals False.
  given = value is not False and value not in (None, '', [])
  return str(value) if given else ''


def meaning(flag: flags.Flag) -> str:
  """Returns the text of a flag."""
  # absl appends to multi flags how they are repeated.
  return (flag.help or '').partition(';\n')[0]


def open_all() -> None:
  """Discards output to a closed standard stream or a broken pipe."""
  # After `>&-` descriptors up to 2 are free, and the next opened file would get
  # one of them and everything that is printed. So /dev/null takes them all.
  while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(free, True)
  os.close(free)
  for name, number in (('stdout', 1), ('stderr', 2)):
    sys_stream = getattr(sys, name)
    # None is a stream that was closed when Python started.
    if sys_stream is None or not sys_stream.isatty():
      setattr(sys, name, _text(number, sys_stream))


def _text(number: int, like: io.TextIOWrapper | None) -> io.TextIOWrapper:
  return io.TextIOWrapper(
    io.BufferedWriter(_Raw(number, 'wb', closefd=False)),
    encoding=like.encoding if like else 'utf-8',
    errors='backslashreplace',
    line_buffering=True,
  )


class _Raw(io.FileIO):
  """An open descriptor whose writes never fail for a lost reader."""

  def write(self, data, /):
    try:
      return super().write(data)
    # EPIPE after `| head -1` has ended, EBADF where the descriptor was closed.
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EBADF):
        raise
      # Claims success: the buffer would otherwise keep the bytes and try again.
      return memoryview(data).nbytes


if __name__ == '__main__':
  main()
