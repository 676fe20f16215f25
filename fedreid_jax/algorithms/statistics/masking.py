"""Masks of clients that cancel in the sum over those that arrive.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine
learning, CCS 2017, with numbers modulo 2^b. Client k of the roster R sends

  y_k = x_k + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj),

where b_k is a seed of client k, s_kj is a seed of the pair, and clients are in
the order of their uids. Of the clients U whose y_k arrive, the server learns
b_k, and of the others the seeds s_kj:

  sum_{k in U} x_k = sum_{k in U} (y_k - PRG(b_k))
    - sum_{k in U, j in R \\ U} +-PRG(s_kj),

because the masks of two clients in U cancel. Seeds are random keys of JAX; the
agreement of the clients on them is not simulated.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms.statistics import ring
from fedreid_jax.core.types import Array

OWN, PAIR = 0, 1  # uses of a key


class Roster(NamedTuple):
  """The clients that begin a round.

  Attributes:
    key: PRNG key of the round, from which all seeds are derived.
    uids: hashes of the names of the clients, uint32 `[K]`.
    present: whether each place has a client, bool `[K]`.
    bits: b.
  """

  key: Array
  uids: Array
  present: Array
  bits: int


def needed(num_clients: Array, threshold: int) -> Array:
  """Returns how many clients must arrive, int32.

  Args:
    num_clients: number of clients of the roster.
    threshold: required number, 0 for two thirds of the roster. The result is at
      least three.
  """
  wanted = threshold or (2 * num_clients + 2) // 3
  # From a sum of two uploads, either client can compute the other upload.
  return jnp.maximum(wanted, 3)


def masked(roster: Roster, values: Array) -> Array:
  """Adds the masks to the values of the clients, uint32 `[K, M]`.

  Args:
    roster: clients of the round.
    values: x modulo 2^b, uint32 `[K, M]`.
  """

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

  return ring.wrap(jax.lax.scan(add, sent, _pairs(len(values)))[0], roster.bits)


def unmasked_sum(roster: Roster, arrived: Array, sent: Array) -> Array:
  """Returns the sum of x of the clients that arrived, uint32 `[M]`.

  Args:
    roster: clients of the round.
    arrived: whether the message of each client arrived, bool `[K]`.
    sent: result of `masked`; rows that did not arrive are not read.
  """
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
  return ring.wrap(total, roster.bits)


def _pairs(num: int) -> Array:
  """Returns the indices of all pairs of clients, int32 `[K (K - 1) / 2, 2]`."""
  return jnp.asarray(np.stack(np.triu_indices(num, 1), axis=1), jnp.int32)


def _own_mask(roster: Roster, uid: Array, counts: Array, length: int) -> Array:
  """Returns the mask PRG(b_k), or zeros for a client that does not count."""
  key = jax.random.fold_in(jax.random.fold_in(roster.key, OWN), uid)
  return jnp.where(counts, jax.random.bits(key, (length,), jnp.uint32), 0)


def _pair_mask(roster: Roster, one: Array, other: Array, length: int) -> Array:
  """Returns the mask that `one` adds and `other` subtracts."""
  # The order of the uids and not of the places, which depend on the cohort:
  # both clients of a pair derive the same key and opposite signs.
  first, second = roster.uids[one], roster.uids[other]
  key = jax.random.fold_in(roster.key, PAIR)
  key = jax.random.fold_in(key, jnp.minimum(first, second))
  key = jax.random.fold_in(key, jnp.maximum(first, second))
  mask = jax.random.bits(key, (length,), jnp.uint32)
  return jnp.where(first < second, mask, -mask)
