"""Encodes the arrays of an upload as one vector of integers, and decodes sums.

The vector of client k holds the integers (`ring`) of its terms, array by array,
clipped to their limits and weighted.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms.statistics import (
  discrete_gaussian,
  masking,
  ring,
)
from fedreid_jax.algorithms.statistics.masking import Roster
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.sums import Weighted

# Bytes for each other client: two public keys, two encrypted shares of seeds.
NEIGHBOUR = 2 * 32 + 2 * 48
# Relative; the standard deviation is a float32, whose rounding of 6e-8 must not
# make the noise smaller than the guarantee says.
MARGIN = 1e-6


class Format(NamedTuple):
  """The format of the integers in an upload.

  Attributes:
    bits: b of an integer.
    places: K, the largest number of clients in a sum.
  """

  bits: int
  places: int

  def scale(self, limit: float) -> float:
    """Returns the scale of values within a limit."""
    return ring.scale(limit, self.places, self.bits)

  def rounding(self, limit: float, count: int) -> float:
    """Returns the largest norm of the rounding error of `count` values."""
    return math.sqrt(count) * ring.rounding(self.bits) / self.scale(limit)

  def num_bytes(self, shared: Flat, masks: bool) -> int:
    """Returns the bytes of a model and its weight, without messages.

    Args:
      shared: arrays of one model, or their shapes.
      masks: whether keys and shares are counted.
    """
    values = sum(math.prod(x.shape) for x in shared.values()) + 1
    keys = (self.places - 1) * NEIGHBOUR if masks else 0
    return math.ceil(values * self.bits / 8) + keys


def encode(
  form: Format, terms: Sequence[Weighted], valid: Array, keys: Array
) -> Array:
  """Returns the vectors of the clients, uint32 `[K, M]`.

  Args:
    form: format of the integers.
    terms: terms of all clients; values beyond their limit are clipped.
    valid: mask of the clients whose terms are finite, bool `[K]`; the terms of
      others count as zero.
    keys: PRNG keys of the random rounding, one for each client.
  """

  def one(place: int, values: Array, limit: float) -> Array:
    def row(values: Array, key: Array) -> Array:
      # A key for every term: equal draws would correlate the roundings.
      few = form.bits < ring.NEAREST
      own = jax.random.fold_in(key, place) if few else None
      return ring.encode(values, form.scale(limit), form.bits, own)

    return jax.vmap(row)(values, keys)

  parts: list[Array] = []
  for place, (weight, values, limit, _) in enumerate(terms):
    values = values.reshape(len(valid), -1)
    # The conversion of nan to an integer is undefined, and a clip keeps nan.
    values = jnp.where(valid[:, None], values, 0.0)
    weighted = weight[:, None] * jnp.clip(values, -limit, limit)
    parts.append(one(place, weighted, limit))
  return jnp.concatenate(parts, axis=1)


def decode(
  form: Format,
  total: Array,
  terms: Sequence[Weighted],
  key: Array,
  enough: Array,
) -> list[Array]:
  """Returns the sum of each term, with its noise.

  Args:
    form: format of the integers.
    total: sum of the vectors of the clients that arrived, uint32 `[M]`.
    terms: terms whose shapes, limits and noise are read.
    key: PRNG key of the noise.
    enough: whether the sums are released, bool; otherwise they are zero.
  """
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
      whole = ring.decode(part, scale, form.bits)
    else:
      own = jax.random.key_data(jax.random.fold_in(key, place))
      deviation = jnp.where(enough, noise, 0.0)
      integers = ring.whole(part, form.bits)
      whole = _with_noise(integers, scale, deviation, own)
    found.append(whole.reshape(shape))
  return found


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


def add(roster: Roster, arrived: Array, vectors: Array, masks: bool) -> Array:
  """Returns the sum of the vectors that arrived, uint32 `[M]`.

  Args:
    roster: clients of the round.
    arrived: whether the message of each client arrived, bool `[K]`.
    vectors: results of `encode`, uint32 `[K, M]`.
    masks: whether to add and remove the masks, which changes no bit.
  """
  if masks:
    sent = masking.masked(roster, vectors)
    return masking.unmasked_sum(roster, arrived, sent)
  here = jnp.where(arrived[:, None], vectors, 0)
  return ring.wrap(here.sum(axis=0, dtype=jnp.uint32), roster.bits)


def clipped(terms: Sequence[Weighted], valid: Array) -> Array:
  """Returns the share of the values beyond their limit, float32.

  Args:
    terms: terms of all clients.
    valid: which clients count, bool `[K]`.
  """
  beyond, total = jnp.float32(0.0), jnp.float32(0.0)
  for _, values, limit, _ in terms:
    values = values.reshape(len(valid), -1)
    beyond += (valid[:, None] & (jnp.abs(values) > limit)).sum()
    total += valid.sum().astype(jnp.float32) * values.shape[1]
  return beyond / jnp.maximum(total, 1.0)
