import numpy as np
import pytest

from fedreid_jax.apps.audit import detection


def test_area_by_hand():
  members, others = np.asarray([1.0, 3.0]), np.asarray([0.0, 1.0, 2.0])
  assert detection.auc(members, others) == pytest.approx((1.5 + 3) / 6)


def test_interval_of_the_area_covers_it():
  rng = np.random.default_rng(0)
  truth, hits = 0.7602, 0  # Phi(1 / sqrt 2)
  for _ in range(300):
    members, others = rng.normal(1, 1, 60), rng.normal(0, 1, 200)
    low, high = detection.auc_interval(members, others, 0.95)
    hits += low <= truth <= high
  assert 0.91 <= hits / 300 <= 0.985


def test_proportion_by_published_values():
  """Clopper and Pearson, of 4 in 20 and of none in 20."""
  np.testing.assert_allclose(
    detection.proportion(4, 20), [0.05733, 0.43661], atol=1e-5
  )
  np.testing.assert_allclose(
    detection.proportion(0, 20), [0, 0.16843], atol=1e-5
  )


def test_at_most_one_percent_of_non_members_are_above_the_threshold():
  others = np.arange(1000.0)
  found = detection.measure(np.asarray([988.5, 989.0, 989.5, 2000.0]), others)
  assert found.tpr == 0.5  # 989.5 has ten above it, 989 has ten and itself
  assert 'TPR at 1 % FPR 50.0 %' in found.text()
  tied = detection.measure(np.ones(9), np.ones(1000))
  assert (tied.tpr, tied.auc) == (0, 0.5)


def test_no_rate_with_few_non_members():
  found = detection.measure(np.asarray([1.0, 2.0]), np.arange(999.0))
  assert found.tpr is None and 'too few' in found.text()


def test_a_difference_is_no_chance():
  rng = np.random.default_rng(0)
  scores = rng.normal(0, 1, 400)
  assert detection.at_chance(scores[:200], scores[200:])
  assert not detection.at_chance(scores[:200] + 0.6, scores[200:])
  assert not detection.at_chance(scores[:200] - 0.6, scores[200:])
