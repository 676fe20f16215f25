"""Laws of every robust rule, and oracles in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms.statistics import robust_rules as rules

NUM, WRONG = 7, 2
VALID = np.ones(NUM, bool)
SHARES = np.full(NUM, 1 / NUM, 'f4')
SIZES = (5, (2, 3))


def rows(seed, num=NUM):
  rng = np.random.default_rng(seed)
  return {
    name: rng.standard_normal((num, *np.atleast_1d(size))).astype('f4')
    for name, size in zip('ab', SIZES, strict=True)
  }


def flat(leaves):
  """Leaves as float64 `[K, d]`, or `[d]` of one row."""
  lead = leaves['a'].shape[:-1]
  parts = [np.asarray(x, 'f8').reshape(*lead, -1) for x in leaves.values()]
  return np.concatenate(parts, axis=-1)


def mean(leaves, weights):
  whole = {n: np.where(weights.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, 0)
           for n, x in leaves.items()}  # fmt: skip
  return {n: np.tensordot(weights, x, 1) for n, x in whole.items()}


def of_weights(weigh):
  def rule(leaves, valid=VALID, shares=SHARES, f=WRONG):
    return mean(leaves, np.asarray(jax.jit(weigh)(leaves, valid, shares, f)))

  return rule


RULES = {
  'median': lambda x, valid=VALID, shares=None, f=0: jax.jit(rules.median)(
    x, valid
  ),
  'trimmed': lambda x, valid=VALID, shares=None, f=WRONG: jax.jit(
    rules.trimmed_mean
  )(x, valid, f),
  'krum': of_weights(lambda x, v, p, f: rules.krum_weights(x, v, f, 1)),
  'multikrum': of_weights(
    lambda x, v, p, f: rules.krum_weights(x, v, f, v.sum() - f - 2)
  ),
  'rfa': of_weights(
    lambda x, v, p, f: rules.geometric_median_weights(x, v, p, 50)
  ),
  'bound': of_weights(lambda x, v, p, f: rules.bounded_weights(x, v, p, 0.0)),
}
RESISTANT = [name for name in RULES if name != 'bound']
every = pytest.mark.parametrize('rule', RULES)


def close(found, wanted, atol=2e-5):
  np.testing.assert_allclose(flat(found), flat(wanted), atol=atol, rtol=1e-5)


@every
def test_identical_rows_give_that_row(rule):
  one = rows(0, 1)
  same = {n: np.repeat(x, NUM, 0) for n, x in one.items()}
  close(RULES[rule](same), {n: x[0] for n, x in one.items()}, 1e-6)


@every
def test_order_of_rows_has_no_effect(rule):
  leaves, order = rows(1), np.random.default_rng(2).permutation(NUM)
  turned = {n: x[order] for n, x in leaves.items()}
  close(RULES[rule](turned), RULES[rule](leaves), 1e-5)


@pytest.mark.parametrize('rule', RESISTANT)
def test_a_translation_moves_the_result_with_it(rule):
  leaves, by = rows(3), rows(4, 1)
  moved = {n: x + by[n] for n, x in leaves.items()}
  found = RULES[rule](leaves)
  close(RULES[rule](moved), {n: found[n] + by[n][0] for n in by}, 1e-4)


@every
def test_absent_rows_have_no_effect(rule):
  leaves, extra = rows(5), rows(6, 3)
  for value, x in zip((np.nan, np.inf, 1e30), range(3), strict=True):
    extra['a'][x] = value
  padded = {n: np.concatenate([x, extra[n]]) for n, x in leaves.items()}
  valid = np.arange(NUM + 3) < NUM
  shares = np.pad(SHARES, (0, 3), constant_values=0.5)
  close(RULES[rule](padded, valid, shares), RULES[rule](leaves), 1e-5)


@pytest.mark.parametrize('rule', RESISTANT)
@pytest.mark.parametrize('size', [1e6, 1e30])
def test_outliers_leave_the_result_in_the_honest_box(rule, size):
  leaves = rows(7)
  for x in leaves.values():
    x[:WRONG] = size
  found, honest = flat(RULES[rule](leaves)), flat(leaves)[WRONG:]
  slack = 0.5 if rule == 'rfa' else 1e-5
  assert (found >= honest.min(0) - slack).all()
  assert (found <= honest.max(0) + slack).all()
  plain = flat(leaves).mean(0)
  assert (plain > honest.max(0) + slack).any()  # the mean leaves it


def test_median_is_numpys_for_any_number_of_rows():
  leaves = rows(8)
  for num in range(1, NUM + 1):
    found = rules.median(leaves, np.arange(NUM) < num)
    np.testing.assert_allclose(
      flat(found), np.median(flat(leaves)[:num], 0), rtol=1e-6
    )


@pytest.mark.parametrize('f', [0, 1, 3])
def test_trimmed_mean_is_numpys(f):
  leaves = rows(9)
  wanted = np.sort(flat(leaves), 0)[f : NUM - f].mean(0)
  found = rules.trimmed_mean(leaves, VALID, f)
  np.testing.assert_allclose(flat(found), wanted, atol=1e-6)


def plain_scores(values, f):
  apart = ((values[:, None] - values[None]) ** 2).sum(-1)
  num = len(values)
  return [np.sort(np.delete(apart[i], i))[: num - f - 2].sum()
          for i in range(num)]  # fmt: skip


@pytest.mark.parametrize('f', [0, 1, 2])
def test_krum_scores_are_numpys(f):
  leaves = rows(10)
  found = rules.krum_scores(leaves, VALID, f)
  np.testing.assert_allclose(found, plain_scores(flat(leaves), f), rtol=1e-5)


def test_krum_returns_a_row_and_multikrum_a_mean_of_the_best():
  leaves = rows(11)
  order = np.argsort(plain_scores(flat(leaves), WRONG))
  close(RULES['krum'](leaves), {n: x[order[0]] for n, x in leaves.items()})
  best = order[: NUM - WRONG - 2]
  close(
    RULES['multikrum'](leaves), {n: x[best].mean(0) for n, x in leaves.items()}
  )


@pytest.mark.parametrize('num', [1, 2])
def test_krum_of_too_few_rows_returns_one_of_them(num):
  leaves, valid = rows(12), np.arange(NUM) >= NUM - num
  weights = np.asarray(rules.krum_weights(leaves, valid, 0, 1))
  assert weights.sum() == 1 and weights[valid].max() == 1


def test_geometric_median_has_the_least_sum_of_distances():
  """Its subgradient is zero: the unit vectors to the rows cancel."""
  leaves = rows(13)
  shares = np.random.default_rng(0).uniform(1, 2, NUM).astype('f4')
  found = flat(RULES['rfa'](leaves, shares=shares / shares.sum()))
  away = found - flat(leaves)
  pull = (shares[:, None] * away / np.linalg.norm(away, axis=1)[:, None]).sum(0)
  assert np.linalg.norm(pull) < 1e-2
  weighted = shares / shares.sum() @ flat(leaves)
  assert np.linalg.norm(found - weighted) > 0.1


def test_geometric_median_starts_near_the_honest():
  """Four of nine at 1e4: three iterations from the median are enough."""
  rng = np.random.default_rng(0)
  leaves = {'a': rng.normal(0, 0.1, (9, 20)).astype('f4')}
  leaves['a'][:4] = 1e4
  shares = np.full(9, 1 / 9, 'f4')
  few = rules.geometric_median_weights(leaves, np.ones(9, bool), shares, 3)
  assert np.abs(few @ leaves['a']).max() < 1.0


def test_bound_is_the_median_norm_or_a_number():
  leaves = rows(14)
  leaves['a'][0] *= 100
  norms = np.linalg.norm(flat(leaves), axis=1)
  for bound, limit in ((0.0, np.median(norms)), (0.5, 0.5)):
    weights = rules.bounded_weights(leaves, VALID, SHARES, bound)
    np.testing.assert_allclose(
      weights * NUM, np.minimum(1, limit / norms), rtol=1e-5
    )
  nothing = {n: jnp.zeros_like(x) for n, x in leaves.items()}
  weights = rules.bounded_weights(nothing, VALID, SHARES, 0.0)
  np.testing.assert_allclose(weights, SHARES)


@pytest.mark.parametrize(
  'count, f, spare, wanted', [(5, 2, 1, 2), (4, 2, 1, 1), (0, 2, 1, 0),
                              (7, 2, 3, 2), (6, 2, 3, 1), (2, 1, 3, 0)]
)  # fmt: skip
def test_missing_rows_lower_the_number_of_wrong_ones(count, f, spare, wanted):
  assert rules.tolerated(jnp.int32(count), f, spare) == wanted
