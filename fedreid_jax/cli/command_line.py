"""Parsing of field flags, and detection of repeated or misspelt flags."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from fedreid_jax import errors
from fedreid_jax.config import parsing

PREFIX = 'config.'  # of the flags of fields


class _Given(NamedTuple):
  """A flag of the command line: its name, its value and its words."""

  name: str
  value: str
  words: tuple[str, ...]


def read(
  args: Sequence[str], known: flags.FlagValues, fields: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
  """Separates the flags of fields from the others.

  Args:
    args: arguments of the command line.
    known: all flags except those of fields, `--config.FIELD`.
    fields: declarations of the fields of a configuration, by full name.

  Returns:
    The other arguments, and FIELD=VALUE of every flag of a field.

  Raises:
    ConfigError: if a flag is given twice (the message has both values), or a
      field does not exist (the message has the nearest name).
  """

  def is_boolean(name: str) -> bool:
    if name in known:
      return known[name].boolean
    field = fields.get(name.removeprefix(PREFIX))
    return field is not None and field.kind is bool

  seen: dict[str, str] = {}
  rest, pairs = [], []
  for name, value, words in _given(args, is_boolean):
    field = name.removeprefix(PREFIX)
    if name and field != name:
      if field not in fields:
        raise errors.ConfigError(
          f'unknown field {field!r}', f'--{name}', parsing.hint(field, fields)
        )
      pairs.append(f'{field}={value}')
    else:
      rest += words
    if name in seen:
      raise errors.ConfigError(
        f'--{name} twice: {seen[name]!r} and {value!r}',
        'command line',
        'give it once',
      )
    repeats = name in known and isinstance(known[name], flags.MultiFlag)
    if name and not repeats:
      seen[name] = value
  return rest, pairs


def recipe(args: Sequence[str], known: flags.FlagValues) -> str | None:
  """Returns the value of `--config`, before the other flags are read."""

  def is_boolean(name: str) -> bool:
    return name in known and known[name].boolean

  given = [g.value for g in _given(args, is_boolean) if g.name == 'config']
  return given[-1] if given else None


def values(
  args: Sequence[str], known: flags.FlagValues, fields: Sequence[str]
) -> list[str]:
  """Returns FIELD=VALUE of the flags of some fields, which are not boolean."""

  def is_boolean(name: str) -> bool:
    return name in known and known[name].boolean

  return [
    f'{one.name.removeprefix(PREFIX)}={one.value}'
    for one in _given(args, is_boolean)
    if one.name.startswith(PREFIX) and one.name.removeprefix(PREFIX) in fields
  ]


def _given(
  args: Sequence[str], is_boolean: Callable[[str], bool]
) -> Iterator[_Given]:
  """Yields all flags with absl's syntax; other words have the name ''.

  Flags have the forms `--name=value` and `--name value`, and boolean flags also
  `--name` and `--noname`, with one dash or two. Between the words of a name,
  but not of a field's, `-` means `_`.
  """
  left = iter(args)
  for arg in left:
    match = re.match(r'--?([a-zA-Z][^=]*)(=?)(.*)', arg, re.DOTALL)
    if not match:
      yield _Given('', '', (arg,))
      continue
    name, sign, value = match.groups()
    if not name.removeprefix('no').startswith(PREFIX):
      name = name.replace('-', '_')
    words = (f'--{name}{sign}{value}',)
    if not sign and is_boolean(name):
      value = 'true'
    elif not sign and (
      name.startswith(f'no{PREFIX}')
      or (name.startswith('no') and is_boolean(name[2:]))
    ):
      name, value = name[2:], 'false'
    elif not sign:
      more = next(left, None)
      value = more or ''
      words = words if more is None else (*words, more)
    yield _Given(name, value, words)
