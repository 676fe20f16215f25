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
  cached = plugins.entry_points, plugins._installed
  for one in cached:
    one.cache_clear()
  yield
  for one in cached:
    one.cache_clear()


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


def test_modules_that_only_a_file_names_are_refused(installed):
  for name in ('evil', 'json.evil', 'tilted', 'mypkg.rules.tilt'):
    with pytest.raises(errors.ConfigError, match='runs its code') as info:
      plugins.check_saved(name, plugins.COMPONENT, 'w/config.json')
    assert info.value.where == 'w/config.json'
  plugins.check_saved('json.decoder', plugins.COMPONENT, '')  # imported


def test_names_that_the_user_gives_are_allowed(installed, monkeypatch):
  monkeypatch.setattr(plugins, '_allowed', set())
  plugins.allow('evil.rule')
  plugins.check_saved('evil.rule', plugins.NETWORK, '')


def test_entry_points_are_installed_only_in_folders_of_packages(
  tmp_path, monkeypatch
):
  for folder in ('here', 'packages'):
    about = tmp_path / folder / f'{folder}-1.dist-info'
    about.mkdir(parents=True)
    (about / 'METADATA').write_text(f'Name: {folder}\nVersion: 1\n')
    group = plugins.COMPONENT.group
    text = f'[{group}]\nof_{folder} = {folder}_pkg.rule\n'
    (about / 'entry_points.txt').write_text(text)
    monkeypatch.syspath_prepend(tmp_path / folder)
  packages = str(tmp_path / 'packages')
  monkeypatch.setattr(plugins.site, 'getsitepackages', lambda: [packages])
  for cached in (plugins.entry_points, plugins._installed):
    cached.cache_clear()
  try:
    plugins.check_saved('of_packages', plugins.COMPONENT, '')
    plugins.check_saved('packages_pkg.rule', plugins.COMPONENT, '')
    with pytest.raises(errors.ConfigError, match='here_pkg'):
      plugins.check_saved('of_here', plugins.COMPONENT, '')
  finally:
    for cached in (plugins.entry_points, plugins._installed):
      cached.cache_clear()


@pytest.mark.parametrize('component', ['', 'a b', 'a..b', '../x'])
def test_names_of_nothing(installed, component):
  with pytest.raises(errors.ConfigError, match='one of .*dfh.*tilted'):
    plugins.full_name(component, plugins.COMPONENT, algorithms)


def test_the_nearest_name_is_offered(installed):
  with pytest.raises(errors.ConfigError, match='did you mean tilted'):
    plugins.full_name('titled', plugins.COMPONENT, algorithms)
