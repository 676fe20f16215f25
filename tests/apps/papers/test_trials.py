"""Trials of published data sets, as `--trials` gives them."""

import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid, trials
from fedreid_jax.apps.papers.tables import l2rw
from fedreid_jax.config import recipes

OWN = 'data.source=datasets,data.root=DIR'


def test_a_data_set_stands_for_all_its_trials():
  assert trials.parse('regdb') == [*l2rw.TRIALS]
  assert trials.parse('regdb:trial=3; regdb:trial=1') == [
    'regdb:trial=3',
    'regdb:trial=1',
  ]
  found = trials.parse('regdb:direction=visible-infrared')
  assert len(found) == 10
  assert found[-1] == 'regdb:direction=visible-infrared,trial=10'
  assert len(trials.parse('caviar4reid')) == 10 and trials.parse('') == []


@pytest.mark.parametrize(
  'text, message',
  [
    ('market1501', 'market1501 has no trials.*--trials.*regdb'),
    ('regdb:trial=11', 'trial=.11. of regdb'),
    ('moon', 'unknown data set'),
  ],
)
def test_bad_trials(text, message):
  with pytest.raises(errors.ConfigError, match=message):
    trials.parse(text)


def test_a_trial_is_trained_on_and_tested():
  config = trials.change(
    recipes.recipe('dppt', f'smoke,{OWN}'), 'regdb:trial=2'
  )
  assert config.data.sources == config.data.targets == ('regdb:trial=2',)


@pytest.mark.parametrize('arg', ['smoke', 'paper'])
def test_trials_need_the_files_of_the_data_set(arg):
  with pytest.raises(errors.ConfigError, match='--trials.*data.root'):
    trials.change(recipes.recipe('dppt', arg), 'regdb:trial=2')


def test_trials_are_averaged_and_fields_are_not():
  sweep = grid.Sweep(
    'about',
    ('configs/dppt.py',),
    {'dppt.k': (1, 4)},
    arg=f'smoke,{OWN}',
    seeds=(0, 1),
    trials='regdb:trial=1;regdb:trial=2',
  )
  found = grid.of_sweep(sweep)
  labels = [p.label for p in found]
  assert labels == ['dppt dppt.k=1'] * 4 + ['dppt dppt.k=4'] * 4
  facts = {
    (p.trial, p.config.data.targets, p.config.seed, p.config.dppt.k)
    for p in found
  }
  assert facts == {
    (spec, (spec,), seed, k)
    for spec in ('regdb:trial=1', 'regdb:trial=2')
    for seed in (0, 1)
    for k in (1, 4)
  }


def test_a_grid_does_not_change_the_fields_of_trials():
  sweep = grid.Sweep(
    'about',
    ('configs/dppt.py',),
    {'data.targets': [('llcm',)]},
    arg=f'smoke,{OWN}',
    trials='regdb',
  )
  with pytest.raises(errors.ConfigError, match='--trials change the same'):
    grid.of_sweep(sweep)
