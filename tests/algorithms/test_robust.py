import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.algorithms import fedopt, fedpav, robust
from fedreid_jax.core import prng
from fedreid_jax.method.component import Participants
from fedreid_jax.training.checks import toy_federation

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


def serve(uploads, *after, **options):
  made = robust.make(robust.Options(**options))
  return handmade.serve((FEDPAV, made, *after), handmade.variables(1.0),
                        uploads)  # fmt: skip


def model(state):
  return np.concatenate([state.shared[n].ravel() for n in (KERNEL, MEAN)])


def wrong(value):
  def change(rows):
    rows[:2] = value

  return change


@pytest.mark.parametrize('rule', RULES)
def test_rules_keep_the_model_near_the_honest(rule):
  state, log = serve(sent(wrong(1e6)), rule=rule, f=2)
  bounded = rule == 'bound'  # the norm of the honest at most, in a wrong way
  assert np.abs(model(state) - 2).max() < (4 if bounded else 0.5)
  assert log['valid'].all() and not log['fell_back']
  # Sums in fixed point leave out changes beyond their range.
  start = handmade.variables(1.0)
  plain, _ = handmade.serve((FEDPAV,), start, sent(wrong(1e6)), exact=False)
  assert np.abs(model(plain)).max() > 1e5


@pytest.mark.parametrize('rule', RULES)
def test_uploads_that_are_not_finite_are_of_the_wrong_ones(rule):
  state, log = serve(sent(wrong(np.nan)), rule=rule, f=2)
  assert np.abs(model(state) - 2).max() < 0.5
  np.testing.assert_array_equal(log['valid'], np.arange(7) >= 2)


@pytest.mark.parametrize('rule', RULES)
def test_a_round_without_uploads_keeps_the_model(rule):
  def change(rows):
    rows[:] = np.nan

  state, _ = serve(sent(change), rule=rule, f=2)
  np.testing.assert_array_equal(state.shared[KERNEL], np.ones((1, 3, 2)))


def test_weights_name_the_uploads_that_krum_chose():
  _, log = serve(sent(wrong(9.0)), rule='krum', f=2)
  assert sorted(log['weights']) == [0.0] * 6 + [1.0]
  _, log = serve(sent(wrong(9.0)), rule='multikrum', f=2)
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
  clients = toy_federation.toy_clients()
  made = robust.make(robust.Options(rule=rule, f=f))
  assert made.info.check
  with pytest.raises(errors.ConfigError, match=message):
    made.info.check(Participants(clients, 0, cohort))


@pytest.mark.parametrize('rule', RULES)
def test_the_largest_number_that_a_rule_resists(rule):
  clients = toy_federation.toy_clients()
  made = robust.make(robust.Options(rule=rule))
  assert made.info.check
  made.info.check(Participants(clients, 0, 5 if 'krum' in rule else 3))


def test_a_mean_of_krum_with_room_for_wrong_uploads_is_refused():
  clients = toy_federation.toy_clients()
  for m, wrong_ones in ((5, False), (6, True), (9, True)):
    made = robust.make(robust.Options(rule='multikrum', f=2, m=m))
    assert made.info.check
    if not wrong_ones:
      made.info.check(Participants(clients, 0, 9))
      continue
    with pytest.raises(errors.ConfigError, match='at most 5, or 0'):
      made.info.check(Participants(clients, 0, 9))


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


@pytest.mark.parametrize('num', [5, 9, 21])
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
