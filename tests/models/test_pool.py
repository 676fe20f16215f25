import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedreid_jax.models.layers import pool


@pytest.mark.parametrize('shape', [(2, 4, 6, 3), (2, 5, 3, 4)])
def test_max_pool_and_gradient_equal_reduce_window(shape):
  values = np.random.default_rng(0).standard_normal(shape)
  x = jnp.asarray(np.round(values), jnp.float32)  # rounded: plenty of ties
  y, vjp = jax.vjp(pool.max_pool_2x2, x)
  expected, oracle = jax.vjp(lambda x: nn.max_pool(x, (2, 2), (2, 2)), x)
  np.testing.assert_array_equal(y, expected)
  direction = jnp.arange(y.size, dtype=jnp.float32).reshape(y.shape)
  np.testing.assert_array_equal(vjp(direction)[0], oracle(direction)[0])


def test_tie_goes_to_the_first_maximum():
  x = jnp.asarray([[1.0, 3.0], [3.0, 3.0]]).reshape(1, 2, 2, 1)
  gradient = jax.grad(lambda x: pool.max_pool_2x2(x).sum())(x)
  np.testing.assert_array_equal(gradient[0, ..., 0], [[0, 1], [0, 0]])


def test_worked_global_pools():
  """Positions 1, 2, 3, 0: mean 1.5, GeM ((1 + 8 + 27) / 4)^(1/3) = 9^(1/3)."""
  maps = jnp.asarray([1.0, 2.0, 3.0, 0.0]).reshape(1, 2, 2, 1)
  np.testing.assert_allclose(pool.average(maps), [[1.5]])
  np.testing.assert_allclose(
    pool.generalised_mean(maps), [[9 ** (1 / 3)]], 1e-6
  )
  np.testing.assert_array_equal(pool.flatten(maps), [[1, 2, 3, 0]])


def test_gem_counts_negative_values_as_zero():
  maps = jnp.asarray([-1.0, -5.0, 3.0, 0.0]).reshape(1, 2, 2, 1)
  for x in (maps, jnp.minimum(maps, 0)):
    value, gradient = jax.value_and_grad(
      lambda x: pool.generalised_mean(x).sum()
    )(x)
    wanted = pool.generalised_mean(jnp.maximum(x, 0)).sum()
    assert value == wanted and np.isfinite(gradient).all()


def test_gem_of_empty_maps_has_a_finite_gradient():
  maps = jnp.zeros((1, 2, 2, 1))
  np.testing.assert_allclose(pool.generalised_mean(maps), [[1e-4]], 1e-4)
  gradient = jax.grad(lambda x: pool.generalised_mean(x).sum())(maps)
  np.testing.assert_array_equal(gradient, np.zeros_like(maps))
