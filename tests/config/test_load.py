"""Configurations of recipes and of saved runs."""

import json

import pytest

import fedreid_jax as fr
from fedreid_jax.config import load, parsing
from fedreid_jax.training.files import run_files


def test_fields_and_sections():
  config = fr.load_config(
    'dfh:smoke', {'optim.lr': 0.02, 'data.sources': ['plaza']}, rounds=7
  )
  assert (config.optim.lr, config.rounds) == (0.02, 7)
  assert config.data.sources == ('plaza',)
  assert fr.load_config('dfh:smoke', optim={'lr': 0.02}).optim.lr == 0.02
  with pytest.raises((AttributeError, KeyError)):
    config.optim.rate = 0.1


def test_a_recipe_by_name_by_path_and_of_a_user(tmp_path):
  own = tmp_path / 'mine.py'
  own.write_text(
    'from fedreid_jax.config import presets, schema\n'
    'def get_config(arg=None):\n'
    '  config = schema.default()\n'
    '  presets.smoke(config)\n'
    '  config.name = arg or "mine"\n'
    '  return config\n'
  )
  assert fr.load_config(own).name == 'mine'
  assert fr.load_config(f'{own}:other').name == 'other'
  short, long = (
    parsing.flatten(fr.load_config(f'{recipe}:smoke,optim.lr=0.02,space=b'))
    for recipe in ('dfh', 'configs/dfh.py')
  )
  assert short == long and short['dfh.space'] == 'b'


@pytest.mark.parametrize(
  ('recipe', 'overrides', 'fields', 'said'),
  [
    ('nothing', None, {}, 'no file nothing.*one of .*dfh'),
    ('dfh:nothing', None, {}, "unknown preset 'nothing'"),
    ('dfh', {'optim.lrr': 1.0}, {}, 'unknown field.*did you mean optim.lr'),
    ('dfh', {'optim': 1.0}, {}, 'unknown field'),
    ('dfh', None, {'round': 1}, 'unknown field.*rounds'),
    ('dfh', None, {'rounds': 'many'}, 'rounds'),
    ('dfh', None, {'rounds': 0}, 'rounds.*between'),
    ('dfh', {'optim.lr': float('nan')}, {}, 'optim.lr'),
    ('dfh', {'rounds': 2}, {'rounds': 2}, 'two values'),
    ('dfh:smoke,rounds=1,rounds=2', None, {}, "'rounds' has two values"),
    ('x' * 5000, None, {}, 'no file x{200}\\.\\.\\.'),
    ('a\0b', None, {}, 'no file'),
    ('dfh', None, {'fraction': 2.0}, 'fraction'),
  ],
)
def test_errors(recipe, overrides, fields, said):
  with pytest.raises(fr.errors.ConfigError, match=said):
    fr.load_config(recipe, overrides, **fields)


def test_a_saved_configuration(tmp_path):
  config = fr.load_config('dfh:smoke', {'data.source': 'synthetic_v2'})
  path = tmp_path / 'config.json'
  path.write_text(config.to_json_best_effort())
  saved = load.load_saved(tmp_path)
  assert parsing.flatten(saved) == parsing.flatten(config)
  assert load.load_saved(tmp_path, ['rounds=9']).rounds == 9
  for field, name in (
    ('components', ['fedpav', 'beside.rule']),
    ('model.name', 'beside.rule'),
    ('model', {**vars(saved.model), 'name': 'beside.rule'}),
    ('data', {**vars(saved.data), 'source': 'beside.rule'}),
  ):
    path.write_text(json.dumps(load.to_json(config) | {field: name}))
    with pytest.raises(fr.errors.ConfigError, match='beside.rule.*runs its'):
      load.load_saved(tmp_path)
    with pytest.raises(fr.errors.ConfigError, match='beside.rule.*runs its'):
      run_files.checkpoints_of(tmp_path)
  path.write_text(json.dumps([]))
  with pytest.raises(fr.errors.IntegrityError, match='no configuration'):
    load.load_saved(tmp_path)
