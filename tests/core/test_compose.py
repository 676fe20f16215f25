import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.core import compose
from fedreid_jax.core.component import Component


def test_two_owners_of_an_exclusive_slot_are_named():
  for slot in compose.EXCLUSIVE:
    a = Component('a', **{slot: '.*'})
    b = Component('b', **{slot: '.*'})
    with pytest.raises(
      errors.ConfigError, match=f"'a' and 'b' both own '{slot}'"
    ):
      compose.owner((a, b), slot)


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
