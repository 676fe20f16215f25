"""`launchers.sweep` as a user meets it."""

import csv
import functools
import json
import statistics

import commands
import pytest

TINY = 'smoke,rounds=1,model.features=(4,8),data.identities=4'
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.slow
def test_two_workers_train_a_grid_that_ends_with_a_table(tmp_path):
  """Against a run in one process; both seeds differ, so that a band is seen."""
  flags = [
    f'--config=configs/fedpav.py:{TINY},data.target_identities=4',
    '--grid=optim.lr=0.01',
  ]
  both, one = tmp_path / 'both', tmp_path / 'one'
  own = ('--seeds=0,1', '--workers=2', f'--workdir={both}')
  code, out, err = commands.launch('sweep', *flags, *own)
  assert code == 0, err
  assert '[1/2] fedpav optim.lr=0.01, seed ' in out and '[2/2]' in out
  assert out.count('finished') == 2
  with (both / 'table.csv').open() as file:
    row = next(csv.DictReader(file))
  assert row['label'] == 'fedpav optim.lr=0.01' and row['samples'] == '2'
  assert row['optim.lr'] == '0.01' and 0 <= float(row['mAP']) <= 100
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
    slow(('--config=configs/dppt.py:paper', '--trials=regdb'), 'data.root'),
    slow((), 'the sweep is given in no way or in several'),
  ],
)
def test_one_line_before_anything_runs(flags, message, tmp_path):
  code, _, err = commands.launch('sweep', *flags, f'--workdir={tmp_path / "w"}')
  assert code == 2 and len(err.splitlines()) == 1, err
  assert err.startswith('error[2]: ') and message in err
  assert not (tmp_path / 'w').exists()
