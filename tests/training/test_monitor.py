"""Messages about clients that a round leaves out."""

from types import SimpleNamespace

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.training.reports import monitor, progress, report

NAMES = ['ash', 'birch', 'cedar', 'dogwood']


def test_clients_out_of_range_are_named_apart():
  said = []
  record = SimpleNamespace(say=said.append)
  found = monitor.Monitor(toy.toy_config(), record, (), progress.Progress())
  found.check_updates(['ash', 'cedar'], ['cedar'], 4)
  assert 'ash is not finite' in said[0] and 'cedar' not in said[0]
  assert 'cedar is out of range' in said[1] and 'ash' not in said[1]
  found.check_updates(['ash'], (), 4)
  assert len(said) == 3
  with pytest.raises(errors.DivergedError, match='out of range.*cedar'):
    found.check_updates(['cedar'], ['cedar'], 4)


def test_a_few_faulty_clients_of_many_do_not_end_the_run():
  said = []
  record = SimpleNamespace(say=said.append)
  found = monitor.Monitor(toy.toy_config(), record, (), progress.Progress())
  few, many = ['ash'] * 6, ['ash'] * 7
  for _ in range(4):
    found.check_updates(few, (), 64)
  assert len(said) == 4
  found.check_updates(many, (), 64)
  found.check_updates([], (), 64)
  found.check_updates(many, (), 64)
  found.check_updates(many, (), 64)
  with pytest.raises(errors.DivergedError, match='3 rounds in a row'):
    found.check_updates(many, (), 64)


def test_names_of_clients_out_of_range():
  log = {'clients': np.array([0, 2, 3])}
  assert report.out_of_range(log, NAMES) == []
  log['out_of_range'] = np.array([False, True, False])
  assert report.out_of_range(log, NAMES) == ['cedar']
