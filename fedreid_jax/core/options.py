"""Declarations of hyper-parameters, and checks of their values.

A component declares its hyper-parameters in a frozen dataclass next to `make`:

  @dataclasses.dataclass(frozen=True)
  class Options(options.Checked):
    '''Hyper-parameters of FedProx.'''

    mu: Annotated[float, Range(0), 'weight of the proximal term'] = 0.01

Types are `bool`, `int`, `float`, `str`, a `Literal` of strings, and tuples of
them (`tuple[float, ...]`, `tuple[tuple[str, float], ...]`). In a tuple, a range
applies to every number. A field that may name plug-ins has the type
`Literal[...] | str` and a `Plugin` beside it.
"""

import dataclasses
import enum
import functools
import math
import typing
from typing import Annotated, Any, Literal, NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.core.patterns import Pattern
from fedreid_jax.core.plugins import Plugin

# Values become int32 and float32 on a device; larger ones would overflow.
INT32, FLOAT32 = 2**31 - 1, 3.4e38
# Names of Python types in messages to users.
WORDS = {
  'str': 'text',
  'int': 'a whole number',
  'float': 'a number',
  'bool': 'a truth value, True or False',
  'tuple': 'a list in parentheses',
  'NoneType': 'nothing',
}


class Range(NamedTuple):
  """The allowed numbers of a field, including both ends."""

  low: float
  high: float = math.inf


class Regex(NamedTuple):
  """Marks the text of a field as a regular expression.

  Attributes:
    groups: minimum number of groups in the expression.
    words: values with another meaning, which are not regular expressions.
  """

  groups: int = 0
  words: tuple[str, ...] = ()


class Earlier(NamedTuple):
  """The value of a field in runs that were saved before the field existed.

  Fields without it had the value that is their default.
  """

  value: Any


class Mark(enum.Enum):
  """Properties of a field that other modules ask for.

  REPORTING: the field changes where results are written, and no result by more
    than roundings. It is not written to `config.json`, and a run may be resumed
    with another value.
  STRENGTH: a larger value makes the updates of the model larger. The advice
    for a run that diverges is to lower it.
  PER_RUN: a value other than the default chooses the noise from the number of
    rounds, so that a longer run differs from the first round on.
  PRETRAINED: the field leaves a network as it starts, or is meant for a trained
    one. A run whose weights are random warns of it.
  LATER: runs from before the field belong to its default, with which it is not
    written to `config.json` and names no other run.
  """

  REPORTING = enum.auto()
  STRENGTH = enum.auto()
  PER_RUN = enum.auto()
  PRETRAINED = enum.auto()
  LATER = enum.auto()


class Field(NamedTuple):
  """The declaration of a hyper-parameter.

  Attributes:
    name: name within its group.
    kind: type, without the metadata of `Annotated`.
    default: default value.
    meaning: description for users in one line.
    range: range of its numbers, or None.
    regex: marker of a regular expression, or None.
    plugin: kind of the plug-ins that the field may name, or None.
    marks: properties of the field.
    earlier: value in runs from before the field, None: its default.
  """

  name: str
  kind: Any
  default: Any
  meaning: str
  range: Range | None
  regex: Regex | None
  plugin: Plugin | None = None
  marks: frozenset[Mark] = frozenset()
  earlier: Earlier | None = None

  def element(self) -> Any:
    """Returns the first type inside a tuple, else the field's type."""
    return _arguments(self.kind)[0] if _is_tuple(self.kind) else self.kind

  def choices(self) -> tuple[str, ...]:
    """Returns the choices of a `Literal` of the field or of its elements.

    A field of another type has none, ().
    """
    kind = self.element()
    return _arguments(kind) if typing.get_origin(kind) is Literal else ()

  def allowed(self) -> str:
    """Returns a description of the allowed values for users."""
    element = self.element()
    if self.choices():
      text = ', '.join(choice or "''" for choice in self.choices())
      text += ', or a plug-in' if self.plugin else ''
    elif _is_tuple(element):
      text = f'({", ".join(kind.__name__ for kind in _arguments(element))})'
    else:
      text = element.__name__
    if self.range:
      low, high = (f'{end:.10g}' for end in self.range)
      text += f' from {low}' if high == 'inf' else f', {low} to {high}'
    return f'tuple of {text}' if _is_tuple(self.kind) else text


class Checked:
  """Base class of declarations; it checks the values of every instance."""

  def __post_init__(self) -> None:
    # The fields of a component are a group with the name of its module.
    group = type(self).__module__.rpartition('.')[2]
    for field in fields(type(self)):
      check(f'{group}.{field.name}', field, getattr(self, field.name))


def is_default(group: Any) -> bool:
  """Returns whether all fields of a group have their defaults."""
  return group == type(group)()


# Types of fields that many groups have.
Natural = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
SEED = Range(0, 2**31 - 1)
PIXELS = Range(8, 4096)


@functools.cache
def fields(declaration: type) -> tuple[Field, ...]:
  """Returns the fields of a declaration, in order.

  Raises:
    TypeError: if a field has no default, no meaning or an unknown type.
  """
  hints = typing.get_type_hints(declaration, include_extras=True)
  return tuple(
    _field(one, hints[one.name])
    for one in dataclasses.fields(typing.cast(Any, declaration))
  )


def _field(one: dataclasses.Field[Any], hint: Any) -> Field:
  annotated = typing.get_origin(hint) is Annotated
  kind, *extras = typing.get_args(hint) if annotated else (hint,)
  kind = _without_names(kind)
  meanings = [extra for extra in extras if isinstance(extra, str)]
  if len(meanings) != 1 or one.default is dataclasses.MISSING:
    raise TypeError(f'{one.name} needs a default and one line of meaning')
  if not _known(kind):
    raise TypeError(f'{one.name} has a type that no field can have: {kind}')
  return Field(
    one.name,
    kind,
    one.default,
    meanings[0],
    next((extra for extra in extras if isinstance(extra, Range)), None),
    next((extra for extra in extras if isinstance(extra, Regex)), None),
    next((extra for extra in extras if isinstance(extra, Plugin)), None),
    frozenset(extra for extra in extras if isinstance(extra, Mark)),
    next((extra for extra in extras if isinstance(extra, Earlier)), None),
  )


def check(where: str, field: Field, value: Any) -> None:
  """Checks that a value is allowed in a field.

  Raises:
    ConfigError: if the value is not allowed; the message has the field, the
      value and the allowed values.
  """
  _check(where, field, field.kind, value)


def _check(where: str, field: Field, kind: Any, value: Any) -> None:
  if _is_tuple(kind):
    parts = _parts(where, field, value)
    kinds = _arguments(kind)
    # `tuple[kind, ...]` has one kind for any number of parts.
    if kinds[-1] is Ellipsis:
      kinds = kinds[:1] * len(parts)
    if len(kinds) != len(parts):
      raise errors.ConfigError(
        f'{value!r} does not have {len(kinds)} parts',
        where,
        f'give {field.allowed()}',
      )
    for part, own in zip(parts, kinds, strict=True):
      if _is_tuple(own) and not isinstance(part, tuple):
        raise errors.ConfigError(
          f'{part!r} does not have {len(_arguments(own))} parts',
          where,
          f'give {field.allowed()}',
        )
      _check(where, field, own, part)
  elif typing.get_origin(kind) is Literal:
    _check_type(where, str, value)
    choices = _arguments(kind)
    if value not in choices and field.plugin:
      plugins.module_of(value, field.plugin, choices)
    elif value not in choices:
      raise errors.ConfigError(
        f'unknown choice {value!r}',
        where,
        errors.one_of(value, [choice or repr(choice) for choice in choices]),
      )
  else:
    _check_type(where, kind, value)
    if kind in (int, float):
      _check_number(where, field.range, value)
    elif field.regex and value not in field.regex.words:
      if Pattern(value, where).groups < field.regex.groups:
        raise errors.ConfigError(
          f'{value!r} has no group',
          where,
          'put parentheses around the part to extract',
        )


def _parts(where: str, field: Field, value: Any) -> tuple[Any, ...]:
  if not isinstance(value, tuple):
    _refuse_type(where, value, field.allowed())
  return value


def _check_type(where: str, kind: type, value: Any) -> None:
  kinds = (float, int) if kind is float else (kind,)
  # A bool is an int in Python, and must not pass for a number.
  is_bool = isinstance(value, bool) and kind is not bool
  if is_bool or not isinstance(value, kinds):
    _refuse_type(where, value, kind.__name__)


def _refuse_type(where: str, value: Any, kind: str) -> typing.NoReturn:
  # Python cannot format integers of 5000 digits.
  if isinstance(value, int) and abs(value) > INT32:
    value = 'a whole number of more than 32 bits'
  found = WORDS.get(type(value).__name__, type(value).__name__)
  raise errors.ConfigError(
    f'{value!r} is {found}', where, f'give {WORDS.get(kind, kind)}'
  )


def _check_number(where: str, within: Range | None, value: Any) -> None:
  # This check precedes messages with the value, because Python cannot format
  # integers of 5000 digits.
  if isinstance(value, int) and abs(value) > INT32:
    raise errors.ConfigError(
      'a whole number of more than 32 bits', where, f'at most {INT32}'
    )
  # The negated comparison also refuses nan, for which both orders are false.
  if isinstance(value, float) and not abs(value) <= FLOAT32:
    raise errors.ConfigError(
      f'{value} is not finite in float32', where, 'give a smaller number'
    )
  if within and not within.low <= value <= within.high:
    raise errors.ConfigError(
      f'{value} is out of range',
      where,
      f'between {within.low:g} and {within.high:g}',
    )


def _without_names(kind: Any) -> Any:
  """The `Literal` of `Literal[...] | str`, whose `str` is for plug-ins."""
  if _is_tuple(kind):
    return tuple[tuple(map(_without_names, _arguments(kind)))]
  if typing.get_origin(kind) is typing.Union:
    return next(one for one in _arguments(kind) if one is not str)
  return kind


def _arguments(kind: Any) -> tuple[Any, ...]:
  return typing.get_args(kind)


def _is_tuple(kind: Any) -> bool:
  return typing.get_origin(kind) is tuple


def _known(kind: Any) -> bool:
  if _is_tuple(kind):
    return all(one is Ellipsis or _known(one) for one in _arguments(kind))
  if typing.get_origin(kind) is Literal:
    return all(isinstance(choice, str) for choice in _arguments(kind))
  return kind in (bool, int, float, str)
