"""Values of many arrays as one vector of integers, and their sums.

The vector of client k has the integers (`ring`) of its terms, array by array,
each weighted and clipped to its limit.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms.statistics import masking, ring
from fedreid_jax.algorithms.statistics.masking import Roster
from fedreid_jax.core.sums import Weighted
from fedreid_jax.core.types import Array, Flat

# Bytes for each other client: two public keys, two encrypted shares of seeds.
NEIGHBOUR = 2 * 32 + 2 * 48


class Format(NamedTuple):
  """How numbers become integers.

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
    """Returns the largest norm of the rounding of so many values.

    Args:
      limit: of the values.
      count: number of values.
    """
    return math.sqrt(count) * ring.rounding(self.bits) / self.scale(limit)

  def num_bytes(self, shared: Flat, masks: bool) -> int:
    """Returns the bytes of one upload with one weight, without messages.

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
    form: of the integers.
    terms: of all clients; values beyond their limit are clipped.
    valid: whether the terms are finite, bool `[K]`; others count as zero.
    keys: of the random rounding with few bits, one for each client.
  """

  def one(place: int, values: Array, limit: float) -> Array:
    def row(values: Array, key: Array) -> Array:
      few = form.bits < ring.NEAREST
      own = jax.random.fold_in(key, place) if few else None
      return ring.encode(values, form.scale(limit), form.bits, own)

    return jax.vmap(row)(values, keys)

  parts: list[Array] = []
  for place, (weight, values, limit) in enumerate(terms):
    values = values.reshape(len(valid), -1)
    values = jnp.where(valid[:, None], values, 0.0)
    weighted = weight[:, None] * jnp.clip(values, -limit, limit)
    parts.append(one(place, weighted, limit))
  return jnp.concatenate(parts, axis=1)


def decode(
  form: Format, total: Array, terms: Sequence[Weighted]
) -> list[Array]:
  """Returns the sum of each term.

  Args:
    form: of the integers.
    total: sum of the vectors of the clients that arrived, uint32 `[M]`.
    terms: of which shapes and limits are read.
  """
  found, first = [], 0
  for _, values, limit in terms:
    shape = values.shape[1:]
    part = total[first : first + math.prod(shape)]
    first += math.prod(shape)
    whole = ring.decode(part, form.scale(limit), form.bits)
    found.append(whole.reshape(shape))
  return found


def add(roster: Roster, arrived: Array, vectors: Array, masks: bool) -> Array:
  """Returns the sum of the vectors that arrived, uint32 `[M]`.

  Args:
    roster: of the round.
    arrived: whether the message of each client arrived, bool `[K]`.
    vectors: of `encode`.
    masks: whether they are masked on the way, which changes no bit.
  """
  if masks:
    sent = masking.masked(roster, vectors)
    return masking.unmasked_sum(roster, arrived, sent)
  here = jnp.where(arrived[:, None], vectors, 0)
  return ring.wrap(here.sum(axis=0, dtype=jnp.uint32), roster.bits)


def clipped(terms: Sequence[Weighted], valid: Array) -> Array:
  """Returns the share of the values beyond their limit, float32.

  Args:
    terms: of all clients.
    valid: which clients count, bool `[K]`.
  """
  beyond, total = jnp.float32(0.0), jnp.float32(0.0)
  for _, values, limit in terms:
    values = values.reshape(len(valid), -1)
    beyond += (valid[:, None] & (jnp.abs(values) > limit)).sum()
    total += valid.sum().astype(jnp.float32) * values.shape[1]
  return beyond / jnp.maximum(total, 1.0)
