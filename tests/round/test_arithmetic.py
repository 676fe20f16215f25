"""Sums in fixed point against sums of exact fractions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.round.server import arithmetic


def summed(values, weights, limit, bits):
  """The sum of stacked terms, added one after another."""

  def add(total, term):
    return arithmetic.add(total, *term, limit, bits), None

  return jax.lax.scan(add, arithmetic.zero(values[0]), (values, weights))[0]


@pytest.mark.parametrize(
  'largest, headroom, expected',
  [(0.3, 6, 64.0), (1.0, 6, 64.0), (1.5, 6, 128.0), (2.0, 6, 128.0)]
  + [(1000.0, 16, 2.0**26), (0.0, 0, 1.0)],
)
def test_a_limit_is_a_power_of_two_above_the_values(
  largest, headroom, expected
):
  values = jnp.array([[0.1, -largest], [0.0, 0.2 * largest]])
  assert arithmetic.limit(values, headroom) == expected
  assert arithmetic.limit(jnp.zeros((0, 3)), 2) == 4.0


@pytest.mark.parametrize('num', [2, 64, 1024])
def test_sums_are_near_the_exact_ones_and_equal_in_any_order(num):
  rng = np.random.default_rng(num)
  values = rng.standard_normal((num, 20)).astype('f4') * 1e-2
  weights = rng.random(num).astype('f4')
  weights /= np.float32(2 ** np.ceil(np.log2(weights.sum())))
  limit, bits = jnp.float32(64), arithmetic.low_bits(num)
  run = jax.jit(summed, static_argnums=3)
  total = run(values, weights, limit, bits)
  order = rng.permutation(num)
  for one, other in zip(
    total, run(values[order], weights[order], limit, bits), strict=True
  ):
    np.testing.assert_array_equal(one, other)
  found = arithmetic.read(total, limit, bits)
  products = weights[:, None] * values  # in float32, as in the sum
  exact = [float(sum(map(Fraction, map(float, row)))) for row in products.T]
  rounding = num * 64 * 2.0 ** -(31 + bits)
  np.testing.assert_allclose(found, exact, rtol=2.0**-23, atol=rounding)


@pytest.mark.parametrize('num', [3, 1024, 2**16])
@pytest.mark.parametrize('value', [64.0, -64.0, 63.99999])
def test_nothing_wraps_at_the_largest_values(num, value):
  """All terms are at the limit, and the weights sum to one."""
  values = jnp.full((num, 1), value, jnp.float32)
  weights = jnp.full(num, 1 / num, jnp.float32)
  bits = arithmetic.low_bits(num)
  total = summed(values, weights, jnp.float32(64), bits)
  found = arithmetic.read(total, jnp.float32(64), bits)
  np.testing.assert_allclose(found, value, rtol=1e-6)


def test_remainders_at_one_half_do_not_wrap():
  """Half a unit of the high part, the largest remainder, in every term."""
  num = 2**16
  bits, limit = arithmetic.low_bits(num), jnp.float32(2.0**30)
  values = jnp.full((num, 1), 0.4999, jnp.float32)
  total = summed(values, jnp.ones(num, jnp.float32), limit, bits)
  found = arithmetic.read(total, limit, bits)
  np.testing.assert_allclose(found, num * 0.4999, rtol=1e-4)
  assert abs(int(total.low[0])) > 2**29
