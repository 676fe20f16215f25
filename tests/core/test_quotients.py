import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.core import quotients


def quotients_of(function, *args):
  """Returns the shapes of the quotients that a function asks XLA for."""
  jaxpr = jax.make_jaxpr(function)(*args)
  text = str(jaxpr.pretty_print(use_color=False)).splitlines()
  lines = [line for line in text if ' = div ' in line]
  return [line.partition(' = ')[0].split(':')[-1] for line in lines]


def test_only_divisors_are_inverted():
  x, c = jnp.ones((4, 6)), jnp.full((4, 1), 3.0)
  assert quotients_of(quotients.divide, x, c) == ['f32[4,1]']
  assert quotients_of(quotients.softmax, x) == ['f32[4,1]']
  gradient = jax.grad(lambda x: (quotients.softmax(x) ** 2).sum())
  assert quotients_of(gradient, x) == ['f32[4,1]']
  np.testing.assert_allclose(quotients.divide(x, c), 1 / 3, rtol=1e-7)


@pytest.mark.parametrize('axis', [0, 1, -1])
def test_softmax_and_its_gradient(axis):
  rng = np.random.default_rng(0)
  x, weight = rng.normal(0, 9, (2, 5, 7)).astype('f4')
  x[0, 0], x[1, 1] = 300, -np.inf
  y = quotients.softmax(x, axis)
  np.testing.assert_allclose(y, jax.nn.softmax(x, axis), rtol=1e-5, atol=1e-30)

  def total(x):
    return (quotients.softmax(x, axis) * weight).sum()

  # In float64: the sums cancel in float32, also those of JAX.
  powers = np.exp(x.astype('f8') - x.max(axis, keepdims=True))
  y = powers / powers.sum(axis, keepdims=True)
  slope = y * (weight - (y * weight).sum(axis, keepdims=True))
  np.testing.assert_allclose(jax.grad(total)(x), slope, rtol=1e-5, atol=2e-6)
