import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.losses import metric


def test_hard_triplet_worked_numbers():
  """Four points on a line, two identities.

  a0=0, a1=3 | b0=4, b1=10, margin 0.5:
  a0: 3 - 4 + 0.5 -> 0; a1: 3 - 1 + 0.5 = 2.5; b0: 6 - 1 + 0.5 = 5.5;
  b1: 6 - 7 + 0.5 -> 0. Mean 2.
  """
  x = jnp.array([[0.0], [3.0], [4.0], [10.0]])
  labels = jnp.array([0, 0, 1, 1])
  loss = metric.hard_triplet(x, labels, jnp.ones(4, bool), 0.5)
  np.testing.assert_allclose(loss, 2.0, rtol=1e-5)


def test_padding_changes_nothing():
  x = jnp.array([[0.0], [3.0], [4.0], [10.0], [3.5]])
  labels = jnp.array([0, 0, 1, 1, 0])
  valid = jnp.array([True] * 4 + [False])
  loss = metric.hard_triplet(x, labels, valid, 0.5)
  np.testing.assert_allclose(loss, 2.0, rtol=1e-5)


def test_no_negative_in_the_batch_is_zero_not_nan():
  x = jnp.array([[1.0], [2.0]])
  both = jnp.ones(2, bool)
  loss, grad = jax.value_and_grad(
    lambda v: metric.hard_triplet(v, jnp.array([0, 0]), both, 0.5)
  )(x)
  assert loss == 0
  np.testing.assert_array_equal(grad, np.zeros_like(x))


def test_gradient_is_finite_where_all_features_are_equal():
  grad = jax.grad(
    lambda v: metric.hard_triplet(
      v, jnp.array([0, 0, 1, 1]), jnp.ones(4, bool), 0.5
    )
  )(jnp.ones((4, 3)))
  assert np.isfinite(grad).all()


def test_distances_equal_numpy():
  x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
  expected = np.linalg.norm(x[:, None] - x[None], axis=-1)
  out = metric.pairwise_distance(jnp.asarray(x))
  off = ~np.eye(6, dtype=bool)
  np.testing.assert_allclose(out[off], expected[off], rtol=1e-4)


def test_a_common_mean_costs_no_digits():
  """At D = 2048 and a mean of 10 the distances are still those of float64."""
  rng = np.random.default_rng(0)
  x = 10 + 0.1 * rng.normal(size=(8, 2048))
  x = x.astype(np.float32)
  wide = x.astype(np.float64)
  expected = np.sqrt(((wide[:, None] - wide[None]) ** 2).sum(-1))
  out = metric.pairwise_distance(jnp.asarray(x))
  np.testing.assert_array_equal(np.diag(out), 0.0)
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_finite_where_rows_are_equal():
  def loss(x):
    return metric.pairwise_distance(x).sum()

  x = jnp.asarray([[1.0, 2.0], [1.0, 2.0], [4.0, 6.0]])
  assert np.isfinite(jax.grad(loss)(x)).all()
  np.testing.assert_allclose(loss(x), 20.0, rtol=1e-5)
