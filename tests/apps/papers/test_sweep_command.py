"""Grids, sweep files and `launchers.sweep` as a user meets it."""

import csv
import json
import statistics
from pathlib import Path

import commands
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid, sweep_files
from fedreid_jax.config import parsing, recipes, schema

ROOT = Path(__file__).parents[3]
SWEEPS = sorted(Path(sweep_files.__file__).parent.glob('[a-z]*.py'))
TINY = 'smoke,rounds=1,model.features=(4,8),data.identities=4'


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
  assert config.dfh.alpha == (2.0, 1.0)
  assert found[0].config.dfh.alpha == (1.0,)


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


@pytest.mark.parametrize('path', SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_of_the_papers(path):
  sweep = recipes.call(str(path), 'get_sweep')
  assert sweep.about and sweep.seeds == (0, 1, 2)
  doc = path.read_text()
  assert f'--sweep={path.stem}' in doc
  known = set(parsing.flatten(schema.default()))
  written = [r for r in sweep.recipes if (ROOT / r.partition(':')[0]).exists()]
  if len(written) == len(sweep.recipes):
    for point in grid.of_sweep(sweep):
      assert set(point.facts) <= known


@pytest.mark.slow
def test_a_grid_trains_and_ends_with_one_table(tmp_path):
  code, out, err = commands.launch(
    'sweep',
    f'--config=configs/fedpav.py:{TINY},data.target_identities=4',
    '--grid=optim.lr=0.01',
    '--seeds=0,1',
    f'--workdir={tmp_path}',
  )
  assert code == 0, err
  assert '[1/2] fedpav optim.lr=0.01, seed 0' in out and '[2/2]' in out
  with (tmp_path / 'table.csv').open() as file:
    row = next(csv.DictReader(file))
  assert row['label'] == 'fedpav optim.lr=0.01' and row['samples'] == '2'
  assert row['optim.lr'] == '0.01' and 0 <= float(row['mAP']) <= 100


@pytest.mark.slow
def test_two_workers_train_a_sweep_and_its_curves_have_a_band(tmp_path):
  """Against a run in one process; both seeds differ, so that a band is seen."""
  flags = [
    f'--config=configs/fedpav.py:{TINY},data.target_identities=4',
    '--grid=optim.lr=0.01',
  ]
  both, one = tmp_path / 'both', tmp_path / 'one'
  own = ('--seeds=0,1', '--workers=2', f'--workdir={both}')
  code, out, err = commands.launch('sweep', *flags, *own)
  assert code == 0, err
  assert '[1/2]' in out and '[2/2]' in out and out.count('finished') == 2
  own = ('--seeds=1', f'--workdir={one}')
  code, _, err = commands.launch('sweep', *flags, *own)
  assert code == 0, err
  (folder,) = one.glob('*-seed1-*')
  results = [
    json.loads((where / folder.name / 'results.json').read_text())
    for where in (both, one)
  ]
  assert results[0]['evaluation'] == results[1]['evaluation']
  code, out, err = commands.launch(
    'visualize', '--what=curves', f'--workdir={both}'
  )
  assert code == 0, err
  assert (both / 'curves.png').stat().st_size > 1000
  code, _, err = commands.launch('sweep', *flags, '--workers=999')
  assert code == 2 and '--workers' in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_trials_end_with_one_mean(minis, tmp_path, monkeypatch):
  """One command trains a model for each trial of RegDB, and resumes."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  flags = (
    f'--config=configs/dppt.py:smoke,data.source=datasets,'
    f'data.root={minis("regdb")},model.name=convnet,model.features=(4,8)',
    '--trials=regdb:trial=1;regdb:trial=2',
    f'--workdir={tmp_path / "sweep"}',
  )
  code, out, err = commands.launch(
    'sweep', *flags, '--shard=0/2', timeout=1200.0
  )
  assert code == 0, err
  assert 'dppt, regdb:trial=1, seed 0' in out and 'Not finished: 1' in out
  code, out, err = commands.launch('sweep', *flags, timeout=1200.0)
  assert code == 0, err
  assert '[1/2]' not in out and '[2/2] dppt, regdb:trial=2, seed 0' in out
  scores = []
  for trial in (1, 2):
    (folder,) = (tmp_path / 'sweep').glob(f'dppt-regdb_trial_{trial}-*')
    config = json.loads((folder / 'config.json').read_text())['data']
    assert config['sources'] == config['targets'] == [f'regdb:trial={trial}']
    described = json.loads((folder / 'run.json').read_text())['clients']
    assert [client['identities'] for client in described] == [5, 5]
    (last,) = (
      entry
      for entry in json.loads((folder / 'results.json').read_text())['summary']
      if entry['kind'] == 'last'
    )
    scores.append(last['metrics'])
  with (tmp_path / 'sweep' / 'table.csv').open() as file:
    rows = [row for row in csv.DictReader(file) if row['kind'] == 'last']
  assert [(r['label'], r['target'], r['samples']) for r in rows] == [
    ('dppt', 'regdb', '2')
  ]
  for name in ('mAP', 'rank1', 'mINP'):
    values = [score[name] for score in scores]
    assert rows[0][name] == f'{statistics.mean(values):.4f}'
    assert rows[0][f'{name} std'] == f'{statistics.stdev(values):.4f}'
  mean, spread = (float(rows[0][n]) for n in ('mAP', 'mAP std'))
  assert spread > 0 and f'{mean:.2f} ± {spread:.2f}' in out


@pytest.mark.parametrize(
  'flags, message',
  [
    (('--config=configs/fedpav.py:smoke', '--grid=optim.betta=1'), 'betta'),
    (('--config=configs/dppt.py:paper', '--trials=regdb'), 'data.root'),
    (('--config=configs/dppt.py:paper', '--trials=llcm'), 'no trials'),
    ((), 'the sweep is given in no way or in several'),
  ],
)
def test_one_line_before_anything_runs(flags, message, tmp_path):
  code, _, err = commands.launch('sweep', *flags, f'--workdir={tmp_path / "w"}')
  assert code == 2 and len(err.splitlines()) == 1, err
  assert err.startswith('error[2]: ') and message in err
  assert not (tmp_path / 'w').exists()
