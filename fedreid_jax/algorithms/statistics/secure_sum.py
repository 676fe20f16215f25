"""Weighted updates of clients as vectors of integers, and their mean.

The vector of client k has the integers of a_k D_k (`ring`), parameter by
parameter in the order of their names, and last that of the weight a_k, so that
one sum over the clients gives the weighted mean.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms.statistics import masking, ring
from fedreid_jax.algorithms.statistics.masking import Roster
from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Array, Flat

# Bytes for each other client: two public keys, two encrypted shares of seeds.
NEIGHBOUR = 2 * 32 + 2 * 48


class Format(NamedTuple):
  """How numbers become integers.

  Attributes:
    bits: b of an integer.
    places: K, the largest number of clients in a sum.
    bound: of the changes of parameters.
    bound_batch_stats: of the changes of running statistics.
  """

  bits: int
  places: int
  bound: float
  bound_batch_stats: float

  def bounds(self, shared: Flat) -> dict[str, float]:
    """Returns the bound of each parameter, in the order of a vector."""
    params, _ = param_filter.trainable(shared)
    return {
      name: self.bound if name in params else self.bound_batch_stats
      for name in sorted(shared)
    }

  def scale(self, bound: float) -> float:
    """Returns the scale of values within a bound."""
    return ring.scale(bound, self.places, self.bits)

  def num_bytes(self, shared: Flat, masks: bool) -> int:
    """Returns the bytes of one upload.

    Args:
      shared: arrays of one model, or their shapes.
      masks: whether keys and shares are counted.
    """
    values = sum(math.prod(x.shape) for x in shared.values()) + 1
    keys = (self.places - 1) * NEIGHBOUR if masks else 0
    return math.ceil(values * self.bits / 8) + keys


def encode(
  form: Format, changes: Flat, shares: Array, valid: Array, keys: Array
) -> Array:
  """Returns the vectors of the clients, uint32 `[K, M + 1]`.

  Args:
    form: of the integers.
    changes: float32 `[K, ...]` by name; values beyond their bound are clipped.
    shares: a_k, 0 to 1, float32 `[K]`.
    valid: whether changes are finite, bool `[K]`; others count as zero.
    keys: of the random rounding with few bits, one for each client.
  """

  def one(place: int, values: Array, bound: float) -> Array:
    def row(values: Array, key: Array) -> Array:
      few = form.bits < ring.NEAREST
      own = jax.random.fold_in(key, place) if few else None
      return ring.encode(values, form.scale(bound), form.bits, own)

    return jax.vmap(row)(values, keys)

  column = shares[:, None]
  parts: list[Array] = []
  for place, (name, bound) in enumerate(form.bounds(changes).items()):
    values = changes[name].reshape(len(shares), -1)
    values = jnp.where(valid[:, None], values, 0.0)
    parts.append(one(place, column * jnp.clip(values, -bound, bound), bound))
  parts.append(one(len(parts), column, 1.0))
  return jnp.concatenate(parts, axis=1)


def decode_mean(form: Format, total: Array, like: Flat) -> tuple[Flat, Array]:
  """Returns (mean of the changes by name, the sum of their weights).

  Args:
    form: of the integers.
    total: sum of the vectors of the clients that arrived, uint32 `[M + 1]`.
    like: arrays of the shapes of one change; the mean is zero if the sum of
      weights is.
  """
  weight = ring.decode(total[-1], form.scale(1.0), form.bits)
  divisor = jnp.where(weight > 0, weight, 1.0)
  mean, first = {}, 0
  for name, bound in form.bounds(like).items():
    part, first = (
      total[first : first + like[name].size],
      first + like[name].size,
    )
    found = ring.decode(part, form.scale(bound), form.bits) / divisor
    mean[name] = jnp.where(weight > 0, found, 0.0).reshape(like[name].shape)
  return mean, weight


def add(roster: Roster, arrived: Array, vectors: Array, masks: bool) -> Array:
  """Returns the sum of the vectors that arrived, uint32 `[M + 1]`.

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


def clipped(form: Format, changes: Flat, valid: Array) -> Array:
  """Returns the share of the values beyond their bound, float32.

  Args:
    form: of the integers.
    changes: `[K, ...]` by name.
    valid: which clients count, bool `[K]`.
  """
  beyond, total = jnp.float32(0.0), jnp.float32(0.0)
  for name, bound in form.bounds(changes).items():
    values = changes[name].reshape(len(valid), -1)
    beyond += (valid[:, None] & (jnp.abs(values) > bound)).sum()
    total += valid.sum() * values.shape[1]
  return beyond / jnp.maximum(total, 1.0)
