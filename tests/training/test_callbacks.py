"""Order of the calls of callbacks, and the effect of an exception in one."""

from pathlib import Path

import jax
import pytest

from fedreid_jax import errors
from fedreid_jax.training import callbacks

START = callbacks.Start(Path('w'), {}, 0, False)
ROUND = callbacks.Round(1, 3, {'loss': 1.0}, {})
EVALUATION = callbacks.Evaluation(1, (), {})
SAVED = callbacks.Checkpoint(1, Path('w/checkpoints/1'), None)


class Listener(callbacks.Callback):
  """Notes each call in a common list, and raises in one hook."""

  def __init__(self, name, calls, raises=None):
    self.name, self.calls, self.raises = name, calls, raises or {}

  def _note(self, hook, event):
    del event
    self.calls.append(f'{self.name}.{hook}')
    if hook in self.raises:
      raise self.raises[hook]

  def on_start(self, event):
    self._note('start', event)

  def on_round(self, event):
    self._note('round', event)

  def on_evaluation(self, event):
    self._note('evaluation', event)

  def on_checkpoint(self, event):
    self._note('checkpoint', event)

  def on_end(self, event):
    self._note('end', event)
    self.end = event


def run_round(calls):
  calls.report(ROUND)
  calls.report(EVALUATION)
  calls.report(SAVED)


def make(*others, record=None):
  """Returns (hooks, calls); others are the exceptions of the callbacks."""
  noted = []
  made = [Listener('ab'[k], noted, raises) for k, raises in enumerate(others)]
  return callbacks.Hooks(Listener('record', noted, record), made), noted, made


def test_the_record_is_called_first_and_callbacks_in_their_order():
  calls, noted, _ = make({}, {})
  with calls:
    calls.report(START)
    run_round(calls)
  expected = ['start', 'round', 'evaluation', 'checkpoint', 'end']
  assert noted == [f'{n}.{h}' for h in expected for n in ('record', 'a', 'b')]
  assert calls.watched and calls.ending() == 0


def test_a_failure_is_kept_and_the_others_receive_all_events():
  calls, noted, (a, b) = make({'round': ValueError('mine')}, {})
  with pytest.raises(ValueError, match='mine'), calls:
    calls.report(START)
    run_round(calls)
    assert calls.ending() == callbacks.FAILED
    calls.raise_error()
  assert [x for x in noted if x[0] == 'a'] == ['a.start', 'a.round', 'a.end']
  assert [x for x in noted if x[0] == 'b'] == [
    *('b.start', 'b.round', 'b.evaluation', 'b.checkpoint', 'b.end')
  ]
  assert a.end.round == b.end.round == 1
  assert isinstance(b.end.error, ValueError)


def test_a_stop_is_no_error_and_its_callback_receives_the_checkpoint():
  calls, noted, (a,) = make({'evaluation': callbacks.StopTraining()})
  with calls:
    calls.report(START)
    run_round(calls)
    assert calls.ending() == callbacks.STOPPED
    calls.raise_error()
  assert noted[-3:] == ['a.checkpoint', 'record.end', 'a.end']
  assert a.end.error is None


@pytest.mark.parametrize('first', [0, 1])
def test_an_error_outweighs_a_stop(first):
  raised = [{'round': callbacks.StopTraining()}, {'round': KeyError('x')}]
  calls, _, _ = make(raised[first], raised[1 - first])
  calls.report(ROUND)
  assert calls.ending() == callbacks.FAILED
  with pytest.raises(KeyError):
    calls.raise_error()


def test_a_failure_of_the_record_is_raised_at_once():
  calls, noted, _ = make({}, record={'round': errors.ResourceError('full')})
  with pytest.raises(errors.ResourceError, match='full'):
    calls.report(ROUND)
  assert noted == ['record.round']


def test_a_failure_at_the_start_is_raised_at_once_and_all_started_end():
  calls, noted, _ = make({'start': ValueError('no')}, {})
  with pytest.raises(ValueError, match='no'), calls:
    calls.report(START)
  assert noted[-3:] == ['record.end', 'a.end', 'b.end']


def test_a_failure_at_the_end_is_raised_unless_another_error_ends_the_run():
  calls, noted, _ = make({'end': ValueError('late')}, {})
  with pytest.raises(ValueError, match='late'), calls:
    calls.report(START)
  assert noted[-1] == 'b.end'
  calls, _, _ = make({'end': ValueError('late')})
  with pytest.raises(KeyError), calls:
    calls.report(START)
    raise KeyError('first')


def test_other_processes_call_nothing(monkeypatch):
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  calls, noted, _ = make({'round': ValueError('mine')})
  with calls:
    calls.report(START)
    run_round(calls)
  assert noted == [] and not calls.watched and calls.ending() == 0


@pytest.mark.parametrize('wrong', [callbacks.Callback, print, None])
def test_what_is_no_callback_is_refused(wrong):
  with pytest.raises(errors.ConfigError, match='not an instance') as info:
    callbacks.check([callbacks.Callback(), wrong])
  assert info.value.where == 'callbacks'


def test_to_stop_at_the_end_is_no_error():
  calls, noted, _ = make({'end': callbacks.StopTraining()}, {})
  with calls:
    calls.report(START)
  assert noted[-2:] == ['a.end', 'b.end']
