import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import identity

PADDED = -1e9


def test_padded_identities_do_not_count():
  """Uniform over 5 real columns of 12: log 5, not log 12."""
  logits = jnp.array([[0.0] * 5 + [PADDED] * 7])
  loss = identity.cross_entropy(logits, jnp.array([2]), jnp.array([True]))
  np.testing.assert_allclose(loss, np.log(5), rtol=1e-6)


def test_smoothing_is_spread_over_real_identities():
  logits = jnp.array([[2.0, 0.0] + [PADDED] * 3])
  loss = identity.cross_entropy(
    logits, jnp.array([0]), jnp.array([True]), smoothing=0.2
  )
  log_p = np.log(np.exp([2.0, 0.0]) / np.exp([2.0, 0.0]).sum())
  expected = -(0.8 * log_p[0] + 0.2 * log_p.mean())
  np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.gives_nan
@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_padded_rows_change_nothing_even_as_nan(smoothing):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(3, 4)).astype(np.float32)
  labels = jnp.array([0, 3, 1])
  whole = identity.cross_entropy(
    jnp.asarray(logits[:2]), labels[:2], jnp.ones(2, bool), smoothing
  )
  logits[2] = np.nan
  valid = jnp.array([True, True, False])
  padded = identity.cross_entropy(jnp.asarray(logits), labels, valid, smoothing)
  np.testing.assert_array_equal(whole, padded)


def test_no_valid_row_is_zero_with_a_zero_gradient():
  grad = jax.grad(
    lambda x: identity.cross_entropy(x, jnp.array([0]), jnp.array([False]))
  )(jnp.ones((1, 3)))
  np.testing.assert_array_equal(grad, np.zeros((1, 3)))


def test_accuracy():
  logits = jnp.array([[1.0, 2], [3, 0], [0, 5]])
  labels, valid = jnp.array([1, 1, 1]), jnp.array([True, True, False])
  np.testing.assert_allclose(identity.accuracy(logits, labels, valid), 0.5)
