import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import identity

PADDED = -1e9
cross_entropy = jax.jit(identity.cross_entropy, static_argnums=3)


def test_padded_identities_do_not_count():
  """Uniform over 5 real columns of 12: log 5, not log 12."""
  logits = jnp.array([[0.0] * 5 + [PADDED] * 7])
  loss = cross_entropy(logits, jnp.array([2]), jnp.array([True]))
  np.testing.assert_allclose(loss, np.log(5), rtol=1e-6)


def test_smoothing_is_spread_over_real_identities():
  logits = jnp.array([[2.0, 0.0] + [PADDED] * 3])
  loss = cross_entropy(logits, jnp.array([0]), jnp.array([True]), 0.2)
  log_p = np.log(np.exp([2.0, 0.0]) / np.exp([2.0, 0.0]).sum())
  expected = -(0.8 * log_p[0] + 0.2 * log_p.mean())
  np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.gives_nan
@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_padded_rows_change_nothing_even_as_nan(smoothing):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(3, 4)).astype(np.float32)
  labels = jnp.array([0, 3, 1])
  whole = cross_entropy(
    jnp.asarray(logits[:2]), labels[:2], jnp.ones(2, bool), smoothing
  )
  logits[2] = np.nan
  valid = jnp.array([True, True, False])
  padded = cross_entropy(jnp.asarray(logits), labels, valid, smoothing)
  np.testing.assert_array_equal(whole, padded)


def test_no_valid_row_is_zero_with_a_zero_gradient():
  grad = compiled.grad(
    lambda x: cross_entropy(x, jnp.array([0]), jnp.array([False]))
  )(jnp.ones((1, 3)))
  np.testing.assert_array_equal(grad, np.zeros((1, 3)))


def test_accuracy():
  logits = jnp.array([[1.0, 2], [3, 0], [0, 5]])
  labels, valid = jnp.array([1, 1, 1]), jnp.array([True, True, False])
  found = jax.jit(identity.accuracy)(logits, labels, valid)
  np.testing.assert_allclose(found, 0.5)


def test_the_divergence_is_of_the_teacher_from_the_student():
  """T^2 KL(q || p) by its definition; it differs from KL(p || q)."""
  rng = np.random.default_rng(5)
  student, teacher = rng.normal(size=(2, 3, 4)) * 3
  valid, temperature = np.array([True, True, False]), 2.0

  def law(scores):
    weights = np.exp(scores / temperature)
    return weights / weights.sum(axis=1, keepdims=True)

  p, q = law(student), law(teacher)
  forward = (q * np.log(q / p)).sum(axis=1)[:2].mean() * temperature**2
  backward = (p * np.log(p / q)).sum(axis=1)[:2].mean() * temperature**2
  assert abs(forward - backward) > 0.1
  found = identity.divergence(
    jnp.asarray(student), jnp.asarray(teacher), jnp.asarray(valid), temperature
  )
  np.testing.assert_allclose(found, forward, rtol=1e-5)
