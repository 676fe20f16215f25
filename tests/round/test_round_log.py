import numpy as np
import pytest

from fedreid_jax.round import round_log


def test_means_are_of_valid_clients_and_their_steps():
  sums = {
    'loss': np.array([2.0, 8.0, 1.0, 100.0], np.float32),
    'accuracy': np.array([1.0, 3.0, 1.0, 50.0], np.float32),
  }
  steps = np.array([2, 4, 1, 5])
  valid = np.array([True, True, True, False])
  log = round_log.training(sums, steps, valid)
  assert log['metrics']['loss'] == pytest.approx(11 / 7)
  assert log['metrics']['accuracy'] == pytest.approx(5 / 7)
  # Of the clients' own means 1, 2 and 1, which have the mean 4 / 3.
  assert log['median_loss'] == 1.0


def test_nobody_has_no_mean():
  sums = {'loss': np.array([np.nan], np.float32)}
  log = round_log.training(sums, np.array([3]), np.array([False]))
  assert log == {'metrics': {}}


def test_the_means_of_each_client_are_in_canonical_order():
  sums = {'loss': np.array([2.0, 8.0, 7.0, 3.0], np.float32)}
  steps = np.array([2, 4, 0, 1])
  # The clients of the cohort are 1, 4 and 5; the third lane is empty.
  lanes = np.array([5, 1, -1, 4])
  found = round_log.per_client(sums, steps, lanes)
  assert found['loss'].tolist() == [2.0, 3.0, 1.0]
