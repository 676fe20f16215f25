"""Groups and fields, with those of plug-ins, in the docs and in --help."""

import json
import subprocess
import sys

import commands
import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.config import (
  load,
  parsing,
  recipes,
  reference,
  schema,
  validation,
)
from fedreid_jax.core import options, plugins
from fedreid_jax.models import networks
from fedreid_jax.round import compose

RULE = """
import dataclasses
from typing import Annotated

import jax.numpy as jnp

from fedreid_jax.method.component import Component
from fedreid_jax.core.options import Checked, Range


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  lam: Annotated[float, Range(0), 'weight'] = 1.0


def make(options: Options = Options()) -> Component:
  return Component('my_rule', notice=f'lam is {options.lam}')
"""

OTHERS = """
import dataclasses
from typing import Annotated

import jax.numpy as jnp

from fedreid_jax.core.options import Checked, Range


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  size: Annotated[int, Range(1), 'size'] = 8


def make(*args):
  raise NotImplementedError


load = make
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
  """Returns the name of a component outside the package."""
  folder = tmp_path / 'somebodys'
  folder.mkdir()
  (folder / '__init__.py').write_text('')
  (folder / 'my_rule.py').write_text(RULE)
  (folder / 'fedprox.py').write_text(RULE + OTHERS)
  (folder / 'broken.py').write_text('1 / 0')
  (folder / 'my_net.py').write_text(OTHERS)
  (folder / 'my_source.py').write_text(OTHERS)
  monkeypatch.syspath_prepend(tmp_path)
  yield 'somebodys.my_rule'
  for name in [n for n in sys.modules if n.partition('.')[0] == 'somebodys']:
    del sys.modules[name]


def test_groups_are_of_all_built_in_components():
  found = schema.groups()
  assert {'', 'data', 'execution', 'dfh', 'snr'} <= found.keys()
  assert 'uniform' not in found  # has no hyper-parameters
  assert schema.default().dfh.lam == schema.fields()['dfh.lam'].default


def test_components_and_networks_have_different_names():
  assert not {*plugins.available(algorithms)} & {*networks.NETWORKS}
  assert schema.fields()['model.name'].choices() == networks.NETWORKS


def test_a_listed_plug_in_has_a_group(plugin):
  assert 'my_rule' not in schema.default()
  pairs = f'my_rule.lam=2,components=("fedpav","{plugin}")'
  config = recipes.recipe('dfh', f'smoke,{pairs}')
  assert config.my_rule.lam == 2.0
  validation.validate(config)
  made = compose.load(
    config.components, {'my_rule': dict(config.my_rule)}, algorithms
  )
  assert made[1].notice == 'lam is 2.0'


@pytest.mark.parametrize(
  'pair, message',
  [
    ('my_rule.lam=-1', 'out of range'),
    ('my_rule.lan=1', 'mean my_rule.lam'),
    ('my_rule.lam=x', 'give a number'),
  ],
)
def test_fields_of_a_plug_in_are_checked(plugin, pair, message):
  with pytest.raises(errors.ConfigError, match=message):
    recipes.recipe('dfh', f'smoke,components=("fedpav","{plugin}"),{pair}')


def test_fields_of_a_plug_in_that_is_not_listed(plugin):
  with pytest.raises(errors.ConfigError, match='unknown field'):
    recipes.recipe('dfh', 'smoke,my_rule.lam=1')


@pytest.mark.parametrize(
  'component, message',
  [
    ('somebodys.nothing', "no module 'somebodys.nothing'"),
    ('somebodys.fedprox', "have the group 'fedprox'"),
    ('dhf', 'did you mean dfh'),
    ('qqq', 'one of .*dfh'),
  ],
)
def test_components_that_are_none(plugin, component, message):
  with pytest.raises(errors.ConfigError, match=message):
    recipes.recipe('dfh', f'smoke,components=("fedpav","{component}")')


VERSION = 'data.source=synthetic_v2'  # as a saved run has one
OTHER_FIELDS = [('model.name', 'my_net'), ('data.source', 'my_source')]


@pytest.mark.parametrize('field, group', OTHER_FIELDS)
def test_networks_and_sources_have_groups(plugin, field, group):
  pairs = f'{group}.size=3,{field}=somebodys.{group}'
  if field not in VERSION:
    pairs = f'{VERSION},{pairs}'
  recipe = recipes.recipe('dfh', f'smoke,{pairs}')
  config = validation.validate(recipe)
  assert config.options[group].size == 3
  again = load.from_json(load.to_json(config), [], 'config.json')
  assert parsing.flatten(again) == parsing.flatten(config)
  values = {f'{group}.size': 4, field: f'somebodys.{group}'}
  assert load.load_config('dfh:smoke', values)[group].size == 4


@pytest.mark.parametrize('field, group', OTHER_FIELDS)
@pytest.mark.parametrize(
  'pairs, message',
  [
    ('{field}=xyz', '{field} — one of .* or a module outside the package'),
    ('{field}=somebodys.nothing', "no module 'somebodys.nothing'"),
    ('{field}=somebodys.fedprox', "have the group 'fedprox'"),
    ('{field}=somebodys.broken', 'cannot be imported: ZeroDivisionError'),
    ('{field}=somebodys.{group},{group}.size=0', 'out of range'),
    ('{field}=somebodys.{group},{group}.sise=1', 'mean {group}.size'),
  ],
)
def test_networks_and_sources_are_checked(plugin, field, group, pairs, message):
  pairs, message = (
    text.format(field=field, group=group) for text in (pairs, message)
  )
  with pytest.raises(errors.ConfigError, match=message):
    recipes.recipe('dfh', f'smoke,{pairs}')


def test_a_saved_run_with_a_plug_in(plugin):
  pairs = f'my_rule.lam=2,components=("fedpav","{plugin}")'
  config = recipes.recipe('dfh', f'smoke,{VERSION},{pairs}')
  saved = config.to_dict()
  again = load.from_json(saved, [], 'config.json')
  assert again == config
  del saved['my_rule']
  earlier = load.from_json(saved, [], 'config.json')
  assert (config.my_rule.lam, earlier.my_rule.lam) == (2, 1)


def test_fields_are_checked_in_python_too():
  from fedreid_jax.algorithms import dfh

  with pytest.raises(errors.ConfigError, match='out of range') as info:
    dfh.Options(lam=-1.0)
  assert info.value.where == 'dfh.lam'
  assert isinstance(dfh.Options(), options.Checked)


def test_fields_of_reporting_do_not_belong_to_a_run():
  assert schema.reporting() == {
    *('track', 'track_images', 'checkpoints_kept'),
    *('client_metrics', 'execution.store', 'execution.debug'),
  }
  plain, tracked = (recipes.recipe('dfh', 'smoke') for _ in range(2))
  tracked.track, tracked.track_images = ('csv', 'mlflow'), 0
  left = schema.identity(tracked)
  assert left.to_json() == schema.identity(plain).to_json()
  assert 'store' in plain.execution and 'store' not in left.execution
  top = {name for name in schema.reporting() if '.' not in name}
  assert {*plain} - {*left} == top
  assert tracked.track == ('csv', 'mlflow') and left.is_locked


def test_a_saved_configuration_needs_no_fields_of_reporting():
  config = recipes.recipe('dfh', f'smoke,{VERSION}')
  saved = json.loads(schema.identity(config).to_json_best_effort())
  assert load.from_json(saved, [], 'config.json') == config
  changed = load.from_json(saved, ['track=("csv",)'], 'config.json')
  assert changed.track == ('csv',)


@pytest.mark.slow
def test_the_check_of_every_recipe_starts_no_backend():
  script = """
from fedreid_jax.config import recipes, reference, validation
for name in recipes.names():
  validation.validate(recipes.recipe(name, 'smoke'))
reference.markdown()
from jax._src import xla_bridge
print([*xla_bridge._backends])
"""
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, timeout=120
  )
  assert (done.stdout, done.stderr) == ('[]\n', '')


def test_every_field_is_listed():
  text, table = '\n'.join(reference.entries()), reference.markdown()
  for name, field in schema.fields().items():
    assert f'  {name} = {field.default!r} ({field.allowed()})' in text
    assert field.meaning in text
    assert f'| `{name.rpartition(".")[2]}` | `' in table


def test_help_lists_fields():
  code, out, err = commands.launch('main', '--helpfull')
  assert (code, err) == (0, '')
  assert 'dfh.lam = 5.0 (float from 0)' in out and '--config' in out
