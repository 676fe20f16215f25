"""Recipes are short files with one visible function."""

import ast

import pytest

from fedreid_jax.config import recipes

FILES = sorted(recipes.folder().glob('*.py'))


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_a_recipe_is_one_function_that_needs_nothing_but_config(path):
  tree = ast.parse(path.read_text())
  functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
  assert [n for n in functions if not n.startswith('_')] == ['get_config']
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom):
      assert node.module == 'fedreid_jax.config'
    assert not isinstance(node, ast.Import | ast.Lambda)
  nested = [
    inner
    for node in tree.body
    for inner in ast.walk(node)
    if isinstance(inner, ast.FunctionDef) and inner is not node
  ]
  assert not nested and len(path.read_text().splitlines()) <= 100


@pytest.mark.parametrize('name', recipes.names())
@pytest.mark.parametrize('preset', ('synthetic', 'smoke'))
def test_the_user_wins(name, preset):
  changes = 'rounds=7,data.height=48,optim.lr=0.125,local.batch=24,name=mine'
  c = recipes.recipe(name, f'{preset},{changes}')
  assert (c.rounds, c.data.height, c.optim.lr) == (7, 48, 0.125)
  assert (c.local.batch, c.name) == (24, 'mine')
