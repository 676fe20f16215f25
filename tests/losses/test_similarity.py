import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import similarity


def test_cosines_worked_by_hand():
  x = jnp.array([[3.0, 4.0], [2.0, 0.0], [1.0, 1.0]])
  y = jnp.array([[8.0, 6.0], [0.0, 5.0], [-2.0, -2.0]])
  np.testing.assert_allclose(
    similarity.cosine(x, y), [0.96, 0.0, -1.0], rtol=1e-6
  )
  np.testing.assert_allclose(
    similarity.pairwise_cosine(x)[0], [1.0, 0.6, 7 / 50**0.5], rtol=1e-6
  )


@pytest.mark.parametrize('length', [1e-12, 1e-6, 1e6, 1e18])
def test_the_cosine_does_not_depend_on_lengths(length):
  x, y = jnp.array([[3.0, 4.0]]), jnp.array([[8.0, 6.0]])
  np.testing.assert_allclose(
    similarity.cosine(length * x, length * y), [0.96], rtol=1e-6
  )
  assert similarity.cosine(length * x, length * x) == 1.0
  gradient = jax.grad(lambda x: similarity.cosine(x, y).sum())(length * x)
  wanted = jax.grad(lambda x: similarity.cosine(x, y).sum())(x) / length
  np.testing.assert_allclose(gradient, wanted, rtol=1e-5)


def test_zeros_have_no_direction_and_a_finite_gradient():
  zero, one = jnp.zeros((1, 3)), jnp.ones((1, 3))
  value, grad = jax.value_and_grad(lambda x: similarity.cosine(x, one).sum())(
    zero
  )
  assert value == 0.0 and np.isfinite(grad).all()
  np.testing.assert_array_equal(similarity.unit(zero), zero)
