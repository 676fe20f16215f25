"""Names and numbers that every tracker receives, and failures of writers."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.training import callbacks, trackers
from fedreid_jax.training.files import recorder
from fedreid_jax.training.trackers import Measured

START = callbacks.Start(Path('w'), {}, 4, True)
ROUND = callbacks.Round(
  5,
  9,
  {'loss': 1.5, 'images': 24, 'clients': ['ash'], 'clusters': {'0': ['ash']}},
  {'ash': {'loss': 2.5, 'weight': 0.25}},
)
EVALUATION = callbacks.Evaluation(
  5,
  (
    {'target': 'mall', 'model': 'global', 'metrics': {'mAP': 10.0}},
    {'target': 'park', 'model': 'client:ash', 'metrics': {'rank1': 20.0}},
  ),
  {'mall/global': np.zeros((2, 2, 3), np.uint8)},
)


class Writer:
  """Keeps what it receives, and fails where it is told to."""

  def __init__(self, fails=''):
    self.fails, self.seen = fails, []

  def open(self, start):
    self.seen.append(start)
    self._fail('open')
    return self

  def write(self, measured):
    self.seen.append(measured)
    self._fail(measured.kind)

  def close(self, error):
    self.seen.append(error)
    self._fail('close')

  def _fail(self, place):
    if place == self.fails:
      raise OSError('no\nnetwork ' + 1000 * 'x')


def run(writer, error=None):
  said = []
  one = trackers.Tracker('mine', writer.open, lambda *what: said.append(what))
  one.on_start(START)
  one.on_round(ROUND)
  one.on_evaluation(EVALUATION)
  one.on_checkpoint(callbacks.Checkpoint(5, Path('w/5'), None))
  one.on_end(callbacks.End(5, error))
  return said


def test_events_become_names_and_numbers():
  writer, error = Writer(), ValueError()
  assert run(writer, error) == []
  start, round_, evaluation, end = writer.seen
  assert start is START and end is error
  assert (round_.kind, round_.round, round_.images) == ('round', 5, {})
  assert round_.scalars == {
    'train/loss': 1.5,
    'train/images': 24.0,
    'client/ash/loss': 2.5,
    'client/ash/weight': 0.25,
  }
  assert (evaluation.kind, evaluation.round) == ('evaluation', 5)
  assert evaluation.scalars == {
    'evaluation/mall/global/mAP': 10.0,
    'evaluation/park/client/ash/rank1': 20.0,
  }
  assert [*evaluation.images] == ['ranked/mall/global']


@pytest.mark.parametrize(
  'fails, calls, round_',
  [('open', 1, 4), ('round', 2, 5), ('evaluation', 3, 5), ('close', 4, 5)],
)
def test_a_failure_is_one_line_and_the_last_call(fails, calls, round_):
  writer = Writer(fails)
  ((number, what),) = run(writer)
  assert number == round_ and len(writer.seen) == calls
  assert what.startswith('mine failed, the run continues without it: OSError')
  assert '\n' not in what and len(what) < 400


def test_the_record_has_the_message_of_a_tracker_that_failed(
  config, tmp_path, capsys, monkeypatch
):
  monkeypatch.setitem(
    trackers.KINDS, 'csv', trackers.Kind(Writer('round').open)
  )
  config = toy.replaced(config, {'track': ('csv',)})
  (one,) = trackers.make(config, recorder.Recorder(tmp_path, 9))
  one.on_start(START)
  one.on_round(ROUND)
  assert capsys.readouterr().out.startswith('warning: csv failed, the run')
  line = (tmp_path / 'metrics.jsonl').read_text()
  assert line.startswith('{"round": 5, "event": "warning", "warning": "csv')


@pytest.mark.parametrize('name', [n for n, k in trackers.KINDS.items() if k[1]])
def test_a_missing_package_is_one_line_with_the_extra(name, monkeypatch):
  kind = trackers.KINDS[name]
  monkeypatch.setitem(sys.modules, kind.package, None)
  with pytest.raises(errors.ConfigError) as info:
    trackers.check(('csv', name))
  line = info.value.line()
  assert line.startswith(f'error[2]: {name} needs {kind.package}')
  assert line.endswith(f"— track — pip install 'fedreid_jax[{kind.extra}]'")


def test_nothing_is_sent_twice(tmp_path):
  def measured(kind, round_):
    return trackers.Measured(kind, round_, {})

  first = trackers.Sent(tmp_path, 'mlflow')
  first.begin(id='abc')
  assert first.take(measured('evaluation', 0))
  assert first.take(measured('round', 1)) and first.take(measured('round', 2))
  assert first.take(measured('evaluation', 2))
  other = trackers.Sent(tmp_path, 'wandb')
  assert other.entry == {}
  other.begin(id='def')
  # The run is killed in round 3, and resumed after round 1.
  again = trackers.Sent(tmp_path, 'mlflow')
  assert again.entry['id'] == 'abc'
  assert not again.take(measured('round', 2))
  assert not again.take(measured('evaluation', 2))
  assert again.take(measured('round', 3))
  assert again.take(measured('evaluation', 4))
  assert trackers.Sent(tmp_path, 'wandb').entry == {'id': 'def'}


def start(workdir, round_=0, resumed=False):
  return callbacks.Start(workdir, {}, round_, resumed)


def rows(workdir: Path):
  with (workdir / 'metrics.csv').open(newline='') as file:
    return [*csv.reader(file)]


def written(workdir):
  writer = trackers.CsvWriter(start(workdir))
  writer.write(Measured('evaluation', 0, {'evaluation/a,b/global/mAP': 0.1}))
  writer.write(Measured('round', 1, {'train/loss': 1 / 3, 'train/x "y"': 2.0}))
  writer.write(Measured('round', 2, {'train/loss': float('nan')}))
  writer.close(None)
  return rows(workdir)


def test_the_library_reads_what_was_written(tmp_path):
  header, *found = written(tmp_path)
  assert header == ['round', 'metric', 'value']
  assert found == [
    ['0', 'evaluation/a,b/global/mAP', '0.1'],
    ['1', 'train/loss', '0.3333333333333333'],
    ['1', 'train/x "y"', '2.0'],
    ['2', 'train/loss', 'nan'],
  ]
  assert float(found[1][2]) == 1 / 3


def test_a_resumed_run_drops_later_rounds_and_damaged_lines(tmp_path):
  before = written(tmp_path)
  with (tmp_path / 'metrics.csv').open('a') as file:
    file.write('1,x\n1,train/loss,zero\n1.5,y,2\n2,train/ac')
  writer = trackers.CsvWriter(start(tmp_path, 1, resumed=True))
  assert rows(tmp_path) == before[:-1]
  writer.write(Measured('round', 2, {'train/loss': 0.5}))
  assert rows(tmp_path) == [*before[:-1], ['2', 'train/loss', '0.5']]


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
  before = written(tmp_path)
  trackers.CsvWriter(start(tmp_path))
  assert rows(tmp_path) == before[:1]


@pytest.mark.parametrize(
  'line, round_',
  [
    (b'round,metric,value', -1),
    (b'7,"a,b",1e-3', 7),
    *((x, None) for x in (b'', b'7,a', b'7,a,b', b'x,a,1', b'7,\xff,1')),
    *((x, None) for x in (b'7,a,1,2', b'7,"a', b'7,a\x00,')),
  ],
)
def test_the_round_of_a_line(line, round_):
  assert trackers.csv_round(line) == round_
