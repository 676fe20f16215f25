import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreid_jax.losses import style

DISTANCE = jax.jit(style.distance)
ENTROPY = jax.jit(style.entropy)
draw_triplets = jax.jit(style.draw_triplets)
KEY = jax.random.key(3)
LABELS = jnp.asarray([0, 1, 0, 1, 2, 0, 2, 1])
REAL = jnp.ones(8, bool)


def features(seed=0, size=8):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=(3, size, 5)), jnp.float32)


def by_hand(sets, positive, negative, anchors, scale):
  """Mean over anchors of the loss, a pair at a time in NumPy."""

  def d(x, y):
    return 0.5 - scale * x @ y / np.linalg.norm(x) / np.linalg.norm(y)

  def softplus(x):
    return np.log1p(np.exp(x))

  total = 0.0
  for a in anchors:
    p, p_plus, p_minus = (d(f[a], f[positive[a]]) for f in sets)
    n, n_plus, n_minus = (d(f[a], f[negative[a]]) for f in sets)
    total += softplus(p_plus - p) + softplus(n - n_plus)
    total += softplus(p - p_minus) + softplus(n_minus - n)
  return total / len(anchors)


@pytest.mark.parametrize('scale', [0.5, 1.0])
def test_distance_form_equals_a_loop_over_pairs(scale):
  sets = features()
  positive, negative, counts = draw_triplets(KEY, LABELS, REAL)
  assert counts.all()
  expected = by_hand(
    np.asarray(sets, np.float64), positive, negative, range(8), scale
  )
  found = DISTANCE(KEY, *sets, LABELS, REAL, scale)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_distance_form_worked_numbers():
  """Two anchors count: the third has no positive.

  Before, all point the same way: d = 0. Enhanced, the pair agrees and the
  negative is opposite: d+ = 0 and 1. Contaminated, all is orthogonal: 1/2.
  """
  same = jnp.ones((3, 3))
  apart = jnp.asarray([[2.0, 0.0, 0.0], [5.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
  axes = jnp.eye(3)
  labels, real = jnp.asarray([4, 4, 9]), jnp.ones(3, bool)
  found = DISTANCE(KEY, same, apart, axes, labels, real)
  expected = (
    np.log(2.0)  # d+(a,p) - d(a,p) = 0
    + np.log1p(np.exp(-1.0))  # d(a,n) - d+(a,n) = -1
    + np.log1p(np.exp(-0.5))  # d(a,p) - d-(a,p)
    + np.log1p(np.exp(0.5))  # d-(a,n) - d(a,n)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_equal_features_lose_four_times_log_two():
  f = features()[0]
  found = DISTANCE(KEY, f, f, f, LABELS, REAL)
  np.testing.assert_allclose(found, 4 * np.log(2), rtol=1e-6)


def test_the_loss_rewards_what_restitution_is_for():
  """Better pairs and worse pairs than the normalised features' change sides."""
  clear = jax.nn.one_hot(LABELS, 5) + 0.01 * features()[0]
  blurred = jnp.ones((8, 5)) + 0.01 * features()[1]
  good = DISTANCE(KEY, blurred, clear, blurred, LABELS, REAL)
  bad = DISTANCE(KEY, blurred, blurred, clear, LABELS, REAL)
  assert good < 4 * np.log(2) < bad


@settings(max_examples=30, deadline=None)
@given(
  st.lists(st.integers(0, 3), min_size=6, max_size=6),
  st.lists(st.booleans(), min_size=6, max_size=6),
  st.integers(0, 99),
)
def test_triplets_are_real_and_of_the_right_identity(labels, valid, seed):
  drawn = draw_triplets(
    jax.random.key(seed), jnp.asarray(labels), jnp.asarray(valid)
  )
  for a, (p, n, counts) in enumerate(zip(*map(np.asarray, drawn), strict=True)):
    others = [b for b in range(6) if valid[b] and valid[a]]
    positives = [b for b in others if labels[b] == labels[a] and b != a]
    negatives = [b for b in others if labels[b] != labels[a]]
    assert counts == bool(positives and negatives)
    if counts:
      assert p in positives
      assert n in negatives


def test_every_candidate_is_drawn_about_as_often():
  keys = jax.random.split(KEY, 2000)
  draw = jax.jit(jax.vmap(lambda key: draw_triplets(key, LABELS, REAL)[:2]))
  positive, negative = draw(keys)
  for rows, candidates in ((positive, [2, 5]), (negative, [1, 3, 4, 6, 7])):
    shares = np.bincount(np.asarray(rows[:, 0]), minlength=8) / 2000
    np.testing.assert_allclose(
      shares[candidates], 1 / len(candidates), atol=0.05
    )


def test_what_padded_rows_hold_changes_nothing():
  real = REAL.at[5].set(False)
  loss = compiled.value_and_grad(
    lambda f, labels: DISTANCE(KEY, *f, labels, real) + ENTROPY(f, real)
  )

  def run(sets, labels):
    return jax.device_get(loss(sets, labels))

  clean = run(features(), LABELS)
  other = np.array(features())
  other[:, 5] = 1e3
  poisoned = run(other, LABELS.at[5].set(1))
  jax.tree.map(np.testing.assert_array_equal, clean, poisoned)
  np.testing.assert_array_equal(clean[1][:, 5], 0)


@pytest.mark.parametrize('labels', [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_without_a_triplet_it_is_zero(labels):
  sets = features(size=4)
  value, gradient = jax.jit(
    compiled.value_and_grad(
      lambda f: DISTANCE(KEY, *f, jnp.asarray(labels), jnp.ones(4, bool))
    )
  )(sets)
  assert value == 0
  np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize('level', [0.0, 1e-20, 1e-3, 1.0])
def test_gradient_is_finite_where_all_features_are_equal(level):
  gradient = compiled.grad(lambda f: DISTANCE(KEY, *f, LABELS, REAL))(
    jnp.full((3, 8, 5), level)
  )
  assert np.isfinite(gradient).all()
  # Parallel features are where the cosine is largest.
  np.testing.assert_allclose(gradient, 0, atol=1e-4)


def test_entropy_form_worked_numbers():
  """Certain, a fair coin of two and of four: H = 0, log 2 and log 4."""
  none = -1e9
  sure = [0.0, none, none, none]
  two = [3.0, 3.0, none, none]
  four = [1.0, 1.0, 1.0, 1.0]
  logits = jnp.asarray([[two, two], [sure, two], [four, four]])
  real = jnp.ones(2, bool)
  h, plus, minus = np.log(2), np.log(2) / 2, np.log(4)
  expected = np.log1p(np.exp(plus - h)) + np.log1p(np.exp(h - minus))
  np.testing.assert_allclose(ENTROPY(logits, real), expected, rtol=1e-6)
  assert np.isfinite(compiled.grad(lambda x: ENTROPY(x, real))(logits)).all()


def test_equal_entropies_lose_twice_log_two():
  logits = jnp.broadcast_to(features()[0], (3, 8, 5))
  np.testing.assert_allclose(ENTROPY(logits, REAL), 2 * np.log(2), rtol=1e-6)


def test_absent_identities_carry_no_entropy():
  logits = features()
  padded = jnp.pad(logits, ((0, 0), (0, 0), (0, 3)), constant_values=-1e9)
  np.testing.assert_allclose(
    ENTROPY(padded, REAL), ENTROPY(logits, REAL), rtol=1e-6
  )
