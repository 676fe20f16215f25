"""Flags that would be taken in silence: given twice, or of no field."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.config import parsing

PREFIX = 'config.'  # of the flags of fields


def check(
  args: Sequence[str], known: flags.FlagValues, fields: Mapping[str, Any]
) -> None:
  """Refuses a flag that is given twice, or that names a field there is not.

  Args:
    args: of the command line.
    known: flags, but those of fields, `--config.FIELD`.
    fields: full names of the fields of a configuration, with their defaults.

  Raises:
    ConfigError: naming both values, or the nearest field.
  """

  def is_boolean(name: str) -> bool:
    if name in known:
      return known[name].boolean
    return isinstance(fields.get(name.removeprefix(PREFIX)), bool)

  seen: dict[str, str] = {}
  sections = {field.rpartition('.')[0] for field in fields}
  for name, value in _given(args, is_boolean):
    field = name.removeprefix(PREFIX)
    if field != name and field not in {*fields, *sections}:
      raise errors.ConfigError(
        f'unknown field {field!r}', f'--{name}', parsing.hint(field, fields)
      )
    if name in seen:
      raise errors.ConfigError(
        f'--{name} twice: {seen[name]!r} and {value!r}',
        'command line',
        'give it once',
      )
    if not (name in known and isinstance(known[name], flags.MultiFlag)):
      seen[name] = value


def _given(
  args: Sequence[str], is_boolean: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
  """Yields name and value of every flag, read as absl reads them.

  They are `--name=value`, `--name value`, and of what is true or false `--name`
  and `--noname`, with one dash or two.
  """
  left = iter(args)
  for arg in left:
    match = re.match(r'--?([a-zA-Z][^=]*)(=?)(.*)', arg, re.DOTALL)
    if not match:
      continue
    name, sign, value = match.groups()
    if not sign and is_boolean(name):
      value = 'true'
    elif not sign and (
      name.startswith(f'no{PREFIX}')
      or (name.startswith('no') and is_boolean(name[2:]))
    ):
      name, value = name[2:], 'false'
    elif not sign:
      value = next(left, '')
    yield name, value
