import numpy as np
import pytest

from fedreid_jax.apps.papers import effects


def seeds(*means, targets=('a', 'b', 'c'), queries=40, spread=0.05, seed=0):
  """Differences of seeds with given means, in [-1, 1]."""
  rng = np.random.default_rng(seed)
  return [
    {t: mean + spread * rng.standard_normal(queries) for t in targets}
    for mean in means
  ]


def test_the_mean_counts_targets_alike_whatever_their_queries():
  one = {'a': np.full(10, 0.1), 'b': np.full(1000, 0.3)}
  found = effects.effect([one, one], draws=50)
  assert found.mean == pytest.approx(20.0)
  assert (found.seeds, found.targets) == (2, 2)


def test_equal_differences_have_no_interval():
  found = effects.effect([{'a': np.full(7, 0.05)}] * 3, draws=50)
  assert (found.mean, found.low, found.high) == pytest.approx((5.0,) * 3)
  assert found.detectable == pytest.approx(0.0, abs=1e-6)


def test_the_interval_is_that_of_the_seeds_where_only_they_differ():
  """Means of two draws of -10, 0 and 10: the extremes have 1/9 each."""
  own = [{'a': np.full(5, x), 'b': np.full(9, x)} for x in (-0.1, 0.0, 0.1)]
  found = effects.effect(own, draws=4000)
  assert found.mean == pytest.approx(0.0)
  assert (found.low, found.high) == pytest.approx((-10.0, 10.0))
  # The standard error of three numbers with the standard deviation 10.
  assert found.detectable == pytest.approx(2.8 * 10 / 3**0.5, rel=0.05)


def test_the_interval_widens_with_differences_between_targets():
  alike = effects.effect([{'a': np.full(9, 0.1), 'b': np.full(9, 0.1)}] * 2)
  unlike = effects.effect([{'a': np.full(9, 0.0), 'b': np.full(9, 0.2)}] * 2)
  assert alike.mean == pytest.approx(unlike.mean)
  assert unlike.low == pytest.approx(0.0) and unlike.high == pytest.approx(20.0)
  assert alike.high - alike.low < 1e-6


def test_queries_are_drawn_together_for_all_seeds():
  """A query that is hard for every seed stays in the spread of the queries."""
  values = np.repeat([0.0, 1.0], 50)
  found = effects.effect([{'a': values}] * 5, draws=2000)
  # The standard deviation of the mean of 100 draws of 0 and 100 is 5.
  assert found.detectable == pytest.approx(2.8 * 5, rel=0.1)


def test_a_query_without_a_match_is_left_out_for_all_seeds():
  first, second = np.array([0.1, np.nan, 0.3]), np.array([0.1, 9.0, 0.3])
  found = effects.effect([{'a': first}, {'a': second}], draws=10)
  assert found.mean == pytest.approx(20.0)


def test_subtracted_targets():
  own = {'small': np.full(4, 0.3), 'large': np.full(4, 0.1)}
  found = effects.effect([own, own], minus=('large',), draws=20)
  assert (found.mean, found.low) == pytest.approx((20.0, 20.0))


def test_the_interval_covers_the_effect():
  """In 100 repetitions of a design 95 % of the intervals hold the effect."""
  rng = np.random.default_rng(0)
  covered = 0
  for k in range(100):
    means = 0.02 + 0.03 * rng.standard_normal(10)
    own = seeds(*means, targets=('a',), queries=400, seed=k)
    found = effects.effect(own, draws=200)
    covered += found.low <= 2.0 <= found.high
  assert 82 <= covered <= 100


@pytest.mark.parametrize(
  'low, high, claimed, verdict',
  [
    (0.1, 4.0, 'greater', 'supported'),
    (-0.1, 4.0, 'greater', 'not resolved'),
    (-3.0, 0.9, 'greater', 'not supported'),
    (-4.0, -1.0, 'greater', 'not supported'),
    (-0.9, 0.9, 'equal', 'supported'),
    (-0.9, 1.1, 'equal', 'not resolved'),
    (1.1, 3.0, 'equal', 'not supported'),
    (-3.0, -1.1, 'equal', 'not supported'),
  ],
)
def test_verdicts(low, high, claimed, verdict):
  found = effects.Effect((low + high) / 2, low, high, 1.0, 3, 3)
  assert effects.verdict(found, claimed, 1.0) == verdict
  assert effects.verdict(None, claimed, 1.0) == 'no runs yet'


@pytest.mark.parametrize(
  'own', [[], [{}], [{'a': np.ones(2)}, {'b': np.ones(2)}]]
)
def test_errors(own):
  with pytest.raises(ValueError, match='differences|targets'):
    effects.effect(own)
