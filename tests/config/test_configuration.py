"""Configurations as typed values."""

import ast
import dataclasses
from pathlib import Path

import pytest
import toy

import fedreid_jax
from fedreid_jax import errors
from fedreid_jax.config import (
  configuration,
  load,
  parsing,
  recipes,
  schema,
  validation,
)

ROOT = Path(fedreid_jax.__file__).parent
UNTYPED = (None, 'Any', 'ConfigDict', 'ml_collections.ConfigDict')


def parameters(path):
  """(line, annotation) of every parameter named `config` of a module."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.FunctionDef | ast.Lambda):
      own = node.args
      for one in (*own.posonlyargs, *own.args, *own.kwonlyargs):
        if one.arg == 'config':
          kind = one.annotation and ast.unparse(one.annotation)
          yield f'{path.relative_to(ROOT)}:{one.lineno}', kind


def test_who_reads_a_configuration_states_its_type():
  found = [
    where
    for path in ROOT.rglob('*.py')
    if path.parent != ROOT / 'config'
    for where, kind in parameters(path)
    if kind in UNTYPED
  ]
  assert found == []


def test_a_typed_configuration_has_the_fields_of_the_recipe():
  recipe = recipes.recipe('dfh:smoke')
  config = validation.validate(recipe)
  assert parsing.flatten(config) == parsing.flatten(recipe)
  assert parsing.flatten(schema.editable(config)) == parsing.flatten(recipe)
  assert load.to_json(config) == load.to_json(recipe)
  assert config.options['dfh'].lam == recipe.dfh.lam
  assert validation.validate(config) == config


def test_every_group_has_its_declaration():
  declared = schema.groups()
  assert {n: declared[n] for n in configuration.GROUPS} == configuration.GROUPS
  config = validation.validate(recipes.recipe('fedpav:smoke'))
  for name, kind in configuration.GROUPS.items():
    assert type(getattr(config, name)) is kind
  for name, own in config.options.items():
    assert type(own) is declared[name]


def test_a_typed_configuration_does_not_change():
  config = toy.toy_config()
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.model.name = 'vit'
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.rounds = 3


def test_replaced_fields_are_checked():
  config = toy.replaced(toy.toy_config(), {'optim.lr': -1.0})
  with pytest.raises(errors.ConfigError, match='optim.lr'):
    validation.validate(config)
  whole = dataclasses.replace(toy.toy_config(), fraction=1)
  assert type(validation.validate(whole).fraction) is float
  config = load.with_fields(toy.toy_config(), {'optim.lr': 0.5})
  assert config.optim.lr == 0.5
  with pytest.raises(errors.ConfigError, match='did you mean optim.lr'):
    load.with_fields(config, {'optim.rl': 0.5})
