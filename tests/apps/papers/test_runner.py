"""Cells that are trained in this process and in several."""

import csv
import functools
import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path

import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.apps.papers import cells as cells_
from fedreid_jax.apps.papers import report, runner
from fedreid_jax.training.processes import signals


def entry(target='mall', model='global', kind='last', **metrics):
  return {
    'target': target,
    'model': model,
    'kind': kind,
    'rounds': [2],
    'metrics': metrics,
  }


def results(*summary, rounds=2, seconds=4.0):
  return {
    'rounds': rounds,
    'summary': list(summary),
    'communication_bytes': {'up': 1_500_000, 'down': 500_000},
    'seconds': {'train': 1.0, 'total': seconds},
  }


class Trainer:
  """Writes given results instead of training."""

  def __init__(self, **found):
    self.found, self.trained = found, []

  def __call__(self, config, workdir):
    name = f'{config.name}{config.seed}'
    self.trained.append(name)
    found = self.found[name]
    if isinstance(found, BaseException):
      raise found
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / 'results.json').write_text(json.dumps(found))


@pytest.fixture
def cells(tmp_path):
  """Two seeds of a method and one of a reference."""
  made = []
  for name, seed in (('dfh', 0), ('dfh', 1), ('alone', 0)):
    config = toy.replaced(
      toy.toy_config(), {'name': name, 'seed': seed, 'rounds': 2}
    )
    factors = {'optim.lr': '0.1'}
    made.append(cells_.make_cell(name, config, tmp_path, factors))
  return made


@pytest.fixture
def trainer():
  return Trainer(
    dfh0=results(entry(rank1=50.0, mAP=30.0), seconds=2.0),
    dfh1=results(entry(rank1=60.0, mAP=31.0)),
    alone0=results(entry(model='client:mall', rank1=45.0, mAP=32.0)),
  )


def conduct(cells, folder, trainer, **more):
  runner.run(cells, folder / 'table', trainer, title='a study', **more)


def rows(tmp_path):
  with (tmp_path / 'table.csv').open() as file:
    return list(csv.DictReader(file))


@pytest.mark.slow
def test_mean_spread_and_costs_over_seeds(cells, tmp_path, trainer, capsys):
  conduct(cells, tmp_path, trainer)
  dfh, alone = rows(tmp_path)
  assert dfh['label'] == 'dfh' and dfh['optim.lr'] == '0.1'
  # Squares of 5 and 0.5 to either side, divided by one run less than two.
  assert (dfh['rank1'], dfh['rank1 std']) == ('55.0000', '7.0711')
  assert (dfh['mAP'], dfh['mAP std']) == ('30.5000', '0.7071')
  assert (alone['rank1'], alone['rank1 std']) == ('45.0000', '')
  assert (dfh['samples'], alone['samples']) == ('2', '1')
  assert (dfh['MB'], dfh['seconds']) == ('2.000', '3.0')
  text = (tmp_path / 'table.md').read_text()
  printed = capsys.readouterr().out
  assert '# a study' in printed and 'mAP 30.50 ± 0.71' in printed
  assert max(map(len, printed.partition('# a study')[2].splitlines())) <= 80
  assert '| 30.50 ± 0.71 | 55.00 ± 7.07 | 2.0 | 3 |' in text
  assert '| 32.00 | 45.00 | 2.0 | 4 |' in text


@pytest.mark.slow
def test_kinds_and_models_are_lines_of_their_own(cells, tmp_path, trainer):
  trainer.found['dfh0']['summary'].append(entry(kind='best_three', rank1=70.0))
  conduct(cells[:1], tmp_path, trainer)
  found = {(r['model'], r['kind']): r for r in rows(tmp_path)}
  assert set(found) == {('global', 'last'), ('global', 'best_three')}
  assert found['global', 'best_three']['rank1'] == '70.0000'
  assert found['global', 'best_three']['mAP'] == ''


def test_a_name_with_a_dot_is_kept_whole(cells, tmp_path, trainer):
  runner.run(cells, tmp_path / 'S=0.5', trainer, title='')
  assert (tmp_path / 'S=0.5.csv').exists() and (tmp_path / 'S=0.5.md').exists()


def test_ranks_are_in_their_order(cells, tmp_path, trainer):
  scores = {'rank10': 3.0, 'rank5': 2.0, 'rank1': 1.0, 'mAP': 4.0}
  trainer.found['dfh0'] = results(entry(**scores))
  conduct(cells[:1], tmp_path, trainer)
  columns = [c for c in rows(tmp_path)[0] if c in scores]
  assert columns == ['mAP', 'rank1', 'rank5', 'rank10']


def test_a_cell_that_fails_is_recorded_and_the_next_goes_on(
  cells, tmp_path, trainer
):
  trainer.found['dfh0'] = errors.DivergedError('too fast', 'round 3', 'slow')
  with pytest.raises(errors.DivergedError, match='1 of 3 runs.*dfh: too fast'):
    conduct(cells, tmp_path, trainer)
  assert trainer.trained == ['dfh0', 'dfh1', 'alone0']
  failed = [r for r in rows(tmp_path) if r['error']]
  assert [(r['label'], r['seed']) for r in failed] == [('dfh', '0')]
  assert failed[0]['error'].startswith('error[5]: too fast')
  assert [r['samples'] for r in rows(tmp_path)] == ['1', '1', '']
  assert 'dfh, seed 0: error[5]' in (tmp_path / 'table.md').read_text()
  trainer.found['dfh0'] = trainer.found['dfh1']
  conduct(cells, tmp_path, trainer)
  assert trainer.trained[3:] == ['dfh0']
  assert not [r for r in rows(tmp_path) if r['error']]


@pytest.mark.parametrize('stop', [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_stops_and_leaves_a_table(cells, tmp_path, trainer, stop):
  trainer.found['dfh1'] = stop
  with pytest.raises(type(stop)):
    conduct(cells, tmp_path, trainer)
  assert trainer.trained == ['dfh0', 'dfh1']
  assert rows(tmp_path)[0]['rank1'] == '50.0000'
  assert not list(tmp_path.glob('*.partial'))


def test_only_what_is_not_finished_is_run(cells, tmp_path, trainer):
  conduct(cells, tmp_path, trainer)
  trainer.trained.clear()
  halfway = cells[1].workdir / 'results.json'
  halfway.write_text(json.dumps(results(entry(rank1=9.0), rounds=1)))
  (cells[2].workdir / 'results.json').write_text('{"rounds": 2, "su')
  with pytest.warns(errors.DamagedRecordWarning, match='counts as not finis'):
    conduct(cells, tmp_path, trainer)
  assert trainer.trained == ['dfh1', 'alone0']


def test_one_run_serves_two_labels(cells, tmp_path, trainer):
  both = [cells[0], cells[0]._replace(label='again'), cells[0]]
  conduct(both, tmp_path, trainer)
  assert trainer.trained == ['dfh0']
  found = [(r['label'], r['samples']) for r in rows(tmp_path)]
  assert found == [('dfh', '1'), ('again', '1')]


def test_shards_share_the_cells_and_the_table(cells, tmp_path, trainer):
  conduct(cells, tmp_path, trainer, shard='0/2')
  assert trainer.trained == ['dfh0', 'alone0']
  assert 'Not finished: 1.' in (tmp_path / 'table.md').read_text()
  conduct(cells, tmp_path, trainer, shard='1/2')
  assert trainer.trained == ['dfh0', 'alone0', 'dfh1']
  assert rows(tmp_path)[0]['samples'] == '2'


def started(cells):
  """Cells of which the last starts from the second."""
  first, second, last = cells
  return [first, second, started_from(last, second)]


def started_from(cell, other):
  config = replace(cell.config, start_from=str(other.workdir))
  return cell._replace(config=config)


def test_a_run_that_starts_from_another_is_in_its_shard(
  cells, tmp_path, trainer
):
  conduct(started(cells), tmp_path, trainer, shard='0/2')
  assert trainer.trained == ['dfh0']
  conduct(started(cells), tmp_path, trainer, shard='1/2')
  assert trainer.trained == ['dfh0', 'dfh1', 'alone0']


def test_a_run_does_not_start_from_an_unfinished_one(cells, tmp_path, trainer):
  found = trainer.found['dfh1']
  trainer.found['dfh1'] = errors.DivergedError('too fast', 'round 3', 'slow')
  with pytest.raises(errors.DivergedError, match='2 of 3 runs.*dfh: too fast'):
    conduct(started(cells), tmp_path, trainer)
  assert trainer.trained == ['dfh0', 'dfh1']
  (failed,) = [r for r in rows(tmp_path) if r['label'] == 'alone']
  assert 'from which it starts, dfh, is not finished' in failed['error']
  trainer.found['dfh1'] = found
  conduct(started(cells), tmp_path, trainer)
  assert trainer.trained[2:] == ['dfh1', 'alone0']
  assert not [r for r in rows(tmp_path) if r['error']]


def test_trials_are_one_row_and_several_folders(cells, tmp_path, trainer):
  made = []
  for k, cell in enumerate(cells[:2]):
    spec = f'regdb:trial={k + 1}'
    config = toy.replaced(cell.config, {'data.targets': (spec,)})
    made.append(cells_.make_cell('dfh', config, tmp_path, {}, spec))
  names = [cell.workdir.name for cell in made]
  assert names[0].startswith('dfh-regdb_trial_1-seed0-')
  assert names[1].startswith('dfh-regdb_trial_2-seed1-')
  conduct(made[:1], tmp_path, trainer)
  trainer.found['dfh1'] = errors.DivergedError('too fast', 'round 3', 'slow')
  with pytest.raises(errors.DivergedError, match='dfh, regdb:trial=2: too'):
    conduct(made, tmp_path, trainer)
  assert rows(tmp_path)[1]['label'] == 'dfh, regdb:trial=2'
  trainer.found['dfh1'] = results(entry(rank1=60.0, mAP=31.0))
  conduct(made, tmp_path, trainer)
  (row,) = rows(tmp_path)
  assert (row['label'], row['samples']) == ('dfh', '2')
  assert (row['rank1'], row['rank1 std']) == ('55.0000', '7.0711')


@pytest.mark.parametrize('shard', ['2/2', '1', '0/0', '-1/2', 'a/b'])
def test_bad_shards(cells, tmp_path, trainer, shard):
  with pytest.raises(errors.ConfigError, match='--shard'):
    conduct(cells, tmp_path, trainer, shard=shard)
  assert not trainer.trained


def test_increase_over_what_the_client_reaches_alone(cells, tmp_path, trainer):
  trainer.found['dfh0']['summary'] += [
    entry(model='client:mall', rank1=48.0, mAP=33.5),
    entry(target='park', rank1=1.0, mAP=1.0),
  ]
  conduct([cells[0], cells[2]], tmp_path, trainer, baseline='alone')
  found = {(r['label'], r['target'], r['model']): r for r in rows(tmp_path)}
  served = found['dfh', 'mall', 'global']
  local = found['dfh', 'mall', 'client:mall']
  assert served['rank1 - baseline'] == '5.0000'
  assert served['mAP - baseline'] == '-2.0000'
  assert local['rank1 - baseline'] == '3.0000'
  assert found['dfh', 'park', 'global']['rank1 - baseline'] == ''
  assert found['alone', 'mall', 'client:mall']['rank1 - baseline'] == ''
  assert '| +5.00 (n 1) |' in (tmp_path / 'table.md').read_text()


def test_a_model_is_compared_with_its_namesake_first():
  def lines(*entries):
    return report.summarise([report.Run('x', {}, (0, ''), results(*entries))])

  both = lines(entry(rank1=10.0), entry(model='client:mall', rank1=20.0))
  (line,) = report.compare(lines(entry(rank1=15.0)), both)
  assert line.numbers['rank1 - baseline'] == 5.0
  best = lines(entry(kind='best_three', rank1=15.0))
  assert report.compare(best, both)[0].numbers['rank1 - baseline'] == 5.0
  # Alone there is no global model: best rounds against the client's best.
  alone = lines(
    entry(model='client:mall', rank1=20.0),
    entry(model='client:mall', kind='own_best', rank1=22.0),
  )
  for one in (
    best,
    lines(entry(model='client:mall', kind='own_best', rank1=15.0)),
  ):
    found = report.compare(one, alone)[0].numbers
    assert found['rank1 - baseline'] == -7.0
  (line,) = report.compare(lines(entry(rank1=15.0)), alone)
  assert line.numbers['rank1 - baseline'] == -5.0


def test_increases_are_paired_by_seed_and_trial():
  """Gains 1, 2 and 6: mean 3, error of the mean sqrt 7/3, t(2) at 97.5 % 4.303.

  The order of runs does not matter, and a run without a pair does not count.
  """

  def line(label, **ranks):
    runs = [
      report.Run(label, {}, (int(key[1:]), ''), results(entry(rank1=rank)))
      for key, rank in ranks.items()
    ]
    (found,) = report.summarise(runs)
    return found

  base = line('base', s0=10.0, s1=20.0, s2=30.0, s4=99.0)
  arm = line('arm', s2=36.0, s0=11.0, s1=22.0, s3=0.0)
  found = report.increase(arm, base)
  assert found['rank1 - baseline'] == pytest.approx(3.0)
  assert found['rank1 - baseline n'] == 3
  half = 4.302653 * (7 / 3) ** 0.5
  assert found['rank1 - baseline low'] == pytest.approx(3 - half)
  assert found['rank1 - baseline high'] == pytest.approx(3 + half)
  alone = line('other', s7=40.0)  # no pair: the difference of the means
  assert report.increase(arm, alone) == {'rank1 - baseline': 17.25 - 40.0}
  other = report.Run('x', {}, (0, 'regdb:trial=2'), results(entry(rank1=50.0)))
  assert 'rank1 - baseline n' not in report.increase(
    report.summarise([other])[0], base
  )


def test_intervals_of_increases_are_printed(cells, tmp_path, trainer):
  alone = toy.replaced(
    toy.toy_config(), {'name': 'alone', 'seed': 1, 'rounds': 2}
  )
  cells.append(cells_.make_cell('alone', alone, tmp_path, {}))
  trainer.found['alone1'] = results(
    entry(model='client:mall', rank1=51.0, mAP=30.0)
  )
  conduct(cells, tmp_path, trainer, baseline='alone')
  row = rows(tmp_path)[0]  # gains of 5 and 9
  assert row['rank1 - baseline'] == '7.0000'
  assert row['rank1 - baseline low'] == '-18.4124'  # 7 - 2 t(1), t = 12.706
  text = (tmp_path / 'table.md').read_text()
  assert '+7.00 [-18.41, +32.41] (n 2)' in text
  assert 'baseline low' not in text


def test_the_list_of_runs_has_those_that_ended(cells, tmp_path, trainer):
  del trainer.found['alone0']
  with pytest.raises(KeyError):
    conduct(cells, tmp_path, trainer)
  with (tmp_path / 'table-runs.csv').open() as file:
    listed = list(csv.DictReader(file))
  assert [(r['label'], r['seed'], r['optim.lr']) for r in listed] == [
    ('dfh', '0', '0.1'),
    ('dfh', '1', '0.1'),
    ('alone', '0', '0.1'),
  ]
  assert Path(tmp_path, listed[1]['workdir']) == cells[1].workdir
  found = report.finished(tmp_path / 'table')
  assert [label for label, _ in found] == ['dfh', 'dfh']
  assert found[1][1] == trainer.found['dfh1']
  with pytest.raises(errors.IntegrityError, match='no list of the runs'):
    report.finished(tmp_path / 'nothing')


def test_baseline_of_another_study(cells, tmp_path, trainer):
  conduct(cells[2:], tmp_path, trainer)
  other = str(cells[2].workdir)
  conduct(cells[:2], tmp_path, trainer, baseline=other)
  row = rows(tmp_path)[0]  # the mean is 10 above, the run of the same seed 5
  assert row['rank1 - baseline'] == '5.0000'
  assert row['rank1 - baseline n'] == '1.0000'
  assert 'rank1 - baseline low' not in row
  trainer.trained.clear()
  with pytest.raises(errors.ConfigError, match="'nobody'.*--baseline"):
    conduct(cells[:1], tmp_path, trainer, baseline='nobody')
  assert not trainer.trained


def test_folders_are_named_after_the_configuration(cells, tmp_path):
  names = [cell.workdir.name for cell in cells]
  assert len(set(names)) == 3
  assert names[0].startswith('dfh-lr0.1-seed0-')
  factors = {'dfh.alpha': '(1.0, 2.0)', 'data.root': '/a/b'}
  config = cells[0].config
  first = cells_.make_cell('x', config, tmp_path, factors).workdir
  assert first.parent == tmp_path
  assert first == cells_.make_cell('y', config, tmp_path, factors).workdir
  config = toy.replaced(config, {'track': ('csv',)})
  assert first == cells_.make_cell('x', config, tmp_path, factors).workdir
  config = toy.replaced(config, {'optim.lr': 0.125})
  assert first != cells_.make_cell('x', config, tmp_path, factors).workdir


def test_a_folder_that_cannot_be_written_is_one_cells_error(
  cells, tmp_path, trainer
):
  blocked = cells[0].workdir
  blocked.write_text('a file')
  trainer.found['dfh0'] = errors.ResourceError('no folder', str(blocked))
  with pytest.raises(errors.ResourceError, match='1 of 2'):
    conduct(cells[:2], tmp_path, trainer)
  assert trainer.trained == ['dfh0', 'dfh1']


DONE = {
  'summary': [],
  'communication_bytes': {'up': 1, 'down': 1},
  'seconds': {'total': 1.0},
}


def write(config, workdir):
  """Writes on which process and which cores a run was trained."""
  workdir.mkdir(parents=True, exist_ok=True)
  found = {'pid': os.getpid(), 'group': os.getpgrp()}
  found['cores'] = sorted(os.sched_getaffinity(0))
  found['gpu'] = os.environ.get('CUDA_VISIBLE_DEVICES')
  found['at'] = time.monotonic()
  text = json.dumps(DONE | found | {'rounds': config.rounds})
  (workdir / 'results.json').write_text(text)


def train(config, workdir, gate):
  """Waits until two runs are trained at once; seed 3 fails, seed 4 is killed.

  A single process could not open the gate.
  """
  if config.seed == 3:
    raise errors.DivergedError('too fast', 'round 3', 'slow')
  if config.seed == 4:
    os.kill(os.getpid(), signal.SIGKILL)
  if config.seed < 2:
    (gate / str(config.seed)).touch()
    end = time.monotonic() + 60
    while len(list(gate.iterdir())) < 2:
      assert time.monotonic() < end
      time.sleep(0.01)
  write(config, workdir)


def train_rounds(config, workdir):
  """Trains until a signal, as the loop does, and saves."""
  workdir.mkdir(parents=True)
  with signals.deferred() as stopped:
    (workdir / 'started').touch()
    while not stopped():
      time.sleep(0.01)
    (workdir / 'saved').touch()


def make_cells(folder, seeds):
  made = []
  for seed in seeds:
    config = toy.replaced(toy.toy_config(), {'seed': seed, 'rounds': 2})
    made.append(cells_.make_cell('run', config, folder, {}))
  return made


def found(cell):
  return json.loads((cell.workdir / 'results.json').read_text())


@pytest.mark.slow
def test_two_processes_train_what_can_be_trained(tmp_path, monkeypatch, capsys):
  """Runs 0 and 1 at once; 2 starts from 0; 3 fails, the process of 4 dies."""
  monkeypatch.setattr(runner, '_gpus', lambda: ['A', 'B'])
  gate = tmp_path / 'gate'
  gate.mkdir()
  cells = make_cells(tmp_path, (2, 0, 1, 4, 3, 5))
  after, first, second, killed, failed, last = cells
  cells[0] = started_from(after, first)
  calls = []
  with pytest.raises(errors.FedReIDError, match='2 of 6 runs failed'):
    runner.train_all(
      cells,
      functools.partial(train, gate=gate),
      lambda: calls.append(1),
      num_workers=2,
    )
  assert len(calls) == 6
  assert {found(first)['gpu'], found(second)['gpu']} == {'A', 'B'}
  assert found(first)['pid'] != found(second)['pid'] != os.getpid()
  assert found(first)['group'] == found(first)['pid']  # its terminal's signals
  assert found(after)['at'] > found(first)['at'] and found(last)
  note = (failed.workdir / 'error.txt').read_text()
  assert note.startswith('error[5]: too fast')
  assert not (killed.workdir / 'results.json').exists()
  out = capsys.readouterr().out
  assert out.count('finished') == 4 and out.count('failed') == 2


@pytest.mark.slow
def test_a_process_that_dies_before_it_is_asked_is_a_failed_run(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(runner, '_gpus', lambda: ['A', 'B'])
  waits, wait = [], connection.wait

  def late(pipes, timeout):
    waits.append(pipes)
    if len(waits) > 1:
      return wait(pipes, timeout)
    while multiprocessing.active_children():  # which joins those that ended
      time.sleep(0.01)
    return []

  monkeypatch.setattr(connection, 'wait', late)
  cells = make_cells(tmp_path, (4,))
  killed = functools.partial(train, gate=tmp_path)
  ((cell, error),) = runner.outcomes(cells, killed, 2)
  assert cell is cells[0] and 'ended with code -9' in str(error)


@pytest.mark.slow
def test_a_signal_lets_every_round_end(tmp_path, monkeypatch):
  listener = signals._Listener()  # as a command has it
  monkeypatch.setattr(signals, '_listener', listener)
  monkeypatch.setattr(runner, '_gpus', lambda: ['A', 'B'])
  cells = make_cells(tmp_path, (0, 1, 2))

  def stop():
    while len(list(tmp_path.glob('*/started'))) < 2:
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=stop)
  thread.start()
  with pytest.raises(SystemExit) as ended:
    runner.train_all(cells, train_rounds, list, num_workers=2)
  thread.join()
  listener.close()
  assert ended.value.code == 128 + signal.SIGTERM
  assert len(list(tmp_path.glob('*/saved'))) == 2
  assert not cells[2].workdir.exists()


def test_cores_are_shared_without_gpus(monkeypatch):
  monkeypatch.setattr(runner, '_gpus', list)
  monkeypatch.setattr(runner, '_cores', lambda: {7, 1, 2, 5, 3})
  assert runner.places(2) == [('', [1, 3, 7]), ('', [2, 5])]
  with pytest.raises(errors.ConfigError, match='6 processes, 5 cores'):
    runner.places(6)
  monkeypatch.setattr(runner, '_gpus', lambda: ['4', '6'])
  assert [place.gpu for place in runner.places(2)] == ['4', '6']
  with pytest.raises(errors.ConfigError, match='3 processes, 2 GPUs'):
    runner.places(3)


def test_gpus_are_those_of_this_process(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', '')
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2,GPU-ab')
  assert runner._gpus() == ['2', 'GPU-ab']
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  assert runner._gpus() == []
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  assert runner._gpus() == []
