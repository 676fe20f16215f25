"""Names of components: built in, dotted, and entry points."""

import importlib.metadata

import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.core import plugins


@pytest.fixture
def installed(monkeypatch):
  point = importlib.metadata.EntryPoint(
    'tilted', 'mypkg.rules.tilt', plugins.COMPONENT.group
  )
  monkeypatch.setattr(importlib.metadata, 'entry_points', lambda group: [point])
  plugins.entry_points.cache_clear()
  yield
  plugins.entry_points.cache_clear()


@pytest.mark.parametrize(
  'component, module, group',
  [
    ('dfh', 'fedreid_jax.algorithms.dfh', 'dfh'),
    ('mypkg.my_rule', 'mypkg.my_rule', 'my_rule'),
    ('tilted', 'mypkg.rules.tilt', 'tilted'),
  ],
)
def test_modules_and_groups(installed, component, module, group):
  assert plugins.full_name(component, plugins.COMPONENT, algorithms) == module
  assert plugins.group_of(component) == group


@pytest.mark.parametrize('component', ['', 'a b', 'a..b', '../x'])
def test_names_of_nothing(installed, component):
  with pytest.raises(errors.ConfigError, match='one of .*dfh.*tilted'):
    plugins.full_name(component, plugins.COMPONENT, algorithms)


def test_the_nearest_name_is_offered(installed):
  with pytest.raises(errors.ConfigError, match='did you mean tilted'):
    plugins.full_name('titled', plugins.COMPONENT, algorithms)
