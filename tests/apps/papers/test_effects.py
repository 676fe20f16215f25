"""Effects, their intervals, and verdicts."""

import numpy as np
import pytest
from scipy import stats

from fedreid_jax.apps.papers import effects


def designed(cells, queries=4):
  """Differences of `cells` `[S, T]` in mAP, the same for every query."""
  return [
    {f't{k}': np.full(queries, x / 100) for k, x in enumerate(row)}
    for row in cells
  ]


def test_the_mean_counts_targets_alike_whatever_their_queries():
  one = {'a': np.full(10, 0.1), 'b': np.full(1000, 0.3)}
  found = effects.effect([one, one])
  assert found.mean == pytest.approx(20.0)
  assert (found.seeds, found.targets) == (2, 2)


def test_equal_differences_have_no_interval():
  found = effects.effect([{'a': np.full(7, 0.05)}] * 3)
  assert (found.mean, found.low, found.high) == pytest.approx((5.0,) * 3)
  assert found.detectable == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize('turned', [False, True])
def test_the_interval_is_students_where_only_one_thing_differs(turned):
  """Of three seeds, or of three targets, alone."""
  values = np.array([1.0, 4.0, 7.0])
  cells = np.repeat(values[:, None], 2, 1)
  found = effects.effect(designed(cells.T if turned else cells))
  wanted = stats.ttest_1samp(values, 0.0)
  interval = wanted.confidence_interval()
  assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
  assert found.freedom == pytest.approx(2)
  assert effects.p_values(found, 'greater', 1.0)[0] == pytest.approx(
    wanted.pvalue
  )


def test_a_worked_interval():
  """Variances 4 of the seeds' means and 1 of the targets', of two each."""
  cells = np.array([[0.0, 2.0], [4.0, 6.0]])  # means 1, 5 and 2, 4
  found = effects.effect(designed(cells))
  seeds, targets = 8.0 / 2, 2.0 / 2
  assert found.error == pytest.approx((seeds + targets) ** 0.5)
  assert found.freedom == pytest.approx(25 / (seeds**2 + targets**2))


def test_a_single_target_varies_with_its_queries():
  values = np.repeat([0.0, 1.0], 50)
  found = effects.effect([{'a': values}] * 5)
  assert found.error == pytest.approx(100 * values.std(ddof=1) / 10)
  assert found.freedom == pytest.approx(99)


def test_routes_that_differ_take_the_place_of_their_targets():
  cells = np.tile([10.0, 10.5, 11.0, 0.0, 0.5, 1.0, 5.0, 5.5, 6.0], (2, 1))
  routes = {f't{k}': 'abc'[k // 3] for k in range(9)}
  found = effects.effect(designed(cells), routes=routes)
  plain = effects.effect(designed(cells))
  assert found.mean == plain.mean
  assert found.freedom == pytest.approx(2)
  assert found.error == pytest.approx(np.std([10.5, 0.5, 5.5], ddof=1) / 3**0.5)
  mixed = {f't{k}': 'abc'[k % 3] for k in range(9)}
  assert effects.effect(designed(cells), routes=mixed) == plain


def test_a_query_without_a_match_is_left_out_for_all_seeds():
  first, second = np.array([0.1, np.nan, 0.3]), np.array([0.1, 9.0, 0.3])
  found = effects.effect([{'a': first}, {'a': second}])
  assert found.mean == pytest.approx(20.0)


def test_subtracted_targets():
  own = {
    **{'small': np.full(4, 0.3), 'tiny': np.full(4, 0.5)},
    **{'large': np.full(4, 0.1), 'huge': np.full(4, 0.3)},
  }
  found = effects.effect([own, own], minus=('large', 'huge'))
  assert found.mean == pytest.approx(20.0)
  # Each side has two means that differ by 20: a variance of 200 / 2.
  assert found.error == pytest.approx(200**0.5)


def coverage(targets, seeds, target_sd, heavy=False, repetitions=1000):
  """Percent of intervals that hold a true effect of zero."""
  rng = np.random.default_rng([targets, seeds, target_sd, heavy])
  covered = 0
  for _ in range(repetitions):
    draw = rng.standard_t(3, targets) / 3**0.5 if heavy else None
    own = rng.normal(0, 1, targets) if draw is None else draw
    cells = target_sd * own + rng.normal(0, 1, (seeds, 1))
    cells = cells + rng.normal(0, 3, (seeds, targets))
    routes = {f't{k}': str(k // 3) for k in range(targets)}
    found = effects.effect(designed(cells, 1), routes=routes)
    covered += found.low <= 0 <= found.high
  return 100 * covered / repetitions


@pytest.mark.parametrize('targets, seeds', [(9, 5), (3, 3)])
def test_the_interval_covers_where_targets_differ(targets, seeds):
  assert 92 <= coverage(targets, seeds, 8, repetitions=300) <= 99.5


@pytest.mark.slow
@pytest.mark.parametrize('targets', [3, 9])
@pytest.mark.parametrize('seeds', [3, 5])
@pytest.mark.parametrize('spread', [(0, False), (8, False), (8, True)])
def test_the_interval_covers_the_effect(targets, seeds, spread):
  """The sizes of the study; 1,000 repetitions have an error of 0.7 %."""
  assert 93 <= coverage(targets, seeds, *spread) <= 99.7


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
def test_verdicts_are_those_of_the_interval(low, high, claimed, verdict):
  error = (high - low) / 2 / stats.t.ppf(0.975, 7)
  found = effects.Effect((low + high) / 2, low, high, 1.0, 3, 3, error, 7.0)
  assert effects.verdict(found, claimed, 1.0) == verdict
  assert effects.verdict(None, claimed, 1.0) == 'no runs yet'


def test_holms_method():
  """Sorted p times 3, 2, 1, never falling; the order is kept."""
  assert effects.holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])


def test_a_family_of_claims_is_judged_more_strictly():
  def claim(mean):
    return effects.Effect(mean, 0, 0, 0, 5, 9, 1.0, 30.0), 'greater', 1.0

  family = [claim(4.0), claim(2.2), (None, 'greater', 1.0), claim(-4.0)]
  alone = [effects.verdict(*one) for one in family]
  assert alone == ['supported', 'supported', 'no runs yet', 'not supported']
  assert effects.corrected(family) == [
    *('supported', 'supported', 'no runs yet', 'not supported'),
  ]
  # With ten claims more, a p of 0.036 decides nothing.
  many = effects.corrected([*family, *[claim(0.5)] * 10])
  assert many[:4] == [
    *('supported', 'not resolved', 'no runs yet', 'not supported'),
  ]


@pytest.mark.parametrize(
  'own', [[], [{}], [{'a': np.ones(2)}, {'b': np.ones(2)}]]
)
def test_errors(own):
  with pytest.raises(ValueError, match='differences|targets'):
    effects.effect(own)


def test_effects_of_targets_are_drawn_to_their_mean():
  """Worked: y = 0 and 8, e = 4 of both seeds, v = 32 - 4, b = 7/8."""
  cells = np.array([[-2.0, 6.0], [2.0, 10.0]])
  low, high = effects.by_target(designed(cells)).values()
  assert (low.raw, high.raw) == pytest.approx((0.0, 8.0))
  assert (low.mean, high.mean) == pytest.approx((0.5, 7.5))
  own, common = 7 / 8 * 4, (1 / 8) ** 2 * 32 / 2
  free = (own + common) ** 2 / (own**2 / 2 + common**2)
  half = stats.t.ppf(0.975, free) * (own + common) ** 0.5
  assert (high.low, high.high) == pytest.approx((7.5 - half, 7.5 + half))


def test_targets_that_differ_by_chance_have_the_common_mean():
  cells = np.array([[-3.0, 5.0, 1.0], [5.0, -1.0, 2.0]])
  found = effects.by_target(designed(cells))
  assert {round(one.mean, 6) for one in found.values()} == {1.5}
  with pytest.raises(ValueError, match='one target'):
    effects.by_target(designed(cells[:, :1]))


@pytest.mark.slow
@pytest.mark.parametrize('targets, seeds', [(3, 3), (9, 5)])
@pytest.mark.parametrize('spread', [0, 8])
def test_intervals_of_targets_cover(targets, seeds, spread):
  """95 % of the targets' own effects, on average over the targets."""
  rng = np.random.default_rng([targets, seeds, spread])
  covered = []
  for _ in range(1000):
    true = rng.normal(0, spread, targets)
    cells = true + rng.normal(0, 3, (seeds, targets))
    found = effects.by_target(designed(cells, 1)).values()
    pairs = zip(found, true, strict=True)
    covered += [one.low <= t <= one.high for one, t in pairs]
  assert 91 <= 100 * np.mean(covered) <= 99
