"""Separates `--config.FIELD` flags from the flags that absl parses."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from fedreid_jax import errors
from fedreid_jax.config import parsing

PREFIX = 'config.'  # begins the name of every flag of a field


class _Given(NamedTuple):
  """One flag, and the words of the command line that it consists of."""

  name: str
  value: str
  words: tuple[str, ...]


def read(
  args: Sequence[str], known: flags.FlagValues, fields: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
  """Separates the flags of fields from the others.

  Args:
    args: arguments of the command line.
    known: all flags except `--config.FIELD`.
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
    # absl keeps the last of two values and says nothing about the first.
    if name in seen:
      raise errors.ConfigError(
        f'--{name} twice: {seen[name]!r} and {value!r}',
        'command line',
        'give it once',
      )
    # `DEFINE_multi_string` flags, such as --set, collect all their values.
    repeats = name in known and isinstance(known[name], flags.MultiFlag)
    if name and not repeats:
      seen[name] = value
  return rest, pairs


def recipe(args: Sequence[str], known: flags.FlagValues) -> str | None:
  """Returns the last value of `--config`, None without one."""

  # Fields count as not boolean: the recipe, which may bring plug-ins, decides
  # which fields exist, so none is known yet.
  def is_boolean(name: str) -> bool:
    return name in known and known[name].boolean

  given = [g.value for g in _given(args, is_boolean) if g.name == 'config']
  return given[-1] if given else None


def values(
  args: Sequence[str], known: flags.FlagValues, fields: Sequence[str]
) -> list[str]:
  """Returns FIELD=VALUE of the given fields, none of which is boolean."""

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

  A flag is `--name=value` or `--name value`, with one dash or two. A boolean
  flag can also be `--name` or `--noname`.
  """
  left = iter(args)
  for arg in left:
    # A name begins with a letter, so a negative number is no flag. DOTALL: a
    # value may contain line breaks.
    match = re.match(r'--?([a-zA-Z][^=]*)(=?)(.*)', arg, re.DOTALL)
    if not match:
      yield _Given('', '', (arg,))
      continue
    name, sign, value = match.groups()
    # `--dry-run` means `--dry_run`, but the name of a field is taken as it is.
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
      # The next word is the value even if it looks like a flag, as in absl.
      more = next(left, None)
      value = more or ''
      words = words if more is None else (*words, more)
    yield _Given(name, value, words)
