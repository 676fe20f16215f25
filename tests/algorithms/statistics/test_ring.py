"""Integers modulo 2^b against Python's integers, which do not overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms.statistics import ring

CASES = [
  *((9, 1.0, 32), (8, 1.0, 32), (3, 0.1, 24), (5, 16.0, 17)),
  *((3, 1.0, bits) for bits in (16, 20, 24, 32)),
]


def total(codes, bits):
  return ring.wrap(codes.sum(axis=0, dtype=jnp.uint32), bits)


def test_scales_are_the_largest_powers_of_two():
  assert ring.scale(1.0, 9, 32) == 2.0**27
  assert ring.scale(1.0, 9, 16) == 2.0**11
  assert ring.scale(16.0, 9, 32) == 2.0**23
  assert ring.scale(1.0, 1, 32) == 2.0**30


@pytest.mark.parametrize('num, bound, bits', CASES)
@pytest.mark.parametrize('sign', [1, -1])
def test_all_clients_at_the_bound_fit_and_not_at_twice_the_scale(
  num, bound, bits, sign
):
  scale = ring.scale(bound, num, bits)
  own = jnp.full((num, 1), sign * bound, jnp.float32)
  for factor, fits in ((1, True), (2, False)):
    codes = ring.encode(own, factor * scale, bits)
    found = ring.decode(total(codes, bits), factor * scale, bits)
    near = abs(float(found[0]) - sign * num * bound) <= num / scale
    # -2^(b-1) is in range, so that eight clients at -1 fit at twice the scale.
    edge = sign < 0 and num * factor * scale * bound == 2.0 ** (bits - 1)
    assert near == (fits or edge)


@pytest.mark.parametrize('num, bound, bits', CASES)
def test_the_error_of_a_sum_is_bounded(num, bound, bits):
  own = np.random.default_rng(0).uniform(-bound, bound, (num, 500)).astype('f4')
  scale = ring.scale(bound, num, bits)
  key = None if bits >= ring.NEAREST else jax.random.key(0)
  codes = ring.encode(jnp.asarray(own), scale, bits, key)
  found = np.asarray(ring.decode(total(codes, bits), scale, bits), 'f8')
  exact = own.astype('f8').sum(axis=0)
  rounding = num / (scale if key is not None else 2 * scale)
  read_out = 2.0**-24 * (np.abs(exact) + rounding)
  error = np.abs(found - exact)
  assert (error <= rounding + read_out).all() and error.max() > 0
  # With more than 24 bits the rounding of the sum to float32 is the larger one.
  assert (error > rounding).any() == (bits == 32)
  # A scale that is 16 times smaller does not keep the bound.
  coarse = ring.encode(jnp.asarray(own), scale / 16, bits)
  worse = np.asarray(ring.decode(total(coarse, bits), scale / 16, bits), 'f8')
  assert (np.abs(worse - exact) > rounding + 2.0**-24 * np.abs(exact)).any()


def test_random_rounding_has_no_bias():
  keys = jax.random.split(jax.random.key(0), 4000)
  scale = ring.scale(1.0, 9, 16)
  value = jnp.float32(0.3 / scale)
  codes = jax.vmap(lambda key: ring.encode(value, scale, 16, key))(keys)
  assert {*np.unique(codes)} == {0, 1}
  assert np.mean(codes) == pytest.approx(0.3, abs=0.03)
  below = jax.vmap(lambda key: ring.encode(-value, scale, 16, key))(keys)
  assert {*np.unique(below)} == {0, 2**16 - 1}


def test_whole_numbers_come_back():
  own = jnp.arange(-5.0, 6.0)
  for bits in (16, 20, 32):
    key = jax.random.key(0) if bits < ring.NEAREST else None
    codes = ring.encode(own, 1.0, bits, key)
    assert (np.asarray(codes, 'u8') < 2**bits).all()
    np.testing.assert_array_equal(ring.decode(codes, 1.0, bits), own)
