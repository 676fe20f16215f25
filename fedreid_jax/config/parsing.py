"""Parsing of presets and of overrides of fields.

One parser reads the overrides of `--config.FIELD=VALUE`, of
`--config=RECIPE:PRESET,FIELD=VALUE` and of `--set=FIELD=VALUE`.
"""

import ast
import contextlib
import difflib
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_origin

import ml_collections

from fedreid_jax import errors
from fedreid_jax.config import schema
from fedreid_jax.core import options, plugins

if TYPE_CHECKING:  # the import of all parts of a method takes a second
  from fedreid_jax.config.configuration import Config

ConfigDict = ml_collections.ConfigDict
Preset = Callable[[Any], None]
REFERENCE = 'see `fedreid list fields`'
PRESET = 'synthetic'  # if none is given


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """Returns `{'data.height': 64, ...}`."""
  flat: dict[str, Any] = {}
  for key, value in schema.editable(config).items():
    if isinstance(value, ConfigDict | dict):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def changed(config: 'Config | ConfigDict') -> dict[str, Any]:
  """Returns the fields that differ from their defaults, in order of names."""
  usual = _defaults()
  return {
    name: value
    for name, value in sorted(flatten(config).items())
    if name not in usual or usual[name] != value
  }


def digest(identity: object) -> str:
  """Eight hexadecimal digits of `repr(identity)`, for names of folders."""
  return hashlib.sha256(repr(identity).encode()).hexdigest()[:8]


@functools.cache
def _defaults() -> dict[str, Any]:
  return flatten(schema.default())


# Fields of earlier versions, and what does their work now.
REMOVED: Mapping[str, str] = {
  'execution.reduction': 'uploads are added wherever sums suffice',
  'model.variant': 'the component that changes the network is listed in '
  "components, as 'agw'",
}


def hint(name: str, known: Collection[str]) -> str:
  """Suggests a field for a name that is misspelt or of an earlier version."""
  if reason := REMOVED.get(name):
    return f'remove it: {reason}'
  section, _, last = name.rpartition('.')
  named = schema.fields(schema.evaluators_of_package())
  if name in named and name not in known:
    return f'list {section!r} in {plugins.EVALUATOR.field} first'
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
  return f'did you mean {found}?' if found else REFERENCE


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


class UnknownChoiceError(errors.ConfigError):
  """A preset or an option that a recipe does not have, with those it has."""

  def __init__(
    self,
    kind: str,
    value: str,
    presets: Mapping[str, Preset],
    choices: Mapping[str, Sequence[str]],
  ):
    self.presets, self.choices = presets, choices
    known = presets if kind == 'preset' else choices[kind]
    super().__init__(
      f'unknown {kind} {value!r}', '--config', errors.one_of(value, known)
    )


class Argument(NamedTuple):
  """The parsed text after the colon of `--config`."""

  preset: str
  options: Mapping[str, str]  # choices of the options of the recipe
  apply_preset: Preset
  pairs: Sequence[str]  # FIELD=VALUE, applied last

  def override(self, config: ConfigDict) -> Any:
    """Returns the configuration with the user's fields set.

    Raises:
      ConfigError: if a field is unknown or a value is not allowed.
    """
    return change(config, self.pairs)


def argument(
  text: str | None, presets: Mapping[str, Preset], **choices: Sequence[str]
) -> Argument:
  """Parses `[PRESET][,OPTION=CHOICE...][,FIELD=VALUE...]`.

  No text selects `PRESET`, and the first of `choices` is the
  default of an option of the recipe.

  Raises:
    UnknownChoiceError: if a preset or choice is unknown.
  """
  rest, chosen = [], {name: own[0] for name, own in choices.items()}
  # Fields of a group have a dot, so `noise.beta=` is not the option `noise=`.
  for part in split(text, ',') if text else []:
    name, sign, value = part.partition('=')
    if sign and name in chosen:
      chosen[name] = value
    else:
      rest.append(part)
  preset, *pairs = rest if rest and '=' not in rest[0] else [PRESET, *rest]
  for name, value, own in (
    ('preset', preset, presets),
    *((name, value, choices[name]) for name, value in chosen.items()),
  ):
    if value not in own:
      raise UnknownChoiceError(name, value, presets, choices)
  return Argument(preset, chosen, presets[preset], pairs)


def choices(field: str) -> tuple[str, ...]:
  """Returns the choices of a field of the package, first its default."""
  found = schema.fields()[field]
  return tuple(dict.fromkeys((found.default, *found.choices())))


def change(
  config: ConfigDict, pairs: Sequence[str], where: str = '--config'
) -> Any:
  """Sets fields of a configuration in place, and returns it.

  Args:
    pairs: FIELD=VALUE pairs; values are Python literals or words. FIELD+=VALUE
      appends a tuple to that of the field.
    where: source of the pairs, for messages.

  Raises:
    ConfigError: if a field is unknown or a value is not allowed.
  """
  texts = []
  for pair in pairs:
    key, sign, text = pair.partition('=')
    if not sign:
      raise errors.ConfigError(
        f'no field and value {key!r}', where, 'PRESET,key=value,...'
      )
    texts.append((key, text))
  # Names of plug-ins are set first, because other fields belong to plug-ins.
  for name, text in sorted(
    texts, key=lambda one: one[0].removesuffix('+') not in schema.PLUGGED
  ):
    key, known = name.removesuffix('+'), declarations(config)
    if key not in known:
      raise errors.ConfigError(
        f'unknown field {key!r}', where, hint(key, known)
      )
    value = _value(text, known[key].kind)
    if key != name:
      value = _longer(key, flatten(config)[key], value)
    assign(config, key, known[key], value)
    note_written(config, key)
  return schema.complete(config)


def check_once(pairs: Sequence[str], where: str) -> None:
  """Refuses a field that one list of FIELD=VALUE pairs sets twice.

  Raises:
    ConfigError: naming the field.
  """
  keys = [pair.partition('=')[0].strip() for pair in pairs if '=' in pair]
  for key in keys:
    if keys.count(key) > 1:
      raise errors.ConfigError(
        f'the field {key!r} has two values', where, 'give one value'
      )


def _longer(name: str, before: Any, more: Any) -> tuple[Any, ...]:
  if isinstance(before, tuple) and isinstance(more, tuple):
    return (*before, *more)
  raise errors.ConfigError(
    f'{more!r} cannot be appended to {before!r}',
    name,
    'append a tuple to a field that is one, or set the field with =',
  )


def note_written(config: Any, name: str) -> None:
  """Allows the conversion of colour images if a user has set its field.

  The conversion is refused if only a preset or a recipe has set it.
  """
  data = config.data
  kind = {
    'data.channels': 'grey' if data.channels == 'grey' else '',
    'data.invert': 'inverted' if data.invert else '',
  }.get(name)
  if kind and kind not in data.colour_as:
    data.colour_as = (*data.colour_as, kind)


def declarations(config: ConfigDict) -> dict[str, options.Field]:
  """Returns the declaration of every field that a configuration can have."""
  return schema.fields(schema.named(schema.complete(config)))


def assign(
  config: ConfigDict, name: str, field: options.Field, value: Any
) -> None:
  """Sets a field to a value, or raises a ConfigError if it is not allowed."""
  options.check(name, field, value)
  config.update_from_flattened_dict({name: value})


def _value(text: str, kind: Any) -> Any:
  # Words without quotes are no literals, and remain text.
  try:
    value = as_tuples(ast.literal_eval(text.strip()))
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    value = text
  is_text = kind is str or get_origin(kind) is Literal
  # A text field keeps '1' or 'None' as it was written.
  if is_text and not isinstance(value, str):
    return text
  if kind is float and isinstance(value, str):
    with contextlib.suppress(ValueError):
      return float(value)  # 'nan' and 'inf', which are rejected later
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  return value


def as_tuples(value: Any) -> Any:
  """Returns a value with tuples instead of lists, also inside it."""
  if isinstance(value, list | tuple):
    return tuple(map(as_tuples, value))
  return value
