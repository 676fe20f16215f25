"""Integers modulo 2^b against Python's integers, which do not overflow.

Masked sums against plain sums, bit for bit.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedreid_jax.algorithms.statistics import secure_sum

CASES = [
  *((9, 1.0, 32), (8, 1.0, 32), (3, 0.1, 24), (5, 16.0, 17)),
  *((3, 1.0, bits) for bits in (16, 20, 24, 32)),
]


def total(codes, bits):
  return secure_sum.wrap(codes.sum(axis=0, dtype=jnp.uint32), bits)


def test_scales_are_the_largest_powers_of_two():
  assert secure_sum.scale(1.0, 9, 32) == 2.0**27
  assert secure_sum.scale(1.0, 9, 16) == 2.0**11
  assert secure_sum.scale(16.0, 9, 32) == 2.0**23
  assert secure_sum.scale(1.0, 1, 32) == 2.0**30


@pytest.mark.parametrize('num, bound, bits', CASES)
@pytest.mark.parametrize('sign', [1, -1])
def test_all_clients_at_the_bound_fit_and_not_at_twice_the_scale(
  num, bound, bits, sign
):
  scale = secure_sum.scale(bound, num, bits)
  own = jnp.full((num, 1), sign * bound, jnp.float32)
  for factor, fits in ((1, True), (2, False)):
    codes = secure_sum.to_integers(own, factor * scale, bits)
    found = secure_sum.from_integers(total(codes, bits), factor * scale, bits)
    near = abs(float(found[0]) - sign * num * bound) <= num / scale
    # -2^(b-1) is in range, so that eight clients at -1 fit at twice the scale.
    edge = sign < 0 and num * factor * scale * bound == 2.0 ** (bits - 1)
    assert near == (fits or edge)


@pytest.mark.parametrize('num, bound, bits', CASES)
def test_the_error_of_a_sum_is_bounded(num, bound, bits):
  own = np.random.default_rng(0).uniform(-bound, bound, (num, 500)).astype('f4')
  scale = secure_sum.scale(bound, num, bits)
  key = None if bits >= secure_sum.NEAREST else jax.random.key(0)
  codes = secure_sum.to_integers(jnp.asarray(own), scale, bits, key)
  found = np.asarray(
    secure_sum.from_integers(total(codes, bits), scale, bits), 'f8'
  )
  exact = own.astype('f8').sum(axis=0)
  rounding = num / (scale if key is not None else 2 * scale)
  read_out = 2.0**-24 * (np.abs(exact) + rounding)
  error = np.abs(found - exact)
  assert (error <= rounding + read_out).all() and error.max() > 0
  # With more than 24 bits the rounding of the sum to float32 is the larger one.
  assert (error > rounding).any() == (bits == 32)
  # A scale that is 16 times smaller does not keep the bound.
  coarse = secure_sum.to_integers(jnp.asarray(own), scale / 16, bits)
  worse = np.asarray(
    secure_sum.from_integers(total(coarse, bits), scale / 16, bits), 'f8'
  )
  assert (np.abs(worse - exact) > rounding + 2.0**-24 * np.abs(exact)).any()


def test_random_rounding_has_no_bias():
  keys = jax.random.split(jax.random.key(0), 4000)
  scale = secure_sum.scale(1.0, 9, 16)
  value = jnp.float32(0.3 / scale)
  codes = jax.vmap(lambda key: secure_sum.to_integers(value, scale, 16, key))(
    keys
  )
  assert {*np.unique(codes)} == {0, 1}
  assert np.mean(codes) == pytest.approx(0.3, abs=0.03)
  below = jax.vmap(lambda key: secure_sum.to_integers(-value, scale, 16, key))(
    keys
  )
  assert {*np.unique(below)} == {0, 2**16 - 1}


def test_whole_numbers_come_back():
  own = jnp.arange(-5.0, 6.0)
  for bits in (16, 20, 32):
    key = jax.random.key(0) if bits < secure_sum.NEAREST else None
    codes = secure_sum.to_integers(own, 1.0, bits, key)
    assert (np.asarray(codes, 'u8') < 2**bits).all()
    np.testing.assert_array_equal(
      secure_sum.from_integers(codes, 1.0, bits), own
    )


PLACES, LENGTH = 6, 4096
UIDS = np.array([70, 3, 2**31 - 1, 12, 500, 9], np.uint32)


def roster(present=None, bits=32, seed=0, uids=UIDS):
  here = np.ones(len(uids), bool) if present is None else np.asarray(present)
  return secure_sum.Roster(
    jax.random.key(seed), jnp.asarray(uids), jnp.asarray(here), bits
  )


def values(bits=32):
  drawn = np.random.default_rng(1).integers(0, 2**bits, (PLACES, LENGTH))
  return drawn.astype(np.uint32)


def plain(own, arrived, bits):
  """The sum in integers that do not overflow."""
  total = own[arrived].astype(np.uint64).sum(axis=0) % 2**bits
  return total.astype(np.uint32)


@functools.partial(jax.jit, static_argnames='bits')
def _masked(key, uids, present, own, bits):
  return secure_sum.masked(secure_sum.Roster(key, uids, present, bits), own)


@functools.partial(jax.jit, static_argnames='bits')
def _added(key, uids, present, arrived, sent, bits):
  given = secure_sum.Roster(key, uids, present, bits)
  return secure_sum.unmasked_sum(given, arrived, sent)


def masked(given, own):
  """`masking.masked`, compiled once for all tests."""
  return np.asarray(_masked(*given[:3], jnp.asarray(own), given.bits))


def added(given, arrived, sent):
  """`masking.unmasked_sum`, compiled once for all tests."""
  return np.asarray(_added(*given[:3], arrived, sent, given.bits))


@pytest.mark.parametrize('bits', [32, 16])
def test_masked_sums_are_plain_sums_for_all_sets_of_survivors(bits):
  """One place has no client; the others arrive or not."""
  given = roster([1, 1, 1, 0, 1, 1], bits)
  own = values(bits)
  sent = masked(given, own)
  assert int(sent.max()) < 2**bits
  for chosen in itertools.product([False, True], repeat=5):
    arrived = np.insert(np.array(chosen), 3, False)
    found = added(given, arrived, sent)
    np.testing.assert_array_equal(found, plain(own, arrived, bits))


def test_messages_that_are_lost_are_not_read():
  arrived = np.array([1, 1, 0, 1, 0, 1], bool)
  sent = masked(roster(), values())
  noise = np.where(arrived[:, None], sent, np.uint32(12345))
  np.testing.assert_array_equal(
    added(roster(), arrived, noise),
    plain(values(), arrived, 32),
  )


def test_without_the_seeds_of_lost_clients_the_sum_is_wrong():
  """The control: the masks that the server removes are in the messages."""
  arrived = np.array([1, 1, 0, 1, 1, 1], bool)
  sent = masked(roster(), values())
  for given in (roster(arrived), roster(seed=1)):
    wrong = added(given, arrived, sent)
    right = plain(values(), arrived, 32)
    assert (np.asarray(wrong) != right).mean() > 0.9


def test_the_order_of_clients_and_partial_sums_change_no_bit():
  arrived = np.array([1, 0, 1, 1, 1, 1], bool)
  right = plain(values(), arrived, 32)
  for order in ([5, 4, 3, 2, 1, 0], [2, 0, 4, 1, 5, 3]):
    given = roster(uids=UIDS[order])
    sent = masked(given, values()[order])
    # A client sends the same message, wherever its row is.
    straight = masked(roster(), values())
    np.testing.assert_array_equal(sent, straight[np.array(order)])
    found = added(given, arrived[order], sent)
    np.testing.assert_array_equal(found, right)
  for devices in (1, 2, 3):
    parts = jnp.asarray(values() * arrived[:, None].astype(np.uint32))
    parts = parts.reshape(devices, -1, LENGTH).sum(axis=1, dtype=jnp.uint32)
    np.testing.assert_array_equal(
      parts[::-1].sum(axis=0, dtype=jnp.uint32), right
    )


@pytest.mark.parametrize('bits, shift', [(32, 24), (32, 0), (16, 8)])
def test_messages_are_uniform_whatever_the_values_are(bits, shift):
  own = np.full((PLACES, LENGTH), 7, np.uint32)
  sent = np.asarray(masked(roster(bits=bits), own))
  for row in sent:
    counts = np.bincount((row >> shift) & 255, minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
  # The control: the values themselves are not.
  counts = np.bincount((own[0] >> shift) & 255, minlength=256)
  assert stats.chisquare(counts).pvalue < 1e-9
  assert np.corrcoef(sent.astype('f8'))[np.triu_indices(6, 1)] == pytest.approx(
    0, abs=0.08
  )


def test_masks_are_new_in_every_round():
  one, other = (np.asarray(masked(roster(seed=k), values())) for k in (0, 1))
  assert (one != other).mean() > 0.99


@pytest.mark.parametrize(
  'clients, threshold, wanted',
  [(9, 0, 6), (10, 0, 7), (4, 0, 3), (3, 0, 3), (9, 8, 8), (9, 1, 3)],
)
def test_the_threshold(clients, threshold, wanted):
  assert int(secure_sum.needed(jnp.int32(clients), threshold)) == wanted
