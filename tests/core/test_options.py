"""Declarations of hyper-parameters, and the check of values."""

import dataclasses
from typing import Annotated, Any, Literal

import pytest

from fedreid_jax import errors
from fedreid_jax.core import options
from fedreid_jax.core.options import Checked, Range, Regex


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  mu: Annotated[float, Range(0, 2), 'weight'] = 0.5
  k: Annotated[int, Range(1), 'number'] = 4
  on: Annotated[bool, 'switch'] = False
  kind: Annotated[Literal['a', 'b'], 'choice'] = 'a'
  shares: Annotated[tuple[float, ...], Range(0), 'numbers'] = ()
  rules: Annotated[tuple[tuple[str, float], ...], Regex(), 'pairs'] = ()
  path: Annotated[str, Regex(1), 'expression'] = '(x)'
  few: Annotated[tuple[Literal['c', 'd'], ...], 'choices'] = ()


GROUP = __name__.rpartition('.')[2]


def test_fields_are_what_is_declared():
  found = {f.name: f for f in options.fields(Options)}
  assert list(found) == [f.name for f in dataclasses.fields(Options)]
  mu = options.Field('mu', float, 0.5, 'weight', Range(0, 2), None)
  assert found['mu'] == mu
  assert found['kind'].choices() == ('a', 'b')
  assert found['few'].choices() == ('c', 'd')
  assert found['mu'].choices() == ()
  assert found['path'].regex == Regex(1)


@pytest.mark.parametrize(
  'field, text',
  [
    ('mu', 'float, 0 to 2'),
    ('k', 'int from 1'),
    ('kind', 'a, b'),
    ('shares', 'tuple of float from 0'),
    ('rules', 'tuple of (str, float)'),
    ('few', 'tuple of c, d'),
  ],
)
def test_what_is_allowed_as_text(field, text):
  found = {f.name: f for f in options.fields(Options)}
  assert found[field].allowed() == text


@pytest.mark.parametrize(
  'values',
  [
    {'mu': 2},
    {'mu': 0.0, 'k': 10**6, 'on': True},
    {'kind': 'b', 'few': ('d', 'c')},
    {'shares': (0, 1.5), 'rules': (('x|y', 1),)},
  ],
)
def test_values_that_are_allowed(values):
  made = Options(**values)
  assert {n: getattr(made, n) for n in values} == values


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('mu', 2.1, 'out of range.*between 0 and 2'),
    ('mu', float('nan'), 'not finite'),
    ('mu', 1e39, 'not finite'),
    ('mu', True, 'truth value'),
    ('mu', '1', "'1' is text.*give a number"),
    ('k', 1.0, 'is a number.*give a whole number'),
    ('k', 0, 'out of range'),
    ('k', 2**31, '32 bits'),
    ('on', 1, 'a whole number.*give a truth value'),
    ('kind', 'c', "unknown choice 'c'.*one of a, b"),
    ('kind', 3, 'give text'),
    ('shares', (-1.0,), 'out of range'),
    ('shares', 1.0, 'give tuple'),
    ('rules', (('x', 1.0, 2.0),), 'does not have 2 parts'),
    ('rules', ('x',), 'does not have 2 parts'),
    ('rules', (('(', 1.0),), 'regular expression'),
    ('path', 'x', 'no group'),
    ('few', ('e',), "unknown choice 'e'"),
  ],
)
def test_values_that_are_refused(field, value, message):
  wrong: dict[str, Any] = {field: value}
  with pytest.raises(errors.ConfigError, match=message) as info:
    Options(**wrong)
  assert info.value.where == f'{GROUP}.{field}'


@pytest.mark.parametrize(
  'hint, default, message',
  [
    (float, 1.0, 'one line of meaning'),
    (Annotated[float, Range(0)], 1.0, 'one line of meaning'),
    (Annotated[float, 'x'], dataclasses.MISSING, 'default'),
    (Annotated[dict, 'x'], None, 'type'),
    (Annotated[Literal[1], 'x'], 1, 'type'),
  ],
)
def test_declarations_that_are_none(hint, default, message):
  spec = ('x', hint) if default is dataclasses.MISSING else ('x', hint, default)
  made = dataclasses.make_dataclass('Options', [spec])
  with pytest.raises(TypeError, match=message):
    options.fields(made)
