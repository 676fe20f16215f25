"""Means over trials, and their intervals."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.evaluation import means


def test_metrics_are_averaged_and_counts_are_the_largest():
  mean = means.over_trials(
    [{'mAP': 10.0, 'queries': 4}, {'mAP': 16.0, 'queries': 5}]
  )
  assert mean == {'mAP': 13.0, 'mAP_std': 3.0, 'queries': 5}
  alone = {'mAP': 10.0, 'queries': 4}
  assert means.over_trials([alone]) == alone


@pytest.mark.parametrize(
  'results', [[], [{'mAP': 1.0}, {'mAP': 1.0, 'rank1': 2.0}]]
)
def test_results_without_common_entries_are_refused(results):
  with pytest.raises(errors.DataError):
    means.over_trials(results)


def test_the_interval_covers_the_mean_as_often_as_it_says():
  """Of a known mean of 0.3, by 100 samples of 60 queries."""
  rng = np.random.default_rng(0)
  covered = 0
  for _ in range(100):
    low, high = means.bootstrap_interval([rng.beta(0.6, 1.4, 60)], draws=300)
    covered += low <= 0.3 <= high
  assert 88 <= covered <= 100


def test_its_width_is_that_of_the_standard_error():
  values = np.random.default_rng(1).normal(0.5, 0.1, 400)
  low, high = means.bootstrap_interval([values])
  error = values.std(ddof=1) / 20
  assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
  assert (low + high) / 2 == pytest.approx(values.mean(), abs=error / 5)


def test_runs_share_the_drawn_queries():
  """The mean of x and -x is zero for every drawn query."""
  values = np.random.default_rng(2).normal(size=50)
  low, high = means.bootstrap_interval([values, -values])
  assert low == pytest.approx(0, abs=1e-12) == high


def test_queries_without_a_match_do_not_count():
  values = np.array([0.2, np.nan, 0.2])
  assert means.bootstrap_interval([values]) == pytest.approx((0.2, 0.2))
  with pytest.raises(ValueError, match='no query'):
    means.bootstrap_interval([np.array([np.nan])])
