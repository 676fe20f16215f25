r"""Sums of integers that reveal no term: encoding, masks and decoding.

The vector of client k holds the integers of its terms, array by array, clipped
to their limits and weighted. A value v with |v| <= B is the integer
x = rint(s v), stored modulo 2^b. The sum of K such integers stays between
-2^(b-1) and 2^(b-1), so that the sum modulo 2^b is the sum W of the integers,
and W / s has an error of at most K / (2 s), or K / s with fewer than 24 bits,
where x is rounded at random without bias. Reading W as float32, which has 24
bits, adds an error of 2^-24 |W| / s, which is larger than K / (2 s) where
|W| > 2^23 K.

Masks cancel in the sum over the clients that arrive (Bonawitz et al., Practical
secure aggregation for privacy-preserving machine learning, CCS 2017, with
numbers modulo 2^b). Client k of the roster R sends

  y_k = x_k + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj),

where b_k is a seed of client k, s_kj is a seed of the pair, and clients are in
the order of their uids. Of the clients U whose y_k arrive, the server learns
b_k, and of the others the seeds s_kj:

  sum_{k in U} x_k = sum_{k in U} (y_k - PRG(b_k))
    - sum_{k in U, j in R \ U} +-PRG(s_kj),

because the masks of two clients in U cancel. Seeds are random keys of JAX; the
agreement of the clients on them is not simulated.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms.statistics import discrete_gaussian
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.sums import Weighted

OWN, PAIR = 0, 1  # uses of a key
# With this many bits or more, a value is rounded to the nearest integer. With
# fewer, steps are coarse, and only a random rounding has no bias in the mean.
NEAREST = 24
# Bytes for each other client: two public keys, two encrypted shares of seeds.
NEIGHBOUR = 2 * 32 + 2 * 48
# Relative; the standard deviation is a float32, whose rounding of 6e-8 must not
# make the noise smaller than the guarantee says.
MARGIN = 1e-6


class Format(NamedTuple):
  """The format of the integers in an upload."""

  bits: int  # b of an integer
  places: int  # K, the largest number of clients in a sum

  def scale(self, limit: float) -> float:
    """The scale of values within a limit."""
    return scale(limit, self.places, self.bits)

  def rounding(self, limit: float) -> float:
    """The largest rounding error of a value within a limit."""
    return rounding(self.bits) / self.scale(limit)

  def num_bytes(self, shared: Flat, masks: bool) -> int:
    """The bytes of a model, its weight and, with masks, its keys."""
    values = sum(math.prod(x.shape) for x in shared.values()) + 1
    keys = (self.places - 1) * NEIGHBOUR if masks else 0
    return math.ceil(values * self.bits / 8) + keys


class Roster(NamedTuple):
  """The clients that begin a round."""

  key: Array  # of the round, from which all seeds are derived
  uids: Array  # hashes of the names of the clients, uint32 `[K]`
  present: Array  # whether each place has a client, bool `[K]`
  bits: int  # b


def encode(
  form: Format, terms: Sequence[Weighted], valid: Array, keys: Array
) -> Array:
  """The vectors of the clients, uint32 `[K, M]`.

  Values beyond their limit are clipped, and the terms of clients that are not
  valid count as zero. Each client has one of the `keys` for random rounding.
  """

  def one(place: int, values: Array, limit: float) -> Array:
    def row(values: Array, key: Array) -> Array:
      # A key for every term: equal draws would correlate the roundings.
      few = form.bits < NEAREST
      own = jax.random.fold_in(key, place) if few else None
      return to_integers(values, form.scale(limit), form.bits, own)

    return jax.vmap(row)(values, keys)

  parts: list[Array] = []
  for place, (weight, values, limit, _) in enumerate(terms):
    values = values.reshape(len(valid), -1)
    # The conversion of nan to an integer is undefined, and a clip keeps nan.
    values = jnp.where(valid[:, None], values, 0.0)
    weighted = weight[:, None] * jnp.clip(values, -limit, limit)
    parts.append(one(place, weighted, limit))
  return jnp.concatenate(parts, axis=1)


def add(roster: Roster, arrived: Array, vectors: Array, masks: bool) -> Array:
  """The sum `[M]` of the vectors that arrived; masks change no bit of it."""
  if masks:
    sent = masked(roster, vectors)
    return unmasked_sum(roster, arrived, sent)
  here = jnp.where(arrived[:, None], vectors, 0)
  return wrap(here.sum(axis=0, dtype=jnp.uint32), roster.bits)


def decode(
  form: Format,
  total: Array,
  terms: Sequence[Weighted],
  key: Array,
  enough: Array,
) -> list[Array]:
  """The sum of each term, with its noise; zeros unless `enough`."""
  # An aborted round releases nothing: zeros, and no noise around them.
  total = jnp.where(enough, total, 0)
  found: list[Array] = []
  first = 0
  for place, (_, values, limit, noise) in enumerate(terms):
    shape = values.shape[1:]
    part = total[first : first + math.prod(shape)]
    first += math.prod(shape)
    scale = form.scale(limit)
    if noise is None:
      value = from_integers(part, scale, form.bits)
    else:
      own = jax.random.key_data(jax.random.fold_in(key, place))
      deviation = jnp.where(enough, noise, 0.0)
      integers = whole(part, form.bits)
      value = _with_noise(integers, scale, deviation, own)
    found.append(value.reshape(shape))
  return found


def needed(num_clients: Array, threshold: int) -> Array:
  """Returns how many clients must arrive, at least three, int32.

  A threshold of 0 means two thirds of the roster.
  """
  wanted = threshold or (2 * num_clients + 2) // 3
  # From a sum of two uploads, either client can compute the other upload.
  return jnp.maximum(wanted, 3)


def masked(roster: Roster, values: Array) -> Array:
  """Adds the masks to the values of the clients, uint32 `[K, M]` modulo 2^b."""

  def own(row: tuple[Array, Array, Array]) -> Array:
    message, uid, present = row
    return message + _own_mask(roster, uid, present, message.shape[0])

  rows = values, roster.uids, roster.present
  sent = jax.vmap(own)(rows)

  # One pair at a time: all masks at once would take K^2 times the uploads.
  def add(sent: Array, pair: Array) -> tuple[Array, None]:
    one, other = pair
    both = roster.present[one] & roster.present[other]
    mask = jnp.where(both, _pair_mask(roster, one, other, sent.shape[1]), 0)
    return sent.at[one].add(mask).at[other].add(-mask), None

  return wrap(jax.lax.scan(add, sent, _pairs(len(values)))[0], roster.bits)


def unmasked_sum(roster: Roster, arrived: Array, sent: Array) -> Array:
  """The sum of x of the clients that arrived, uint32 `[M]`."""
  length = sent.shape[1]

  def remove_own(
    total: Array, row: tuple[Array, Array, Array]
  ) -> tuple[Array, None]:
    message, uid, here = row
    # The row of a lost client is replaced, because it must not be read.
    message = jnp.where(here, message, 0)
    return total + message - _own_mask(roster, uid, here, length), None

  def remove_pair(total: Array, pair: Array) -> tuple[Array, None]:
    one, other = pair
    both = roster.present[one] & roster.present[other]
    # If both arrived, their masks cancel; if neither did, none is in the sum.
    lost = both & (arrived[one] != arrived[other])
    mask = _pair_mask(roster, one, other, length)
    mask = jnp.where(arrived[one], mask, -mask)
    return total - jnp.where(lost, mask, 0), None

  total = jnp.zeros(length, jnp.uint32)
  rows = sent, roster.uids, arrived
  total, _ = jax.lax.scan(remove_own, total, rows)
  total, _ = jax.lax.scan(remove_pair, total, _pairs(len(sent)))
  return wrap(total, roster.bits)


def _pairs(num: int) -> Array:
  """The indices of all pairs of clients, int32 `[K (K - 1) / 2, 2]`."""
  return jnp.asarray(np.stack(np.triu_indices(num, 1), axis=1), jnp.int32)


def _own_mask(roster: Roster, uid: Array, counts: Array, length: int) -> Array:
  """The mask PRG(b_k), or zeros for a client that does not count."""
  key = jax.random.fold_in(jax.random.fold_in(roster.key, OWN), uid)
  return jnp.where(counts, jax.random.bits(key, (length,), jnp.uint32), 0)


def _pair_mask(roster: Roster, one: Array, other: Array, length: int) -> Array:
  """The mask that `one` adds and `other` subtracts."""
  # The order of the uids and not of the places, which depend on the cohort:
  # both clients of a pair derive the same key and opposite signs.
  first, second = roster.uids[one], roster.uids[other]
  key = jax.random.fold_in(roster.key, PAIR)
  key = jax.random.fold_in(key, jnp.minimum(first, second))
  key = jax.random.fold_in(key, jnp.maximum(first, second))
  mask = jax.random.bits(key, (length,), jnp.uint32)
  return jnp.where(first < second, mask, -mask)


def scale(bound: float, num_terms: int, bits: int) -> float:
  """Returns s, the largest power of two without overflow, for 16 to 32 bits."""
  bound = float(np.float32(bound))
  # Each term may be rounded up, so its rounding counts in the sum.
  most = (2 ** (bits - 1) - 1) / num_terms - rounding(bits)
  # A power of two, because a product with it changes no digit in float32. At
  # most 2^(b-2) keeps a single value within int32.
  _, exponent = math.frexp(min(most, 2.0 ** (bits - 2)) / bound)
  return 2.0 ** (exponent - 1)


def rounding(bits: int) -> float:
  """The largest |x - s v| of a value v and its integer x."""
  return 0.5 if bits >= NEAREST else 1.0


def to_integers(
  values: Array, scale_: float, bits: int, key: Array | None = None
) -> Array:
  """Returns integers modulo 2^b, uint32, of values within the bound of `scale`.

  They are rounded at random with a key, and to the nearest integer without.
  """
  scaled = values * jnp.float32(scale_)
  if key is None:
    whole = jnp.rint(scaled)
  else:
    whole = jnp.floor(scaled)
    drawn = jax.random.uniform(key, values.shape)
    whole += (drawn < scaled - whole).astype(jnp.float32)
  return wrap(unsigned(whole.astype(jnp.int32)), bits)


def from_integers(total: Array, scale_: float, bits: int) -> Array:
  """The values of a sum modulo 2^b, float32."""
  return whole(total, bits).astype(jnp.float32) / jnp.float32(scale_)


def whole(total: Array, bits: int) -> Array:
  """The integer of a sum modulo 2^b, int32."""
  # The sign is the bit b - 1; the shift back to the right copies it.
  spare = 32 - bits
  raised = jax.lax.bitcast_convert_type(total << spare, jnp.int32)
  return raised >> spare


def unsigned(values: Array) -> Array:
  """Reinterprets int32 as uint32, that is modulo 2^32."""
  return jax.lax.bitcast_convert_type(values, jnp.uint32)


def wrap(values: Array, bits: int) -> Array:
  """Returns uint32 modulo 2^b."""
  return values & jnp.uint32(2**bits - 1)


def _with_noise(
  whole: Array, scale: float, deviation: Array, key: Array
) -> Array:
  """Returns (integers + discrete Gaussian noise) / scale, float32."""

  # On the host, where integers have 64 bits: the noise and the sum are exact,
  # and only the released result is rounded.

  def add(whole: Any, deviation: Any, key: Any) -> np.ndarray:
    wanted = float(deviation) * scale * (1 + MARGIN)
    bits = discrete_gaussian.Bits(np.asarray(key).astype('<u4').tobytes())
    # Rounded up, since less noise would break the guarantee.
    noise = discrete_gaussian.sample(bits, whole.size, math.ceil(wanted))
    return ((np.asarray(whole, np.int64) + noise) / scale).astype(np.float32)

  released = jax.ShapeDtypeStruct(whole.shape, jnp.float32)
  return jax.pure_callback(add, released, whole, deviation, key)


def clipped(terms: Sequence[Weighted], valid: Array) -> Array:
  """The share of the values of valid clients beyond their limit."""
  beyond, total = jnp.float32(0.0), jnp.float32(0.0)
  for _, values, limit, _ in terms:
    values = values.reshape(len(valid), -1)
    beyond += (valid[:, None] & (jnp.abs(values) > limit)).sum()
    total += valid.sum().astype(jnp.float32) * values.shape[1]
  return beyond / jnp.maximum(total, 1.0)
