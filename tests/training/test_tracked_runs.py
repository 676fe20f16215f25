"""Runs with trackers and callbacks: what they receive, resumes and ends."""

import csv
import json
import sys

import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.training import build, loop, trackers
from fedreid_jax.training.files import recorder

SLOW = pytest.mark.slow


class Killed(BaseException):
  """Ends a run as a kill does, without a call of its callbacks."""


class Listener(fr.Callback):
  """Keeps the events of a run, and raises in one round."""

  def __init__(self, hook='', round_=0, error: Exception | None = None):
    self.hook, self.round, self.error = hook, round_, error
    self.events = []

  def _keep(self, hook, event):
    self.events.append((hook, event))
    if (hook, event.round) == (self.hook, self.round) and self.error:
      raise self.error

  def on_start(self, event):
    self._keep('start', event)

  def on_round(self, event):
    self._keep('round', event)

  def on_evaluation(self, event):
    self._keep('evaluation', event)

  def on_checkpoint(self, event):
    self._keep('checkpoint', event)

  def on_end(self, event):
    self._keep('end', event)


def events(listener, hook):
  return [event for name, event in listener.events if name == hook]


def kill(monkeypatch, round_):
  """Lets the next run be killed during a round."""
  ordinary = Rounds.round
  monkeypatch.setattr(trackers.Tracker, 'on_end', lambda *_: None)

  def killed(self, server, states, number):
    if number + 1 == round_:
      raise Killed
    return ordinary(self, server, states, number)

  monkeypatch.setattr(Rounds, 'round', killed)


def table(workdir):
  """Returns {(round, metric): value}; no line is there twice."""
  with (workdir / 'metrics.csv').open(newline='') as file:
    _, *rows = csv.reader(file)
  found = {(int(round_), name): value for round_, name, value in rows}
  assert len(found) == len(rows)
  return found


def timeless(found):
  """Leaves out what depends on time."""
  times = ('train/seconds', 'train/images_per_second')
  return {key: value for key, value in found.items() if key[1] not in times}


def evaluations(results):
  return [(e['round'], e['metrics']) for e in results['evaluation']]


@pytest.fixture
def fedpav(small):
  """Two rounds with an evaluation of each."""
  return toy.replaced(
    small, {'components': ('fedpav',), 'rounds': 2, 'evaluation.every': 1}
  )


@pytest.mark.slow
def test_events_of_a_run(built_once, fedpav, tmp_path):
  listener = Listener()
  results = fr.train(fedpav, tmp_path, callbacks=[listener])
  assert [name for name, _ in listener.events] == [
    *('start', 'evaluation', 'checkpoint'),
    *('round', 'evaluation', 'checkpoint') * 2,
    'end',
  ]
  (start,) = events(listener, 'start')
  assert start.workdir == tmp_path and not start.resumed and start.round == 0
  assert start.config == json.loads((tmp_path / 'config.json').read_text())
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  recorded = [json.loads(line) for line in lines]
  for event in events(listener, 'round'):
    (line,) = [
      x for x in recorded if (x['round'], x['event']) == (event.round, 'train')
    ]
    assert line == {
      **{'round': event.round, 'event': 'train', **event.metrics},
      'by_client': event.clients,
    }
    clients = event.clients
    assert [*clients] == line['clients'] == ['ash', 'birch', 'cedar', 'dogwood']
    # FedPav weights by images; the loss of a round is the mean over all steps.
    assert [c['weight'] for c in clients.values()] == line['weights']
    steps = {'ash': 2, 'birch': 3, 'cedar': 1, 'dogwood': 2}
    mean = sum(steps[n] * c['loss'] for n, c in clients.items()) / 8
    assert mean == pytest.approx(line['loss'], rel=1e-5)
    assert len({c['loss'] for c in clients.values()}) == 4
  entries = [e for x in events(listener, 'evaluation') for e in x.entries]
  assert entries == results['evaluation']
  saved = events(listener, 'checkpoint')
  assert [x.path for x in saved] == [
    tmp_path / 'checkpoints' / str(k) for k in range(3)
  ]
  assert all((x.path / 'host.json').is_file() or x.round < 2 for x in saved)
  scores = [e['metrics']['mAP'] for e in entries]
  assert [x.score for x in saved] == [None, *scores[1:]]
  (end,) = events(listener, 'end')
  assert (end.round, end.error) == (2, None)


@SLOW
def test_a_round_of_many_clients_is_a_short_line(
  federation, fedpav, tmp_path, monkeypatch
):
  public = federation._replace(public=toy.toy_public())
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: public)
  monkeypatch.setattr(recorder, 'LINES', 3)
  fedpav = toy.replaced(
    fedpav, {'rounds': 1, 'components': ('fedpav', 'client_clustering')}
  )
  listener = Listener()
  results = fr.train(fedpav, tmp_path, callbacks=[listener])
  (event,) = events(listener, 'round')
  assert event.form == 'summary' and len(event.clients) == 4
  assert event.metrics['num_clients'] == 4
  assert event.metrics['num_clusters'] == len(results['clusters'])
  assert not {'clients', 'weights', 'clusters'} & {*event.metrics}
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  (line,) = (x for x in lines if '"train"' in x)
  assert 'over_clients' in line and 'ash' not in line


@pytest.mark.slow
def test_ranked_lists_are_drawn_for_callbacks_unless_none_are_asked(
  built_once, fedpav, tmp_path, monkeypatch
):
  drawn = []
  ordinary = loop.picture.Pictures.__call__
  monkeypatch.setattr(
    loop.picture.Pictures,
    '__call__',
    lambda self, *given: (drawn.append(1), ordinary(self, *given)),
  )
  fedpav = toy.replaced(fedpav, {'rounds': 1})
  listener = Listener()
  fr.train(fedpav, tmp_path / 'a', callbacks=[listener])
  for event in events(listener, 'evaluation'):
    (image,) = event.images.values()
    # Four queries; 8x8 images in frames of one pixel and margins of one.
    assert [*event.images] == ['target/global']
    assert image.shape == (4 * 12, 11 * 12, 3) and image.dtype == np.uint8
  assert len(drawn) == 2
  fedpav = toy.replaced(fedpav, {'track_images': 0})
  unseen = Listener()
  fr.train(fedpav, tmp_path / 'b', callbacks=[unseen])
  assert all(event.images == {} for event in events(unseen, 'evaluation'))
  assert len(drawn) == 2


@pytest.mark.slow
def test_trackers_change_neither_the_results_nor_the_record(
  built_once, fedpav, tmp_path, monkeypatch
):
  def unasked(*_):
    pytest.fail('drawn for nobody')

  with monkeypatch.context() as patch:
    patch.setattr(loop.picture.Pictures, '__call__', unasked)
    plain = fr.train(fedpav, tmp_path / 'plain')
  fedpav = toy.replaced(fedpav, {'track': ('csv',)})
  tracked = fr.train(fedpav, tmp_path / 'tracked', callbacks=[Listener()])
  assert evaluations(tracked) == evaluations(plain)
  for name in ('config.json', 'queries.npz'):
    a, b = (tmp_path / kind / name for kind in ('plain', 'tracked'))
    assert a.read_bytes() == b.read_bytes()
  assert not {'metrics.csv', 'tracking.json'} & {
    path.name for path in (tmp_path / 'plain').iterdir()
  }


@SLOW
def test_a_killed_and_resumed_run_has_every_round_once(
  federation, small, tmp_path, monkeypatch
):
  small = toy.replaced(
    small,
    {
      'components': ('fedpav',),
      'track': ('csv',),
      'checkpoint_every': 2,
      'evaluation.every': 2,
    },
  )
  whole = fr.train(small, tmp_path / 'whole')
  with monkeypatch.context() as patch:
    kill(patch, 4)
    with pytest.raises(Killed):
      fr.train(small, tmp_path / 'cut')
  # The record of the killed run has the rounds after its last checkpoint.
  before = {key[0] for key in table(tmp_path / 'cut')}
  assert before == {*range(4)}
  resumed = fr.train(small, tmp_path / 'cut')
  assert evaluations(resumed) == evaluations(whole)
  tables = [timeless(table(tmp_path / name)) for name in ('whole', 'cut')]
  assert tables[0] == tables[1]
  assert {'client/ash/loss', 'train/lr', 'evaluation/target/global/mAP'} <= {
    name for _, name in tables[0]
  }
  found = {key: float(v) for key, v in tables[1].items()}
  for entry in whole['evaluation']:
    for name, value in entry['metrics'].items():
      assert found[entry['round'], f'evaluation/target/global/{name}'] == value


# A killed process leaves its file open.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_tensorboard_continues_in_the_same_folder(
  federation, fedpav, tmp_path, monkeypatch
):
  pytest.importorskip('tensorboardX', reason="pip install '.[test]'")
  accumulator = pytest.importorskip(
    'tensorboard.backend.event_processing.event_accumulator'
  )
  fedpav = toy.replaced(
    fedpav,
    {
      'track': ('tensorboard',),
      'checkpoint_every': 100,
      'rounds': 3,
      'evaluation.every': 3,
    },
  )
  with monkeypatch.context() as patch, pytest.raises(Killed):
    kill(patch, 3)
    fr.train(fedpav, tmp_path)
  results = fr.train(fedpav, tmp_path)
  board = accumulator.EventAccumulator(
    str(tmp_path / 'tensorboard'), size_guidance={'images': 0, 'scalars': 0}
  )
  board.Reload()
  shown = board.Scalars('evaluation/target/global/mAP')
  wanted = [(e['round'], e['metrics']['mAP']) for e in results['evaluation']]
  assert [(x.step, pytest.approx(x.value)) for x in shown] == wanted
  for name in ('train/loss', 'client/birch/loss'):
    assert [x.step for x in board.Scalars(name)] == [1, 2, 3]
  assert [x.step for x in board.Images('ranked/target/global')] == [0, 3]


@SLOW
def test_a_run_is_resumed_with_another_tracker(built_once, small, tmp_path):
  small = toy.replaced(small, {'rounds': 2, 'components': ('fedpav',)})
  stop = Listener('round', 1, fr.StopTraining())
  fr.train(small, tmp_path, callbacks=[stop])
  assert not (tmp_path / 'metrics.csv').exists()
  small = toy.replaced(small, {'track': ('csv',), 'track_images': 0})
  fr.train(small, tmp_path)
  assert {round_ for round_, _ in table(tmp_path)} == {2}
  assert '"track"' not in (tmp_path / 'config.json').read_text()
  small = toy.replaced(small, {'track': ()})
  fr.train(small, tmp_path, restart=True)
  assert not (tmp_path / 'metrics.csv').exists()


@SLOW
@pytest.mark.parametrize('hook', ['round', 'evaluation', 'checkpoint'])
def test_a_callback_that_raises_ends_a_run_that_was_saved(
  built_once, small, tmp_path, hook
):
  small = toy.replaced(
    small,
    {
      'components': ('fedpav',),
      'checkpoint_every': 100,
      'track': ('csv',),
      'rounds': 3,
      'evaluation.every': 2 if hook == 'evaluation' else 3,
    },
  )
  listener = Listener(hook, 2 * (hook != 'checkpoint'), ZeroDivisionError('me'))
  with pytest.raises(ZeroDivisionError, match='me'):
    fr.train(small, tmp_path / 'cut', callbacks=[listener])
  stopped = events(listener, 'end')[0]
  assert stopped.error is listener.error
  assert stopped.round == (0 if hook == 'checkpoint' else 2)
  assert (tmp_path / 'cut' / 'checkpoints' / str(stopped.round)).is_dir()
  resumed = fr.train(small, tmp_path / 'cut')
  whole = fr.train(small, tmp_path / 'whole')
  assert evaluations(resumed) == evaluations(whole)
  tables = [timeless(table(tmp_path / name)) for name in ('whole', 'cut')]
  assert tables[0] == tables[1]


@pytest.mark.slow
def test_a_callback_stops_a_run_and_a_later_call_continues_it(
  built_once, small, tmp_path, capsys
):
  small = toy.replaced(
    small,
    {
      'components': ('fedpav',),
      'checkpoint_every': 100,
      'rounds': 3,
      'evaluation.every': 3,
    },
  )
  listener = Listener('round', 2, fr.StopTraining())
  results = fr.train(small, tmp_path, verbose=True, callbacks=[listener])
  assert results['rounds'] == 2 and [e[0] for e in evaluations(results)] == [0]
  said = capsys.readouterr().out
  assert 'saved after round 2, stopped by a callback\n' in said
  assert json.loads((tmp_path / 'results.json').read_text()) == results
  (end,) = events(listener, 'end')
  assert (end.round, end.error) == (2, None)
  again = Listener()
  whole = fr.train(small, tmp_path, callbacks=[again])
  assert whole['rounds'] == 3 and [e[0] for e in evaluations(whole)] == [0, 3]
  (start,) = events(again, 'start')
  assert (start.round, start.resumed, start.kept) == (2, True, 2)
  assert [event.round for event in events(again, 'round')] == [3]


def test_a_tracker_that_fails_does_not_end_the_run(
  built_once, fedpav, tmp_path, monkeypatch, capsys
):
  ordinary = trackers.CsvWriter.write

  def write(self, measured):
    if measured.round:
      raise ConnectionError('service down')
    ordinary(self, measured)

  monkeypatch.setattr(trackers.CsvWriter, 'write', write)
  fedpav = toy.replaced(fedpav, {'track': ('csv',)})
  assert fr.train(fedpav, tmp_path, verbose=True)['rounds'] == 2
  said = capsys.readouterr().out
  line = (
    'warning: csv failed, the run continues without it: '
    'ConnectionError: service down\n'
  )
  assert said.count('warning: csv') == 1 and line in said
  assert {round_ for round_, _ in table(tmp_path)} == {0}
  events_ = [
    json.loads(x) for x in (tmp_path / 'metrics.jsonl').read_text().splitlines()
  ]
  assert [x['round'] for x in events_ if x['event'] == 'warning'] == [1]


def test_a_start_that_fails_leaves_no_file_of_a_tracker(
  built_once, fedpav, tmp_path, monkeypatch
):
  fedpav = toy.replaced(fedpav, {'track': ('csv',)})

  def save(*_):
    assert (tmp_path / 'w' / 'metrics.csv').exists()
    raise ZeroDivisionError

  monkeypatch.setattr(loop.checkpoint.Checkpoints, 'save', save)
  with pytest.raises(ZeroDivisionError):
    fr.train(fedpav, tmp_path / 'w')
  assert not (tmp_path / 'w').exists()


def test_what_is_refused_before_anything_is_made(fedpav, tmp_path, monkeypatch):
  monkeypatch.setattr(loop, 'Run', lambda *_: pytest.fail('too late'))
  with pytest.raises(errors.ConfigError, match='not an instance'):
    fr.train(fedpav, tmp_path / 'w', callbacks=[Listener])
  fedpav = toy.replaced(fedpav, {'track': ('csv', 'csv')})
  with pytest.raises(errors.ConfigError, match='listed twice'):
    fr.train(fedpav, tmp_path / 'w')
  fedpav = toy.replaced(fedpav, {'track': ('tensorboard',)})
  monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  with pytest.raises(errors.ConfigError, match=r'fedreid_jax\[track\]'):
    fr.train(fedpav, tmp_path / 'w')
  assert not (tmp_path / 'w').exists()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mlflow', 'wandb'])
def test_a_service_has_all_rounds_of_a_run(
  federation, fedpav, tmp_path, monkeypatch, name
):
  pytest.importorskip(name, reason=f"pip install '.[{name}]'")
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', (tmp_path / 'store').as_uri())
  fedpav = toy.replaced(fedpav, {'track': (name,)})
  listener = Listener('round', 1, fr.StopTraining())
  fr.train(fedpav, tmp_path / 'w', callbacks=[listener])
  before = recorder.read_object(tmp_path / 'w' / 'tracking.json')[name]
  assert (before['round'], before['evaluation']) == (1, 1)
  fr.train(fedpav, tmp_path / 'w')
  after = recorder.read_object(tmp_path / 'w' / 'tracking.json')[name]
  assert after == before | {'round': 2, 'evaluation': 2}
  lines = (tmp_path / 'w' / 'metrics.jsonl').read_text()
  assert 'failed, the run continues' not in lines
