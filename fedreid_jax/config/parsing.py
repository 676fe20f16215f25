"""What stands after the colon of `--config`, and fields by their names."""

import ast
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ml_collections

from fedreid_jax import errors
from fedreid_jax.config import schema

ConfigDict = ml_collections.ConfigDict


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """Returns `{'data.height': 64, ...}`."""
  flat: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, ConfigDict | dict):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def hint(name: str, known: Collection[str]) -> str:
  """Returns what to do about a field there is not.

  Args:
    name: 'section.field', misspelt.
    known: full names of all fields.
  """
  section, _, last = name.rpartition('.')
  initials = ''.join(word[:1] for word in last.split('_'))
  words = {k: k.rpartition('.')[2] for k in known}
  own = {n: k for k, n in words.items() if k.rpartition('.')[0] == section}
  near = (
    [k for k, n in words.items() if n == last],
    [own[n] for n in own if n == initials],
    [own[n] for n in difflib.get_close_matches(last, own, 1)],
    difflib.get_close_matches(name, words, 1),
    [k for k, n in words.items() if n == initials],
  )
  found = ' or '.join(next(filter(None, near), []))
  return (
    f'did you mean {found}?' if found else 'see fedreid_jax/config/schema.py'
  )


def split(text: str, mark: str) -> list[str]:
  """Splits text at marks that are outside brackets and quotes."""
  parts, depth, quote = [''], 0, ''
  for letter in text:
    if quote:
      quote = '' if letter == quote else quote
    elif letter in '\'"':
      quote = letter
    else:
      depth += (letter in '([{') - (letter in ')]}')
    if letter == mark and not depth and not quote:
      parts.append('')
    else:
      parts[-1] += letter
  return parts


Preset = Callable[[Any], None]


def recipe(arg: str | None, config: Any, presets: Mapping[str, Preset]) -> Any:
  """Applies `PRESET[,key=value...]` to a recipe's configuration.

  Args:
    arg: what stands after the colon of `--config`, None for 'synthetic'.
    config: the recipe before its presets.
    presets: what each changes.

  Raises:
    ConfigError: for an unknown preset or field.
  """
  name, *pairs = split(arg or 'synthetic', ',')
  if name not in presets:
    raise errors.ConfigError(
      f'unknown preset {name!r}', '--config', f'one of {", ".join(presets)}'
    )
  presets[name](config)
  return change(config, pairs)


def take_argument(arg: str | None, name: str, default: str):
  """Takes a recipe's own argument out of `PRESET[,key=value...]`.

  Args:
    arg: what stands after the colon of `--config`, or None.
    name: of the argument.
    default: its value where it is not given.

  Returns:
    (the rest, its value).
  """
  kept, value = [], default
  # Fields of the same name have a dot: `noise.beta=` is no `noise=`.
  for part in split(arg, ',') if arg else []:
    if part.startswith(f'{name}='):
      value = part.partition('=')[2]
    else:
      kept.append(part)
  return ','.join(kept) or None, value


def from_json(saved: dict[str, Any], changes: Sequence[str], where: str) -> Any:
  """Returns the configuration of a saved run, with fields changed.

  Args:
    saved: what config.json holds.
    changes: KEY=VALUE pairs.
    where: that file.

  Raises:
    IntegrityError: for a field that is missing or not known.
    ConfigError: for a change of a field that does not exist, or another type.
  """
  config = schema.default()
  flat, known = flatten(saved), flatten(config)
  for what, keys in (
    ('has no', known.keys() - flat.keys()),
    ('has an unknown', flat.keys() - known.keys()),
  ):
    if keys:
      raise errors.IntegrityError(
        f'{what} {min(keys)}', where, 'restore it from a copy, or give --config'
      )
  for key, value in flat.items():
    _set(config, key, _tuples(value))
  return change(config, changes)


def _set(config: Any, key: str, value: Any) -> None:
  try:
    config.update_from_flattened_dict({key: value})
  except (TypeError, ValueError, OverflowError) as error:
    raise errors.ConfigError(f'{value!r}: {error}', key, 'mend it') from error


def _tuples(value: Any) -> Any:
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


def change(config: Any, pairs: Sequence[str]) -> Any:
  """Sets fields from KEY=VALUE pairs, values as Python literals or words.

  Raises:
    ConfigError: for a field that does not exist or another type.
  """
  for pair in pairs:
    key, sign, text = pair.partition('=')
    if not sign:
      raise errors.ConfigError(
        f'no field and value {key!r}', '--config', 'PRESET,key=value,...'
      )
    if key not in flatten(config):
      raise errors.ConfigError(
        f'unknown field {key!r}', '--config', hint(key, flatten(config))
      )
    try:
      value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
      value = text
    _set(config, key, value)
  return config
