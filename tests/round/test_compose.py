import sys
import types

import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.method.component import (
  Component,
  ServerHooks,
  Transport,
)
from fedreid_jax.round import compose


def test_two_owners_of_a_single_owner_hook_are_named():
  for hook in compose.SINGLE_OWNER:
    a = Component('a', **{hook: '.*'})
    b = Component('b', **{hook: '.*'})
    with pytest.raises(
      errors.ConfigError, match=f"'a' and 'b' both fill '{hook}'"
    ):
      compose.check((a, b))


@pytest.mark.parametrize('named', ['b', 'transport'])
def test_conflicts_name_components_or_hooks(named):
  a = Component('a', conflicts=(named,))
  b = Component('b', transport=Transport())
  compose.check((a,))
  compose.check((a, Component('c', server=ServerHooks())))
  for parts in ((a, b), (b, a)):
    with pytest.raises(
      errors.ConfigError, match="'a' cannot be composed with 'b'"
    ):
      compose.check(parts)


def test_conflicts_name_fields_of_hooks():
  a = Component('a', conflicts=('transport.size',))
  compose.check((a, Component('b', transport=Transport())))
  compose.check((a, Component('b')))
  b = Component('b', transport=Transport(size=len))
  with pytest.raises(errors.ConfigError, match='cannot be composed with'):
    compose.check((a, b))


@pytest.mark.parametrize(
  'word, near',
  [
    ('needs_upload', 'did you mean needs_uploads'),
    ('server.recieve', 'did you mean server.receive'),
    ('secag', 'did you mean secagg'),
    ('xyz', 'see docs/algorithms.md'),
    ('server.size', 'did you mean server'),
  ],
)
def test_a_word_that_can_never_conflict_is_refused(word, near, monkeypatch):
  made = Component('own', '', conflicts=('transport', 'other', word))
  module = types.SimpleNamespace(make=lambda: made)
  monkeypatch.setitem(sys.modules, 'mine.own', module)
  other = types.SimpleNamespace(make=lambda: Component('other'))
  monkeypatch.setitem(sys.modules, 'mine.other', other)
  with pytest.raises(errors.ConfigError, match=f"{word}', which.*{near}"):
    compose.load(('mine.own', 'mine.other'), {}, algorithms)


def test_a_component_has_no_conflict_with_itself():
  compose.check((Component('a', conflicts=('a',)),))


def test_nobody_says_what_is_shared():
  with pytest.raises(errors.ConfigError, match='shared'):
    compose.shared_leaves((Component('a'),))


def test_unknown_component_lists_the_choices():
  with pytest.raises(errors.ConfigError, match='dhf.*dfh'):
    compose.load(('fedpav', 'dhf'), {}, algorithms)


def test_component_named_twice():
  with pytest.raises(errors.ConfigError, match='twice'):
    compose.load(('fedpav', 'fedpav'), {}, algorithms)


def test_arguments_reach_make():
  (fedpav,) = compose.load(
    ('fedpav',), {'fedpav': {'shared': 'params/backbone'}}, algorithms
  )
  assert compose.shared_leaves((fedpav,)) == 'params/backbone'
