"""Every recipe trains, tests and ends with results."""

from pathlib import Path

import jax
import pytest

from configs import check
from configs.sweeps import load
from fedreid_jax import experiment

CONFIGS = Path(check.__file__).parent
RECIPES = sorted(
  path.stem
  for path in CONFIGS.glob('[a-z]*.py')
  if 'def get_config' in path.read_text()
)
PRESETS = ('synthetic', 'smoke', 'paper')
# Recipes with choices of their own.
VARIANTS = {
  'dppt': (
    'local=dns,server=fedprox',
    'local=agw,server=moon',
    'local=base,server=fednova',
    'local=ca,protocol=ei',
  ),
  'fedreid': ('noise=double', 'variant=plain'),
  'fedsgd': ('variant=strict',),
  'snr': ('loss=entropy',),
}
CALLS = [(recipe, '') for recipe in RECIPES] + [
  (recipe, arg) for recipe, args in VARIANTS.items() for arg in args
]


def config_of(recipe, arg):
  path = CONFIGS / f'{recipe}.py'
  return check.validate(load.recipe(str(path), arg))


@pytest.mark.parametrize('recipe', RECIPES)
@pytest.mark.parametrize('preset', PRESETS)
def test_presets_are_valid(recipe, preset):
  assert config_of(recipe, preset).name


@pytest.mark.parametrize('recipe', RECIPES)
def test_docstring_has_its_command(recipe):
  assert (
    f'--config=configs/{recipe}.py' in (CONFIGS / f'{recipe}.py').read_text()
  )


@pytest.mark.slow
@pytest.mark.parametrize('recipe, arg', CALLS)
def test_end_to_end(recipe, arg, tmp_path, capsys):
  preset = 'smoke,data.target_identities=12' + (f',{arg}' if arg else '')
  config = config_of(recipe, preset)
  results = experiment.train(config, tmp_path)
  jax.clear_caches()  # else every recipe's programs stay in memory
  assert results['rounds'] == config.rounds
  warned = 'no (epsilon, delta) guarantee' in capsys.readouterr().out
  assert warned == ('noise' in config.components)
  assert {e['round'] for e in results['evaluation']} == {0, config.rounds}
  for entry in results['summary']:
    assert all(0 <= v <= 100 for v in entry['metrics'].values())
