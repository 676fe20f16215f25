"""Names of the first edition: errors, and runs that were saved then."""

import json

import pytest

from fedreid_jax import errors
from fedreid_jax.config import (
  parsing,
  recipes,
  renamed,
  saved_config,
  schema,
  validation,
)

OLD = {new: old for old, new in renamed.FIELDS.items()}
LATER = ('data.resample', 'data.max_pixels', 'evaluation.batch_stats')


def test_new_names_exist():
  fields = schema.fields()
  assert {*renamed.FIELDS.values()} <= fields.keys()
  assert not renamed.FIELDS.keys() & fields.keys()
  for field, values in renamed.VALUES.items():
    assert {*values.values()} <= {*fields[field].choices()}
    assert not values.keys() & {*fields[field].choices()}
  assert {*renamed.COMPONENTS.values()} <= {*schema.groups()}


@pytest.mark.parametrize(
  'pair, new',
  [
    *((f'{old}=1', new) for old, new in renamed.FIELDS.items()),
    ('data.client_split=ci', "'camera_independent'"),
    ('augment.copies=gray', "'grey'"),
    ('cdw.batch=shared', "'public'"),
    ('components=("fedpav","cc")', "'client_clustering'"),
  ],
)
def test_an_old_name_in_text(pair, new):
  with pytest.raises(errors.ConfigError, match=f'renamed to {new}'):
    recipes.recipe('fedpav', f'smoke,{pair}')


def test_an_old_name_in_a_configuration():
  config = schema.default()
  with config.unlocked():
    config.bn_buffers = 'average'
  with pytest.raises(errors.ConfigError, match='renamed to batch_stats_rule'):
    validation.validate(config)
  config = schema.default()
  config.components = ('fedpav', 'expert')
  with pytest.raises(errors.ConfigError, match="renamed to 'local_expert'"):
    validation.validate(config)
  config = schema.default()
  config.data.client_split = 'es'
  with pytest.raises(errors.ConfigError, match="renamed to 'entity_shared'"):
    validation.validate(config)


@pytest.mark.parametrize(
  'line, new',
  [
    ("c.data.world = 'folder'", 'data.source'),
    ('c.expert.frozen = True', 'local_expert'),
    ('c.optim.ramp = True', 'optim.schedule_per_step'),
  ],
)
def test_an_old_name_in_a_recipe(tmp_path, line, new):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from fedreid_jax.config import schema\n'
    f'def get_config(arg=None):\n  c = schema.default()\n  {line}\n  return c\n'
  )
  with pytest.raises(errors.ConfigError, match=f'renamed to {new}'):
    recipes.recipe(str(path))


def first_edition(arg, recipe='dfh', **changes):
  """Returns a recipe as a run of the first edition has saved it."""
  flat = parsing.flatten(
    json.loads(recipes.recipe(recipe, arg).to_json_best_effort())
  )
  saved: dict = {}
  for name, value in (flat | changes).items():
    if name in LATER or name == 'dfh.space':
      continue
    group, _, last = OLD.get(name, name).rpartition('.')
    (saved.setdefault(group, {}) if group else saved)[last] = value
  return saved


@pytest.mark.parametrize('space', ['f', 'b'])
def test_a_run_of_the_first_edition_is_translated(space):
  arg = f'smoke,space={space}'
  found = saved_config.from_json(
    first_edition(arg), ['rounds=7'], 'config.json'
  )
  assert found.rounds == 7
  found.rounds = 2
  assert found == recipes.recipe('dfh', f'{arg},data.source=synthetic_v1')


def test_old_values_of_a_saved_run_are_translated():
  saved = first_edition(
    'smoke',
    recipe='fedpav_cc',
    **{
      'data.client_split': 'ei',
      'augment.channel_kinds': 'gray',
      'cdw.batch': 'shared',
      'components': ['fedpav', 'cc'],
    },
  )
  found = saved_config.from_json(saved, [], 'config.json')
  assert found.components == ('fedpav', 'client_clustering')
  assert found.data.client_split == 'entity_independent'
  assert (found.augment.channel_kinds, found.cdw.batch) == ('grey', 'public')


def test_a_run_of_today_must_be_whole():
  saved = json.loads(recipes.recipe('dfh', 'smoke').to_json_best_effort())
  del saved['data']['resample']
  with pytest.raises(errors.IntegrityError, match='has no data.resample'):
    saved_config.from_json(saved, [], 'config.json')
  saved = first_edition('smoke') | {'unknown': 1}
  with pytest.raises(errors.IntegrityError, match='unknown'):
    saved_config.from_json(saved, [], 'config.json')


@pytest.mark.parametrize(
  'old, new',
  [
    ('p0/table1', 'dfh/table1'),
    ('p2/table3', 'fedreidbench_journal/table3'),
    ('p9/table1', None),
    ('dfh/table1', None),
    ('', None),
  ],
)
def test_tables(old, new):
  assert renamed.table(old) == new
