"""Grids, their trials of published data sets, and the papers' sweeps."""

import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.sweeps import SWEEPS
from fedreid_jax.apps.papers.tables import l2rw
from fedreid_jax.config import parsing, recipes, schema, validation

OWN = 'data.source=datasets,data.root=DIR'


def test_a_data_set_stands_for_all_its_trials():
  assert grid.parse_trials('regdb') == [*l2rw.TRIALS]
  assert grid.parse_trials('regdb:trial=3; regdb:trial=1') == [
    'regdb:trial=3',
    'regdb:trial=1',
  ]
  found = grid.parse_trials('regdb:direction=visible-infrared')
  assert len(found) == 10
  assert found[-1] == 'regdb:direction=visible-infrared,trial=10'
  assert (
    len(grid.parse_trials('caviar4reid')) == 10 and grid.parse_trials('') == []
  )


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
    grid.parse_trials(text)


def test_a_trial_is_trained_on_and_tested():
  config = grid.with_trial(
    validation.validate(recipes.recipe('dppt', f'smoke,{OWN}')), 'regdb:trial=2'
  )
  assert config.data.sources == config.data.targets == ('regdb:trial=2',)


@pytest.mark.parametrize('arg', ['smoke', 'paper'])
def test_trials_need_the_files_of_the_data_set(arg):
  with pytest.raises(errors.ConfigError, match='--trials.*data.root'):
    grid.with_trial(
      validation.validate(recipes.recipe('dppt', arg)), 'regdb:trial=2'
    )


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
    (p.trial, p.config.data.targets, p.config.seed, p.config.options['dppt'].k)
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


def test_text_of_a_grid():
  found = grid.parse('optim.lr=0.01,0.05; rounds=10 ;data.targets=("a","b"),()')
  assert found == {
    'optim.lr': ['0.01', '0.05'],
    'rounds': ['10'],
    'data.targets': ['("a","b")', '()'],
  }
  assert parsing.split('a,(b,(c,d)),[e,f],"g,(",h', ',') == [
    'a',
    '(b,(c,d))',
    '[e,f]',
    '"g,("',
    'h',
  ]


@pytest.mark.parametrize(
  'text', ['optim.lr', 'optim.lr=', 'optim.lr=1,', '=1', 'rounds=1;rounds=2']
)
def test_bad_text_of_a_grid(text):
  with pytest.raises(errors.ConfigError, match='--grid'):
    grid.parse(text)


def test_every_point_of_a_grid():
  found = list(grid.points({'a': (1, 2), 'b+c': [(0.5, 'x'), '(1, (2, 3))']}))
  assert found == [
    {'a': '1', 'b': '0.5', 'c': 'x'},
    {'a': '1', 'b': '1', 'c': '(2, 3)'},
    {'a': '2', 'b': '0.5', 'c': 'x'},
    {'a': '2', 'b': '1', 'c': '(2, 3)'},
  ]
  assert list(grid.points({})) == [{}]


@pytest.mark.parametrize(
  'bad, message',
  [
    ({'a+b': [(1, 2, 3)]}, 'use the form'),
    ({'a+b': ['1']}, 'use the form'),
    ({'a+b': ['word']}, 'use the form'),
    ({'a': [1], 'a+b': [(1, 2)]}, 'twice'),
    ({'seed': [1]}, '--seeds'),
  ],
)
def test_bad_points(bad, message):
  with pytest.raises(errors.ConfigError, match=message):
    list(grid.points(bad))


def test_cells_are_recipes_times_points_times_seeds():
  sweep = grid.Sweep(
    'about',
    ('configs/fedpav.py', 'configs/dfh.py:dfh.alpha=(2.0,1.0),fraction=0.5'),
    {'local.batch': (32, 64), 'local.epochs+rounds': [(1, 6), (2, 3)]},
    arg='smoke,optim.lr=0.5',
    seeds=(3, 4),
  )
  found = grid.of_sweep(sweep)
  assert len(found) == 2 * 2 * 2 * 2
  labels = list(dict.fromkeys(point.label for point in found))
  assert len(labels) == 8
  assert labels[1] == 'fedpav local.batch=32 local.epochs=2 rounds=3'
  assert labels[4].startswith('dfh dfh.alpha=(2.0,1.0) fraction=0.5 local.')
  last = found[-1]
  assert last.facts == {
    'local.batch': '64',
    'local.epochs': '2',
    'rounds': '3',
  }
  config = last.config
  assert (config.local.batch, config.local.epochs, config.rounds) == (64, 2, 3)
  assert (config.seed, config.optim.lr, config.fraction) == (4, 0.5, 0.5)
  assert config.options['dfh'].alpha == (2.0, 1.0)
  assert found[0].config.options['dfh'].alpha == (1.0,)


@pytest.mark.parametrize(
  'change, message',
  [
    ({'grid': {'optim.betta': (1,)}}, 'optim.betta'),
    ({'grid': {'optim.lr': (0.1, -1.0)}}, 'out of range'),
    ({'grid': {'rounds': ('many',)}}, 'rounds'),
    ({'arg': 'papr'}, 'unknown preset'),
    ({'recipes': ('configs/none.py',)}, 'no file'),
    ({'recipes': ('configs/fedpav.py',) * 2}, 'twice'),
    ({'recipes': ('fedreid_jax/apps/papers/grid.py',)}, 'get_config'),
    ({'seeds': (-1,)}, 'seed'),
  ],
)
def test_cells_that_cannot_run(change, message):
  fields = {'about': '', 'recipes': ('configs/fedpav.py',), 'arg': 'smoke'}
  with pytest.raises(errors.ConfigError, match=message):
    grid.of_sweep(grid.Sweep(**fields | change))


def test_a_recipe_that_does_not_run_is_one_line(tmp_path):
  bad = tmp_path / 'bad.py'
  bad.write_text('import nothing_of_this_name')
  with pytest.raises(errors.ConfigError, match='ModuleNotFoundError'):
    recipes.recipe(str(bad), 'smoke')


def test_seeds():
  assert grid.seeds('0,1,2') == [0, 1, 2]
  with pytest.raises(errors.ConfigError, match='--seeds'):
    grid.seeds('0,x')


@pytest.mark.parametrize('name', SWEEPS)
def test_every_sweep_of_the_papers(name):
  assert SWEEPS[name].about and SWEEPS[name].seeds == (0, 1, 2)
  known = set(parsing.flatten(schema.default()))
  for point in grid.of_sweep(SWEEPS[name]):
    assert set(point.facts) <= known


def test_two_sweeps_have_two_default_folders():
  def identity(**changes):
    fields = {'recipes': ('fedpav',), 'grid': {'rounds': (1, 2)}} | changes
    return grid.identity(grid.of_sweep(grid.Sweep('', arg='smoke', **fields)))

  names = [
    identity(),
    identity(grid={'rounds': (1, 3)}),
    identity(recipes=('fedpav:optim.lr=0.1',)),
  ]
  assert len({*map(str, names)}) == 3
  assert identity(seeds=(4,)) == names[0]
