"""Compressed values against buffers that are packed for real."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms.statistics import compression


def values(num, seed=0):
  return np.random.default_rng(seed).standard_normal(num).astype('f4')


def packed(found, scale, bits):
  """The bytes of codes of some bits, and of their scale."""
  most = compression.levels(bits)
  codes = np.rint(np.asarray(found, 'f8') * most / scale).astype(int) + most
  assert codes.min() >= 0 and codes.max() < 2**bits
  np.testing.assert_allclose((codes - most) * scale / most, found, rtol=1e-5)
  rows = (codes[:, None] >> np.arange(bits)) & 1
  return np.packbits(rows.astype(np.uint8)).tobytes() + np.float32(scale)


@pytest.mark.parametrize('bits', [2, 3, 8, 16])
@pytest.mark.parametrize('by_norm', [False, True])
def test_codes_fit_into_their_bits_and_the_bytes_are_those_sent(bits, by_norm):
  own = values(1001)
  found = compression.rounded(jax.random.key(0), own, bits, by_norm)
  scale = np.linalg.norm(own) if by_norm else np.abs(own).max()
  sent = packed(found, scale, bits)
  assert len(sent) == compression.rounded_bytes([1001], bits)
  step = scale / compression.levels(bits)
  assert np.abs(found - own).max() < step * 1.0001
  assert compression.rounded_bytes([1001, 7], bits) == len(sent) + 4 + -(
    -7 * bits // 8
  )


@pytest.mark.parametrize('by_norm', [False, True])
def test_rounding_has_no_bias_and_a_bounded_error(by_norm):
  own = values(50)
  keys = jax.random.split(jax.random.key(1), 4000)
  found = jax.vmap(lambda key: compression.rounded(key, own, 3, by_norm))(keys)
  scale = np.linalg.norm(own) if by_norm else np.abs(own).max()
  error = np.asarray(found).mean(0) - own
  assert np.abs(error).max() < 5 * scale / 3 / 2 / np.sqrt(4000)
  squared = ((np.asarray(found, 'f8') - own) ** 2).sum(1).mean()
  bound = min(50 / 3**2, np.sqrt(50) / 3) * np.linalg.norm(own) ** 2
  assert 0 < squared < bound


@pytest.mark.parametrize('factor', [2.0**90, 2.0**-90])
def test_the_norm_of_large_and_small_values_is_finite(factor):
  key, own = jax.random.key(0), values(50)
  found = compression.rounded(key, factor * own, 8, True)
  wanted = compression.rounded(key, own, 8, True)
  np.testing.assert_array_equal(found, factor * wanted)


def test_zeros_and_nan_stay():
  key = jax.random.key(0)
  assert not compression.rounded(key, jnp.zeros(5), 8, False).any()
  wrong = compression.rounded(key, jnp.array([1.0, np.nan]), 8, True)
  assert np.isnan(wrong).any()


@pytest.mark.parametrize('ratio', [0.01, 0.3, 1.0])
def test_the_largest_of_all_leaves_are_kept(ratio):
  leaves = {'b': values(60).reshape(6, 10), 'a': values(41, 1) * 3}
  found = compression.largest(leaves, ratio)
  flat = np.concatenate([leaves['a'], leaves['b'].ravel()])
  number = int(np.ceil(ratio * 101))
  wanted = np.zeros(101, 'f4')
  best = np.argsort(-np.abs(flat), kind='stable')[:number]
  wanted[best] = flat[best]
  got = np.concatenate([found['a'], np.ravel(found['b'])])
  np.testing.assert_array_equal(got, wanted)
  lost = ((flat - got) ** 2).sum()
  assert lost <= (1 - number / 101) * (flat**2).sum() + 1e-6


def test_equal_magnitudes_keep_the_first():
  found = compression.largest({'a': jnp.array([1.0, -2.0, 2.0, -2.0])}, 0.5)
  np.testing.assert_array_equal(found['a'], [0.0, -2.0, 2.0, 0.0])


@pytest.mark.parametrize('ratio, places', [(0.01, 4 * 100), (0.5, 1250)])
def test_places_are_indices_or_a_mask(ratio, places):
  own = values(10000)
  found = np.asarray(compression.largest({'a': own}, ratio)['a'])
  (index,) = np.nonzero(found)
  as_index = index.astype(np.uint32).tobytes()
  as_mask = np.packbits(found != 0).tobytes()
  shorter = min(as_index, as_mask, key=len)
  assert len(shorter) == places
  sent = found[index].tobytes() + shorter
  assert len(sent) == compression.largest_bytes(10000, ratio)
