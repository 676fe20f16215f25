"""Trials of RegDB and the summary over trials."""

import pytest

from fedreid_jax import errors
from fedreid_jax.evaluation.protocol import trials


def test_a_model_may_be_tested_on_its_own_trial_or_without_one():
  trials.check_regdb_trial(3, 3)
  trials.check_regdb_trial(10, None)


@pytest.mark.parametrize(
  ('trial', 'trained', 'error'),
  [
    (2, 1, errors.ConfigError),
    (0, None, errors.ConfigError),
    (11, 1, errors.ConfigError),
    (1, 11, errors.IntegrityError),
    (1, 'x', errors.IntegrityError),
  ],
)
def test_other_trials_are_refused(trial, trained, error):
  with pytest.raises(error):
    trials.check_regdb_trial(trial, trained)


def test_metrics_are_averaged_and_counts_are_the_largest():
  mean = trials.mean([{'mAP': 10.0, 'queries': 4}, {'mAP': 16.0, 'queries': 5}])
  assert mean == {'mAP': 13.0, 'mAP_std': 3.0, 'queries': 5}
  alone = {'mAP': 10.0, 'queries': 4}
  assert trials.mean([alone]) == alone


@pytest.mark.parametrize(
  'results', [[], [{'mAP': 1.0}, {'mAP': 1.0, 'rank1': 2.0}]]
)
def test_results_without_common_entries_are_refused(results):
  with pytest.raises(errors.DataError):
    trials.mean(results)
