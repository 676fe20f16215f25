"""Laws of every robust rule, and oracles in NumPy."""

import functools

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fedreid_jax import errors
from fedreid_jax.algorithms import fedopt, fedpav, robust
from fedreid_jax.algorithms import robust as rules
from fedreid_jax.core import prng
from fedreid_jax.method.component import Participants
from fedreid_jax.training import contract

KERNEL, MEAN = handmade.KERNEL, handmade.MEAN
FEDPAV = fedpav.make()
RULES = ('median', 'trimmed', 'krum', 'multikrum', 'rfa', 'bound')
SPREAD = np.random.default_rng(0).standard_normal((7, 8)).astype('f4') / 10


def sent(change=lambda rows: None):
  """Seven uploads near two, of different sizes, after a change of the rows."""
  rows = 2 + SPREAD
  change(rows)
  shared = {KERNEL: rows[:, :6].reshape(7, 3, 2), MEAN: rows[:, 6:]}
  return handmade.uploads(shared, [1, 2, 3, 4, 3, 2, 1])


@functools.cache
def compiled(rule, f, exact=True):
  """A compiled round of seven clients; without a rule their mean."""
  made = (robust.make(robust.Options(rule=rule, f=f)),) if rule else ()
  method = handmade.algorithm((FEDPAV, *made), exact=exact)
  public, seed = jnp.zeros((0, 1, 1, 3), jnp.uint8), prng.data(0)
  start = handmade.variables(1.0)
  state = method.init_server(start, jnp.ones(7), public, seed)

  @jax.jit
  def run(sent):
    return method.aggregate(state, sent, jnp.arange(7), 0, public, seed)

  return run


def received(uploads, rule, f=2, exact=True):
  return jax.device_get(compiled(rule, f, exact)(uploads))


def serve(uploads, **options):
  made = robust.make(robust.Options(**options))
  return handmade.serve((FEDPAV, made), handmade.variables(1.0), uploads)


def model(state):
  return np.concatenate([state.shared[n].ravel() for n in (KERNEL, MEAN)])


def wrong(value):
  def change(rows):
    rows[:2] = value

  return change


@pytest.mark.parametrize('rule', RULES)
def test_rules_keep_the_model_near_the_honest(rule):
  state, log = received(sent(wrong(1e6)), rule)
  bounded = rule == 'bound'  # the norm of the honest at most, in a wrong way
  assert np.abs(model(state) - 2).max() < (4 if bounded else 0.5)
  assert log['valid'].all() and not log['fell_back']
  # Sums in fixed point leave out changes beyond their range.
  plain, _ = received(sent(wrong(1e6)), '', exact=False)
  assert np.abs(model(plain)).max() > 1e5


@pytest.mark.parametrize('rule', RULES)
def test_uploads_that_are_not_finite_are_of_the_wrong_ones(rule):
  state, log = received(sent(wrong(np.nan)), rule)
  assert np.abs(model(state) - 2).max() < 0.5
  np.testing.assert_array_equal(log['valid'], np.arange(7) >= 2)


@pytest.mark.parametrize('rule', RULES)
def test_a_round_without_uploads_keeps_the_model(rule):
  def change(rows):
    rows[:] = np.nan

  state, _ = received(sent(change), rule)
  np.testing.assert_array_equal(state.shared[KERNEL], np.ones((1, 3, 2)))


def test_weights_name_the_uploads_that_krum_chose():
  _, log = received(sent(wrong(9.0)), 'krum')
  assert sorted(log['weights']) == [0.0] * 6 + [1.0]
  _, log = received(sent(wrong(9.0)), 'multikrum')
  np.testing.assert_allclose(np.sort(log['weights']), [0] * 4 + [1 / 3] * 3)
  assert not log['weights'][:2].any()
  _, log = serve(sent(), rule='multikrum', f=0, m=5)
  np.testing.assert_allclose(np.sort(log['weights']), [0] * 2 + [0.2] * 5)


def test_bound_keeps_the_rest_at_the_server():
  state, log = serve(sent(), rule='bound', bound=0.5)
  rows = np.concatenate([np.ones((7, 6)), np.zeros((7, 2))], 1)
  change = 2 + SPREAD - rows
  shares = np.array([1, 2, 3, 4, 3, 2, 1]) / 16
  factor = np.minimum(1, 0.5 / np.linalg.norm(change, axis=1))
  np.testing.assert_allclose(
    model(state), rows[0] + (shares * factor) @ change, rtol=1e-5
  )
  assert log['weights'].sum() < 0.5


def test_the_servers_optimiser_moves_by_the_robust_mean():
  """Wherever it stands, it sees the median and not the mean."""
  made = robust.make(robust.Options())
  step = fedopt.make(fedopt.Options(name='sgd', lr=0.5, momentum=0.0))
  for components in ((FEDPAV, made, step), (FEDPAV, step, made)):
    state, _ = handmade.serve(components, handmade.variables(1.0), sent())
    wanted = 1 + 0.5 * (np.median(2 + SPREAD, 0)[:6] - 1)
    np.testing.assert_allclose(state.shared[KERNEL].ravel(), wanted, rtol=1e-5)


@pytest.mark.parametrize(
  'rule, f, cohort, message',
  [
    ('median', 2, 4, 'needs 5 uploads in a round, but there are 4'),
    ('trimmed', 1, 2, 'needs 3 uploads'),
    ('krum', 1, 4, 'needs 5 uploads'),
    ('multikrum', 1, 4, 'needs 5 uploads'),
    ('rfa', 2, 4, 'needs 5 uploads'),
    ('rfa', 2, 9, 'have half of all images'),
  ],
)
def test_more_wrong_uploads_than_a_rule_resists(rule, f, cohort, message):
  clients = contract.toy_clients()
  made = robust.make(robust.Options(rule=rule, f=f))
  assert made.bind
  with pytest.raises(errors.ConfigError, match=message):
    made.bind(Participants(clients, 0, cohort))


@pytest.mark.parametrize('rule', RULES)
def test_the_largest_number_that_a_rule_resists(rule):
  clients = contract.toy_clients()
  made = robust.make(robust.Options(rule=rule))
  assert made.bind
  made.bind(Participants(clients, 0, 5 if 'krum' in rule else 3))


def test_a_mean_of_krum_with_room_for_wrong_uploads_is_refused():
  clients = contract.toy_clients()
  for m, wrong_ones in ((5, False), (6, True), (9, True)):
    made = robust.make(robust.Options(rule='multikrum', f=2, m=m))
    assert made.bind
    if not wrong_ones:
      made.bind(Participants(clients, 0, 9))
      continue
    with pytest.raises(errors.ConfigError, match='at most 5, or 0'):
      made.bind(Participants(clients, 0, 9))


def most_wrong(rule, num):
  """The largest f of so many uploads."""
  return (num - robust.SPARE[rule]) // 2


def breaking(rule, num):
  """Equal wrong uploads that move the result, by docs/methods/robust.md."""
  if rule in ('krum', 'multikrum'):
    return num - most_wrong(rule, num) - 1
  return most_wrong(rule, num) + 1 if rule == 'trimmed' else (num + 1) // 2


def alike(num, wrong_rows):
  rows = 2 + np.random.default_rng(num).standard_normal((num, 8)) / 10
  rows[: len(wrong_rows)] = wrong_rows
  rows = rows.astype('f4')
  shared = {KERNEL: rows[:, :6].reshape(num, 3, 2), MEAN: rows[:, 6:]}
  return handmade.uploads(shared, [1] * num)


@pytest.mark.parametrize('num', [5, 21])
@pytest.mark.parametrize('rule', robust.SPARE)
def test_rules_break_where_the_table_says(rule, num):
  """Uploads at 1e6, alike and apart, and uploads that are not finite."""
  f, breaks = most_wrong(rule, num), breaking(rule, num)
  made = handmade.algorithm((FEDPAV, robust.make(robust.Options(rule, f))))
  run = jax.jit(made.aggregate)
  seed, public = prng.data(0), jnp.zeros((0, 1, 1, 3), jnp.uint8)
  sizes = jnp.ones(num)
  server = made.init_server(handmade.variables(1.0), sizes, public, seed)

  def moved(*wrong_rows):
    given = alike(num, np.array(wrong_rows).reshape(-1, 1))
    state, _ = run(server, given, jnp.arange(num), 0, public, seed)
    return np.abs(model(jax.device_get(state)) - 2).max()

  for number in range(breaks):
    for rows in (
      [1e6] * number,
      [(-1) ** k * 1e6 * (k + 1) for k in range(number)],
      [np.nan] * number,
      [np.inf] * number,
      [np.nan, *[1e6] * (number - 1)] if number else [],
    ):
      # Of copies at one place Krum resists more than of any wrong uploads.
      if number <= f or len({*rows}) == 1:
        assert moved(*rows) < 0.5, rows
  assert moved(*[1e6] * breaks) > 1e4


def test_fewer_uploads_lower_the_number_that_is_averaged():
  """Nine clients, f = 2 and m = 5; four uploads are not finite."""
  rows = [np.nan] * 4 + [1e6]
  state, log = handmade.serve(
    (FEDPAV, robust.make(robust.Options('multikrum', f=2, m=5))),
    handmade.variables(1.0),
    alike(9, np.array(rows)[:, None]),
  )
  assert np.abs(model(state) - 2).max() < 0.5
  assert (log['weights'] > 0).sum() == 2  # of five, with f = 1


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


RULES_robust_rules = {
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
RESISTANT = [name for name in RULES_robust_rules if name != 'bound']
every = pytest.mark.parametrize('rule', RULES_robust_rules)


def close(found, wanted, atol=2e-5):
  np.testing.assert_allclose(flat(found), flat(wanted), atol=atol, rtol=1e-5)


@every
def test_identical_rows_give_that_row(rule):
  one = rows(0, 1)
  same = {n: np.repeat(x, NUM, 0) for n, x in one.items()}
  close(RULES_robust_rules[rule](same), {n: x[0] for n, x in one.items()}, 1e-6)


@every
def test_order_of_rows_has_no_effect(rule):
  leaves, order = rows(1), np.random.default_rng(2).permutation(NUM)
  turned = {n: x[order] for n, x in leaves.items()}
  close(
    RULES_robust_rules[rule](turned), RULES_robust_rules[rule](leaves), 1e-5
  )


@pytest.mark.parametrize('rule', RESISTANT)
def test_a_translation_moves_the_result_with_it(rule):
  leaves, by = rows(3), rows(4, 1)
  moved = {n: x + by[n] for n, x in leaves.items()}
  found = RULES_robust_rules[rule](leaves)
  close(
    RULES_robust_rules[rule](moved), {n: found[n] + by[n][0] for n in by}, 1e-4
  )


@every
def test_absent_rows_have_no_effect(rule):
  leaves, extra = rows(5), rows(6, 3)
  for value, x in zip((np.nan, np.inf, 1e30), range(3), strict=True):
    extra['a'][x] = value
  padded = {n: np.concatenate([x, extra[n]]) for n, x in leaves.items()}
  valid = np.arange(NUM + 3) < NUM
  shares = np.pad(SHARES, (0, 3), constant_values=0.5)
  close(
    RULES_robust_rules[rule](padded, valid, shares),
    RULES_robust_rules[rule](leaves),
    1e-5,
  )


@pytest.mark.parametrize('rule', RESISTANT)
@pytest.mark.parametrize('size', [1e6, 1e30])
def test_outliers_leave_the_result_in_the_honest_box(rule, size):
  leaves = rows(7)
  for x in leaves.values():
    x[:WRONG] = size
  found, honest = flat(RULES_robust_rules[rule](leaves)), flat(leaves)[WRONG:]
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
  close(
    RULES_robust_rules['krum'](leaves),
    {n: x[order[0]] for n, x in leaves.items()},
  )
  best = order[: NUM - WRONG - 2]
  close(
    RULES_robust_rules['multikrum'](leaves),
    {n: x[best].mean(0) for n, x in leaves.items()},
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
  found = flat(RULES_robust_rules['rfa'](leaves, shares=shares / shares.sum()))
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


def geometric_median(points, shares):
  """An independent optimum in float64: the best upload, or convex descent."""

  def cost(v):
    return (shares * np.linalg.norm(points - v, axis=1)).sum()

  best = min(points, key=cost)
  for start in (points.mean(0), best + 1e-3):
    found = optimize.minimize(
      cost, start, method='BFGS', options={'gtol': 1e-9}
    )
    best = min(best, found.x, key=cost)
  return best, cost


def _cases():
  rng = np.random.default_rng(11)
  generic = rng.standard_normal((7, 3))
  line = np.outer([-3.0, -1, 0, 0.5, 2, 8, 9], [1.0, 2, -1]) + 1
  two = np.repeat(rng.standard_normal((2, 3)), (3, 4), axis=0)
  one_image = np.full(7, 1.0)
  uneven = np.array([10.0, 10, 10, 40, 40, 5, 1])
  yield 'stuck', np.array([-5.0, -5, -5, 5, 6])[:, None], uneven[:5], 5.0
  # The median of each coordinate is a row that the others pull away.
  pulled = np.array([[0.0, 0], [100, 1], [1, 100], [-1, -1], [-1, -1]])
  yield 'pulled away', pulled, np.array([1.0, 5, 5, 5, 5]), None
  for name, points in (
    ('generic', generic),
    ('line', line),
    ('two places', two),
    ('far', generic + np.eye(7)[:, :1] * 1e4),
    # The rows' mean is zero, and the optimum is at a row.
    ('at zero', np.concatenate([np.zeros((1, 3)), np.eye(3), -np.eye(3)])),
  ):
    for kind, sizes in (('equal', one_image), ('uneven', uneven)):
      yield f'{name}, {kind}', points, sizes, None


@pytest.mark.parametrize(
  'points, sizes, known',
  [pytest.param(*rest, id=name) for name, *rest in _cases()],
)
def test_the_geometric_median_is_the_optimum(points, sizes, known):
  shares = sizes / sizes.sum()
  weights = jax.jit(
    lambda x, p: rules.geometric_median_weights(x, p > 0, p, 200)
  )({'a': points.astype('f4')}, shares.astype('f4'))
  assert weights.sum() == pytest.approx(1, abs=1e-5)
  found = np.asarray(weights, 'f8') @ points
  best, cost = geometric_median(points, shares)
  assert cost(found) <= cost(best) * (1 + 1e-5)
  if known is not None:
    np.testing.assert_allclose(found, known, rtol=1e-6)
