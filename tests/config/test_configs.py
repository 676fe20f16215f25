import json

import pytest
from ml_collections import ConfigDict

from fedreid_jax import errors
from fedreid_jax.config import load, parsing, recipes, schema, validation
from fedreid_jax.core import options
from fedreid_jax.data.synthetic import versions


def test_defaults_of_dfh_are_the_papers():
  config = recipes.recipe('dfh')
  assert config.dfh.lam == 5.0 and config.dfh.alpha == (1.0,)
  assert config.loss.margin == 0.5 == config.dfh.margin
  assert config.optim.momentum == 0.9 and config.optim.weight_decay == 5e-4
  assert config.components == ('fedpav', 'dfh')
  augment = recipes.recipe('dfh', 'paper').augment
  assert (augment.erase, augment.erase_tries) == (0.5, 100)


def test_every_field_has_a_meaning_and_a_default_it_may_hold():
  fields = schema.fields()
  assert fields.keys() == parsing.flatten(schema.default()).keys()
  for name, field in fields.items():
    assert 0 < len(field.meaning) and '\n' not in field.meaning
    options.check(name, field, field.default)
    if field.kind is float:  # else the configuration would take integers only
      assert isinstance(field.default, float), name


def test_pairs_after_the_preset_change_fields():
  config = recipes.recipe(
    'dfh', 'smoke,rounds=7,data.targets=("park",),seed=3,dfh.alpha=(1.0,2.0)'
  )
  assert (config.rounds, config.data.targets, config.seed) == (7, ('park',), 3)


@pytest.mark.parametrize(
  'arg, message',
  [
    ('papr', 'unknown preset'),
    ('smoke,rouns=3', 'unknown field.*mean rounds'),
    ('smoke,optim.learing_rate=3', 'mean optim.lr\\?'),
    ('smoke,rounds', "no field and value 'rounds'"),
    ('smoke,rounds=many', 'rounds'),
  ],
)
def test_bad_arguments_of_a_recipe(arg, message):
  with pytest.raises(errors.ConfigError, match=message):
    recipes.recipe('dfh', arg)


def broken(**changes):
  config = recipes.recipe('dfh', 'smoke')
  with config.unlocked(), config.ignore_type():
    for key, value in changes.items():
      config.update_from_flattened_dict({key.replace('__', '.'): value})
  return config


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('optim__lr', float('nan'), 'not finite'),
    ('optim__lr', float('inf'), 'not finite'),
    ('optim__lr', -1.0, 'out of range'),
    ('optim__lr', 1e39, 'not finite'),
    ('rounds', 10**20, '32 bits'),
    ('rounds', 2**31, '32 bits'),
    pytest.param('rounds', 10**5000, '32 bits', id='no text'),
    ('model__features', (10**20,), '32 bits'),
    ('rounds', 0, 'out of range'),
    ('rounds', -3, 'out of range'),
    ('rounds', True, 'truth value'),
    ('rounds', '3', "'3' is text"),
    ('rounds', None, 'None is nothing'),
    ('fraction', 0.0, 'out of range'),
    ('fraction', 1.5, 'out of range'),
    ('optim__momentum', 1.0, 'out of range'),
    ('augment__flip', 1.1, 'out of range'),
    ('loss__margin', -0.1, 'out of range'),
    ('model__name', 'resnet5', 'unknown network'),
    ('batch_stats_rule', 'avg', 'unknown choice'),
    ('name', '', 'name'),
    ('name', '../x', 'name'),
    ('components', (), 'no component'),
    ('local__batch', 30, 'multiple'),
    ('execution__width', 4, 'deterministic'),
    ('data__std', (0.0, 1.0, 1.0), 'std'),
    ('data__mean', (0.0,), 'means'),
    ('evaluation__ranks', (), 'ranks'),
    ('data__mean', (float('nan'),) * 3, 'not finite'),
    ('optim__points', (1, 2), 'parts'),
    ('optim__milestones', ('a',), "'a' is text"),
    ('optim__lr_multipliers', (('(', 1.0),), 'regular expression'),
    ('data__identity_pattern', 'p.*', 'no group'),
    ('data__identity_pattern', '', 'no group'),
    ('data__camera_pattern', 'automatic', 'no group'),
    ('model__features', ('a',), "'a' is text"),
    ('evaluation__ranks', ('a',), "'a' is text"),
    ('dfh__alpha', (1.0, 'x'), "'x' is text"),
  ],
)
def test_values_that_cannot_run(field, value, message):
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(broken(**{field: value}))


def test_unknown_field_in_a_file_names_the_near_one():
  config = recipes.recipe('dfh', 'smoke')
  with config.unlocked():
    config.optim.momentun = 0.5
  message = 'optim.momentun.*mean optim.momentum'
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


def test_sub_configuration_replaced_without_its_fields():
  config = recipes.recipe('dfh', 'smoke')
  with config.unlocked():
    config.optim = ConfigDict({'lr': 0.1})
  with pytest.raises(errors.ConfigError, match='missing.*optim.gamma'):
    validation.validate(config)


def test_a_misspelt_field_cannot_be_set():
  config = recipes.recipe('dfh', 'smoke')
  with pytest.raises(AttributeError, match='learing_rate'):
    config.optim.learing_rate = 1.0


def saved(**sections):
  return load.to_json(recipes.recipe('dfh', 'smoke')) | sections


def test_a_saved_configuration_is_read_with_changes():
  config = load.from_json(saved(), ['rounds=7'], 'config.json')
  assert config.rounds == 7 and config.components == ('fedpav', 'dfh')
  config.rounds = 2
  recipe = recipes.recipe('dfh', 'smoke')
  recipe.data.source = versions.NEWEST
  assert config == recipe


@pytest.mark.parametrize('source', versions.NAMES)
def test_a_saved_configuration_keeps_its_world(source):
  """What a run of this version saves has a version, 'synthetic' has none."""
  recipe = recipes.recipe('dfh', f'smoke,data.source={source}')
  assert recipe.data.source == source
  written = load.to_json(recipe)
  assert written['data']['source'] == versions.resolve(source)
  for _ in range(2):
    again = load.from_json(written, [], 'config.json')
    assert again.data.source == versions.resolve(source)
    assert load.to_json(again) == written
  earlier = json.loads(recipe.to_json_best_effort())
  config = load.from_json(earlier, [], 'config.json')
  first = source == versions.UNVERSIONED
  assert config.data.source == (versions.FIRST if first else source)


def test_a_changed_source_of_a_saved_run_is_that_of_a_recipe():
  earlier = json.loads(recipes.recipe('dfh', 'smoke').to_json_best_effort())
  changes = ['data.source=synthetic']
  config = load.from_json(earlier, changes, 'config.json')
  assert versions.resolve(config.data.source) == versions.NEWEST


@pytest.mark.parametrize('arg', ['synthetic', 'omniglot', 'photos'])
def test_earlier_runs_did_what_they_say_and_lack_later_methods(arg):
  recipe = recipes.recipe('dfh', arg)
  earlier = json.loads(recipe.to_json_best_effort())
  del earlier['data']['held_out'], earlier['data']['colour_as']
  del earlier['data']['unlabelled']
  del earlier['caj'], earlier['osnet']
  del earlier['evaluation']['camera_norm']
  del earlier['evaluation']['moments_batch']
  del earlier['model']['tune'], earlier['vit']['prompts']
  config = load.from_json(earlier, [], 'config.json')
  converted = ('grey', 'inverted') if arg == 'omniglot' else ()
  assert config.data.colour_as == converted
  recipe.data.colour_as, recipe.data.held_out = converted, 0.0
  recipe.data.source = versions.of_file(recipe.data.source)
  assert config == recipe
  named = {**earlier, 'model': {**earlier['model'], 'name': 'osnet'}}
  del named['optim']['gamma'], named['privacy']
  config, default = load.from_json(named, [], 'config.json'), schema.default()
  assert config.osnet == default.osnet
  assert config.optim.gamma == default.optim.gamma
  assert (config.privacy.secret, default.privacy.secret) == ('seed', 'system')


@pytest.mark.parametrize(
  'recipe, variant, components',
  [
    ('agw', 'agw', ('fedavg',)),
    ('snr:smoke,loss=entropy', 'snr_entropy', ('fedpav', 'snr')),
    ('fedpav+mixstyle', 'mixstyle', ('fedpav',)),
    ('fedpav', 'plain', ('fedpav',)),
  ],
)
def test_the_variant_of_an_earlier_run_is_a_component(
  recipe, variant, components
):
  now = recipes.recipe(recipe)
  earlier = load.to_json(now) | {'components': list(components)}
  earlier['model']['variant'] = variant
  config = load.from_json(earlier, [], 'config.json')
  assert config.components == now.components and config.snr == now.snr
  earlier['model']['variant'] = 'unheard_of'
  with pytest.raises(errors.IntegrityError, match='unknown model.variant'):
    load.from_json(earlier, [], 'config.json')
  earlier['model']['variant'], earlier['components'] = 'lba', ['fedavg']
  with pytest.raises(errors.IntegrityError, match='network of lba without'):
    load.from_json(earlier, [], 'config.json')


@pytest.mark.parametrize(
  'sections, message',
  [
    ({'optim': None}, 'has an unknown optim'),
    ({'roundz': 3}, 'has an unknown roundz'),
  ],
)
def test_unknown_fields_of_a_saved_configuration_are_refused(sections, message):
  with pytest.raises(errors.IntegrityError, match=message) as info:
    load.from_json(saved(**sections), [], 'w/config.json')
  assert info.value.exit_code == 4 and info.value.where == 'w/config.json'


@pytest.mark.parametrize(
  'body, message',
  [
    ('def get_config(arg=None): return 3', 'returns int, not a ConfigDict'),
    ('def get_config(arg=None): return {}', 'returns dict'),
    ('def get_config(arg=None): pass', 'returns NoneType'),
    ('def get_config(): return 3', 'TypeError'),
    ('get_config = 3', 'TypeError'),
    ('x = 3', "no attribute 'get_config'"),
    ('x = (', 'SyntaxError'),
  ],
)
def test_a_recipe_that_is_none(tmp_path, body, message):
  path = tmp_path / 'recipe.py'
  path.write_text(body)
  with pytest.raises(errors.ConfigError, match=message):
    recipes.recipe(f'{path}:smoke', '')
