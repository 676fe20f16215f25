import json
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import toy
from jax._src import monitoring

from fedreid_jax import errors
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.training import build, loop, run_evaluation
from fedreid_jax.training.files import client_states, run_files
from fedreid_jax.training.processes import signals
from fedreid_jax.training.reports import report

ANEW = build.build  # not that of the fixture `built_once`


@pytest.fixture(autouse=True)
def _signals_of_a_command(monkeypatch):
  """Lets runs end at a signal, as those of commands do."""
  listener = signals._Listener()
  monkeypatch.setattr(signals, '_listener', listener)
  yield
  listener.close()


def metrics_of(results):
  return [(e['round'], e['metrics']) for e in results['evaluation']]


def test_rendering_says_how_far_it_has_come(monkeypatch):
  clients = toy.toy_clients()
  said, run = [], object.__new__(loop.Run)
  run.setup = SimpleNamespace(federation=SimpleNamespace(clients=clients))
  run.record = SimpleNamespace(say=said.append)
  seconds = iter((0.0, 1.0, 3.0, 3.5, 4.0, 9.0, 9.0))
  monkeypatch.setattr(loop.time, 'monotonic', lambda: next(seconds))
  run._render()
  _, second, _, fourth = (client.name for client in clients)
  assert said == [
    f'  rendered 2 of 4 clients, the last one {second}',
    f'  rendered 4 of 4 clients, the last one {fourth}',
  ]


@pytest.mark.slow
def test_after_a_full_disk_the_rounds_that_are_repeated_are_said(
  built_once, small, tmp_path, monkeypatch
):
  """Evaluations, and with them checkpoints, are after rounds 0, 2 and 4."""
  save = client_states.ClientStates.save

  def on_a_disk(self, done, *rest):
    if done == 4:
      raise errors.ResourceError('full', 'disk', errors.MAKE_ROOM)
    return save(self, done, *rest)

  small = toy.replaced(small, {'checkpoint_every': 9})
  monkeypatch.setattr(client_states.ClientStates, 'save', on_a_disk)
  with pytest.raises(errors.ResourceError) as caught:
    loop.train(small, tmp_path)
  assert caught.value.fix == 'make room; rounds 3 to 4 are repeated'
  with pytest.raises(errors.ResourceError, match='rounds 3 to 4 are repeated'):
    loop.train(small, tmp_path)


def test_files_of_a_run(built_once, small, tmp_path):
  results = loop.train(small, tmp_path)
  assert not (tmp_path / run_files.SECRET).exists()  # of a guarantee
  assert json.loads((tmp_path / 'results.json').read_text()) == results
  assert [e['round'] for e in results['evaluation']] == [0, 2, 4]
  entry = results['evaluation'][-1]
  assert entry['model'] == 'global' and entry['target'] == 'target'
  assert set(entry['metrics']) == {'mAP', 'mINP', 'rank1', 'rank5', 'rank10'}
  assert all(0 <= v <= 100 for v in entry['metrics'].values())
  assert (entry['queries'], entry['gallery']) == (8, 16)
  with np.load(tmp_path / 'queries.npz') as saved:
    (precision,) = (saved[name] for name in saved.files)
    assert saved.files == ['global/target/0'] and precision.shape == (8,)
  mean = 100 * np.nanmean(precision)
  assert entry['metrics']['mAP'] == pytest.approx(mean, rel=1e-5)
  lines = [
    json.loads(x) for x in (tmp_path / 'metrics.jsonl').read_text().splitlines()
  ]
  rounds = [x['round'] for x in lines if x['event'] == 'train']
  assert rounds == [1, 2, 3, 4]
  assert {'loss', 'lr', 'seconds', 'bytes_up'} <= set(lines[1])
  assert json.loads((tmp_path / 'config.json').read_text())['name'] == 'toy'
  described = json.loads((tmp_path / 'run.json').read_text())
  assert described['data_digest'] == 'toy' and described['versions']['jax']
  assert described['uploads'] == 'sum'
  sent = results['communication']
  assert results['communication_bytes'] == {
    way: sum(sent[way].values()) for way in ('up', 'down')
  }
  # The statistics of DFH go up once more than they come down, the model less.
  for what, ups, downs in (('dfh', 5, 4 * 4), ('model', 4, 5)):
    assert sent['up'][what] * downs == sent['down'][what] * ups
  assert set(results['seconds']) == {
    'setup',
    'compile',
    'train',
    'eval',
    'total',
  }


@pytest.mark.slow
def test_local_models_are_evaluated_beside_the_global_one(
  federation, small, tmp_path
):
  small = toy.replaced(
    small, {'components': ('fedpav', 'local_models'), 'rounds': 2}
  )
  results = loop.train(small, tmp_path)
  models = [e['model'] for e in results['evaluation'] if e['round'] == 2]
  names = [f'client:{c.name}' for c in federation.clients]
  assert models == ['global', *names]
  assert [e['model'] for e in results['evaluation'] if not e['round']] == [
    'global'
  ]
  values = {str(e['metrics']) for e in results['evaluation']}
  assert len(values) > 3
  small = toy.replaced(small, {'rounds': 2, 'components': ('fedpav',)})
  plain = loop.train(small, tmp_path / 'plain')
  last = plain['evaluation'][-1]['metrics']
  assert last == next(
    e['metrics']
    for e in results['evaluation']
    if (e['model'], e['round']) == ('global', 2)
  )


@pytest.mark.slow
def test_the_best_checkpoint_is_one_after_training(
  federation, small, tmp_path, monkeypatch, capsys
):
  """Even where the model before training is better, as in the summary.

  `evaluation.validation` holds out nobody here, and the targets choose.
  """

  def score(entries):
    return -entries[0]['round']

  monkeypatch.setattr(report, 'checkpoint_score', score)
  small = toy.replaced(small, {'evaluation.validation': 0.1})
  loop.train(small, tmp_path)
  saved = run_files.checkpoints_of(tmp_path)
  assert saved.best() == 2
  run_evaluation.evaluate_run(small, tmp_path, 'best', verbose=True)
  line = "checkpoint 2 was chosen as the best on the run's targets"
  assert line in capsys.readouterr().out


@pytest.mark.slow
def test_console_labels_best_rounds_and_names_clusters(
  federation, small, tmp_path, capsys, monkeypatch
):
  public = federation._replace(
    public=toy.toy_public(), notices=('two of them',)
  )
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: public)
  small = toy.replaced(
    small,
    {
      'components': ('fedpav', 'client_clustering', 'local_models'),
      'rounds': 2,
      'evaluation.every': 1,
    },
  )
  results = loop.train(small, tmp_path, verbose=True)
  printed = capsys.readouterr().out
  assert 'note: two of them' in printed
  for client in federation.clients:
    (best,) = (
      e
      for e in results['summary']
      if e['model'] == f'client:{client.name}' and e['kind'] == 'own_best'
    )
    (row,) = (
      x for x in printed.splitlines() if f'{client.name}, own best' in x
    )
    rank1 = f'{best["metrics"]["rank1"]:.2f}'
    assert str(best['rounds'][0]) in row.split() and rank1 in row.split()
  clusters = [' + '.join(names) for names in results['clusters'].values()]
  assert f'clusters: {" | ".join(clusters)}\n' in printed


def test_a_finished_run_again_trains_nothing(
  built_once, small, finished, monkeypatch
):
  lines = finished / 'metrics.jsonl'
  before = lines.read_text()
  results = json.loads((finished / 'results.json').read_text())
  lines.write_text(before + '{"round": 4, "ev')  # torn: dropped
  assert run_files.results(finished)
  monkeypatch.setattr(Rounds, 'round', lambda *_: pytest.fail('trained again'))
  assert metrics_of(loop.train(small, finished)) == metrics_of(results)
  assert lines.read_text() == before
  whole = (finished / 'results.json').read_text()
  lines.write_text(before.partition('\n')[2])  # a row is lost
  (finished / 'results.json').write_text(whole.replace('"rank1"', '"mAP"'))
  with pytest.raises(errors.IntegrityError, match='results.json'):
    run_files.results(finished)
  with pytest.warns(errors.DamagedRecordWarning) as told:
    loop.train(small, finished)
  names = [str(one.message).split()[0] for one in told]
  assert names == ['metrics.jsonl', 'results.json']
  assert lines.read_text() == before
  assert run_files.results(finished)


@pytest.mark.slow
def test_a_finished_run_goes_on_as_if_it_had_been_longer(
  federation, small, tmp_path
):
  small = toy.replaced(
    small, {'optim.schedule': 'step', 'optim.milestones': (0.5, 0.75)}
  )
  small = toy.replaced(small, {'rounds': 2, 'components': ('fedpav',)})
  loop.train(small, tmp_path / 'both')
  small = toy.replaced(small, {'rounds': 4, 'optim.schedule_rounds': 2})
  found = loop.train(small, tmp_path / 'both')
  once = loop.train(small, tmp_path / 'once')
  assert metrics_of(found) == metrics_of(once)
  assert found['communication_bytes'] == once['communication_bytes']
  assert json.loads((tmp_path / 'both/config.json').read_text())['rounds'] == 4
  small = toy.replaced(small, {'rounds': 3})
  with pytest.raises(errors.ConfigError, match='rounds: 4 there, 3 asked'):
    loop.train(small, tmp_path / 'both')


@pytest.mark.slow
def test_a_signal_saves_and_the_resumed_run_ends_the_same(
  built_once, small, finished, tmp_path, monkeypatch
):
  whole = json.loads((finished / 'results.json').read_text())
  ordinary = Rounds.round

  def interrupted(self, server, states, round_):
    out = ordinary(self, server, states, round_)
    if round_ == 0:
      signal.raise_signal(signal.SIGTERM)
    return out

  small = toy.replaced(small, {'checkpoint_every': 100})
  with monkeypatch.context() as patch, pytest.raises(SystemExit) as info:
    patch.setattr(Rounds, 'round', interrupted)
    loop.train(small, tmp_path / 'cut')
  assert info.value.code == 128 + signal.SIGTERM
  resumed = loop.run_rounds(ANEW, small, tmp_path / 'cut')
  assert metrics_of(resumed) == metrics_of(whole)
  lines = (tmp_path / 'cut' / 'metrics.jsonl').read_text().splitlines()
  rounds = [json.loads(x) for x in lines]
  trained = [x['round'] for x in rounds if x['event'] == 'train']
  assert trained == [1, 2, 3, 4]


def test_another_configuration_is_refused(small, finished):
  small = toy.replaced(small, {'optim.lr': 0.25})
  with pytest.raises(errors.ConfigError, match='optim.lr: 0.05 there, 0.25'):
    loop.train(small, finished)


def test_changed_images_are_refused(federation, small, finished, monkeypatch):
  changed = federation._replace(digest='other')
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: changed)
  with pytest.raises(errors.DataError, match='changed since'):
    loop.train(small, finished)


def test_three_bad_rounds_abort(built_once, small, tmp_path, monkeypatch):
  ordinary = Rounds.round

  def bad(self, server, states, round_):
    server, log = ordinary(self, server, states, round_)
    log['valid'] = np.array([True, round_ < 1, True, True])
    return server, log

  monkeypatch.setattr(Rounds, 'round', bad)
  with pytest.raises(errors.DivergedError, match='birch.*optim.lr') as info:
    loop.train(small, tmp_path)
  assert info.value.exit_code == 5
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  excluded = [json.loads(x).get('excluded') for x in lines]
  assert ['birch'] in excluded


def lines_of(workdir, event):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [x for x in map(json.loads, lines) if x['event'] == event]


@pytest.mark.slow
def test_rounds_without_a_finite_update_have_no_loss(
  federation, small, tmp_path, monkeypatch, capsys
):
  small = toy.replaced(small, {'optim.lr': 1e30})
  with pytest.raises(errors.DivergedError) as info:
    loop.train(small, tmp_path, verbose=True)
  assert info.value.exit_code == 5
  rounds = lines_of(tmp_path, 'train')
  assert len(rounds) == 3
  assert all(len(x['excluded']) == 4 and 'loss' not in x for x in rounds)
  assert ' loss ' not in capsys.readouterr().out


def exploding(monkeypatch, factors, stop_after=None):
  """Multiplies the loss that rounds report."""
  ordinary = Rounds.round

  def round_(self, server, states, number):
    server, log = ordinary(self, server, states, number)
    log['metrics']['loss'] *= factors[number]
    if number + 1 == stop_after:
      signal.raise_signal(signal.SIGTERM)
    return server, log

  monkeypatch.setattr(Rounds, 'round', round_)


def explosions(warnings):
  """Leaves out DFH's warnings about small batches."""
  return [x for x in warnings if x['warning'].startswith('the loss is')]


@pytest.mark.parametrize(
  'stop_after',
  [None, pytest.param(3, marks=pytest.mark.slow)],
)
def test_a_finite_explosion_is_said_once(
  built_once, small, tmp_path, monkeypatch, capsys, stop_after
):
  exploding(monkeypatch, (1, 1, 300, 300), stop_after)
  if stop_after:
    with pytest.raises(SystemExit):
      loop.train(small, tmp_path, verbose=True)
  results = loop.train(small, tmp_path, verbose=True)
  said = ' '.join(capsys.readouterr().out.split())
  assert said.count('warning: the loss is') == 1
  assert '— round 3 — lower optim.lr, dfh.lam' in said
  (line,) = explosions(lines_of(tmp_path, 'warning'))
  (warning,) = explosions(results['warnings'])
  assert line['round'] == 3 and warning['fix'] == 'lower optim.lr, dfh.lam'
  assert line == warning | {'event': 'warning'}
  assert json.loads((tmp_path / 'results.json').read_text()) == results


@pytest.mark.slow
def test_a_loss_beyond_repair_ends_the_run(
  built_once, small, tmp_path, monkeypatch
):
  exploding(monkeypatch, (1, 1, 1, 30_000))
  for _ in range(2):  # and again, from the checkpoint before it
    with pytest.raises(errors.DivergedError, match='times.*dfh.lam') as info:
      loop.train(small, tmp_path)
    assert info.value.exit_code == 5
    (line,) = explosions(lines_of(tmp_path, 'warning'))
    results = json.loads((tmp_path / 'results.json').read_text())
    assert line['round'] == 4 and results['rounds'] == 3
    assert explosions(results['warnings']) == [
      {k: v for k, v in line.items() if k != 'event'}
    ]


def test_a_start_that_fails_leaves_nothing(
  built_once, small, tmp_path, monkeypatch
):
  small = toy.replaced(small, {'start_from': str(tmp_path / 'none')})
  with pytest.raises(errors.IntegrityError, match='no checkpoint'):
    loop.train(small, tmp_path / 'new' / 'run')
  assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_leaves_no_listener(small, tmp_path):
  def fail(*_):
    raise errors.DataError('bad')

  before = monitoring.get_event_duration_listeners()
  with pytest.raises(errors.DataError):
    loop.run_rounds(fail, small, tmp_path)
  assert monitoring.get_event_duration_listeners() == before


def test_a_restart_that_fails_keeps_the_run(
  built_once, small, finished, monkeypatch
):
  def fail(*_, **__):
    raise errors.DataError('bad')

  before = sorted(p for p in finished.rglob('*'))
  with monkeypatch.context() as patch:
    patch.setattr(build.load, 'load', fail)
    with pytest.raises(errors.DataError, match='bad'):
      loop.train(small, finished, restart=True)
  assert sorted(p for p in finished.rglob('*')) == before
  assert loop.train(small, finished)['rounds'] == 4


def test_a_run_whose_folder_was_replaced_stops(
  built_once, small, tmp_path, monkeypatch
):
  ordinary = Rounds.round
  workdir = tmp_path / 'w'

  def replaced(self, server, states, round_):
    shutil.rmtree(workdir)
    workdir.mkdir()
    return ordinary(self, server, states, round_)

  monkeypatch.setattr(Rounds, 'round', replaced)
  with pytest.raises(errors.LockedError, match='replaced') as info:
    loop.train(small, workdir)
  assert info.value.exit_code == 7
  assert list(workdir.iterdir()) == []


def test_evaluations_are_numbered_and_the_last_one_is_not(
  small, built_once, tmp_path, monkeypatch
):
  """Evaluators with a period run by the number (`Evaluator.is_due`)."""
  numbers, made = [], build.build

  def spied(config, root=None):
    setup = made(config, root)

    def evaluate(*models, number, **given):
      numbers.append(number)
      return setup.evaluate(*models, number=number, **given)

    return setup._replace(evaluate=evaluate)

  monkeypatch.setattr(build, 'build', spied)
  loop.train(small, tmp_path)
  assert numbers == [0, 1, None]
