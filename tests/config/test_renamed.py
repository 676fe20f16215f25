"""Names of version 0.1 are errors with the present name."""

import json

import pytest

from fedreid_jax import errors
from fedreid_jax.config import load, recipes, renamed, schema, validation


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


def test_a_run_of_version_0_1_is_refused():
  saved = json.loads(recipes.recipe('dfh', 'smoke').to_json_best_effort())
  saved['data']['world'] = saved['data'].pop('source')
  with pytest.raises(errors.IntegrityError, match=r'data\.world.* 0\.1'):
    load.from_json(saved, [], 'config.json')


def test_a_run_of_today_must_be_whole():
  saved = json.loads(recipes.recipe('dfh', 'smoke').to_json_best_effort())
  del saved['data']['resample']
  with pytest.raises(errors.IntegrityError, match='has no data.resample'):
    load.from_json(saved, [], 'config.json')
  saved = json.loads(recipes.recipe('dfh', 'smoke').to_json_best_effort())
  saved['unknown'] = 1
  with pytest.raises(errors.IntegrityError, match='unknown'):
    load.from_json(saved, [], 'config.json')


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
