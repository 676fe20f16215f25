"""Formats the text of `fedreid COMMAND --help`."""

import inspect
from collections.abc import Iterable
from types import ModuleType

from absl import flags

from fedreid_jax.config import reference

ASKED = {'--help', '-help', '-h', '-?', '--helpfull', '-helpfull'}


def text(
  name: str, command: ModuleType, common: ModuleType, with_fields: bool
) -> str:
  """Returns the help of a command.

  Args:
    name: of the program, as in `fedreid train`.
    command: module of the command, whose docstring is the description.
    common: module that defines the flags of every command.
    with_fields: whether to list the fields of a configuration.
  """
  known = flags.FLAGS
  own = known.get_key_flags_for_module(command.__name__)
  of_all = known.get_key_flags_for_module(common.__name__)
  parts = [f'usage: {name} [--flags]', inspect.getdoc(command) or '']
  if own:
    parts.append(f'Flags:\n{_flags(own)}')
  parts.append(f'Flags of every command:\n{_flags(of_all)}')
  if with_fields:
    entries = '\n'.join(reference.entries())
    parts.append(f'Fields, as --config.FIELD=VALUE:\n{entries}')
  else:
    parts.append(
      '`--helpfull` also lists the fields of the configuration, and `fedreid '
      'list fields [WORD]` those with a word.'
    )
  return '\n\n'.join(parts)


def _flags(given: Iterable[flags.Flag]) -> str:
  lines = []
  for flag in sorted(given, key=lambda flag: flag.name):
    default = flag.default
    shape = f'--[no]{flag.name}' if flag.boolean else f'--{flag.name}=VALUE'
    # 0 is a default to show, although it equals False.
    given_default = default is not False and default not in (None, '', [])
    shown = f' (default: {default})' if given_default else ''
    # absl appends to multi flags how they are repeated.
    about = (flag.help or '').partition(';\n')[0]
    lines.append(f'  {shape}\n      {about}{shown}')
  return '\n'.join(lines)
