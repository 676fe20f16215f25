"""Features remembered through a round, and the centres made of them.

A client writes down the feature of every image it trains on, in the order it
sees them: one log for all identities. The nearest features of a centre are
known only once the last of them has moved it, so that all must be kept; a log
takes the images of the round, and no room for each identity at its worst.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core.types import Array


@struct.dataclass
class Memory:
  """Features of a round.

  Attributes:
    features: in the order they came, `[M, D]`.
    labels: their identities, -1 where there is none yet, int32 `[M]`.
    num: how many were inserted, int32.
  """

  features: Array
  labels: Array
  num: Array


@struct.dataclass
class Centres:
  """One feature for each identity.

  Attributes:
    features: zeros where there is none, `[C, D]`.
    present: which identities have one, bool `[C]`.
  """

  features: Array
  present: Array


def empty(capacity: int, num_features: int) -> Memory:
  """Returns a memory with room for `capacity` features."""
  return Memory(
    jnp.zeros((capacity, num_features), jnp.float32),
    jnp.full(capacity, -1, jnp.int32),
    jnp.int32(0),
  )


def insert(
  memory: Memory, features: Array, labels: Array, valid: Array
) -> Memory:
  """Adds a batch; what finds no room any more is not kept.

  Args:
    memory: of `M` features.
    features: `[B, D]`.
    labels: int32 `[B]`.
    valid: real rows, bool `[B]`; others take no room.
  """
  capacity = memory.labels.shape[0]
  rows = jnp.where(valid, memory.num + jnp.cumsum(valid) - 1, capacity)
  return Memory(
    memory.features.at[rows].set(features, mode='drop'),
    memory.labels.at[rows].set(labels, mode='drop'),
    memory.num + valid.sum(dtype=jnp.int32),
  )


def no_centres(num_identities: int, num_features: int) -> Centres:
  """Returns the centres of no images."""
  return Centres(
    jnp.zeros((num_identities, num_features), jnp.float32),
    jnp.zeros(num_identities, bool),
  )


def centres(memory: Memory, num_identities: int, k: int) -> Centres:
  """Averages the `k` features of each identity nearest to their mean.

  Jiang et al., L2RW, eq. 3-4, distances Euclidean; an identity of fewer than
  `k` features is averaged whole. Of equally near ones the earliest count.

  Args:
    memory: of a round.
    num_identities: `C`.
    k: features of a centre.
  """
  real = memory.labels >= 0
  slots = jnp.where(real, memory.labels, num_identities)
  own = jnp.minimum(slots, num_identities - 1)

  # Rows sent to slot `C` are dropped: no copy of the memory is masked.
  def total(values, chosen):
    sent = jnp.where(chosen, slots, num_identities)
    return jax.ops.segment_sum(values, sent, num_identities)

  count = total(jnp.ones_like(slots), real)
  mean = total(memory.features, real) / jnp.maximum(count, 1)[:, None]
  away = jnp.square(memory.features - mean[own]).sum(axis=1)
  order = jnp.lexsort((away, slots))
  place = jnp.zeros_like(slots).at[order].set(jnp.arange(len(slots)))
  rank = place - (jnp.cumsum(count) - count)[own]
  near = total(memory.features, rank < k) / jnp.clip(count, 1, k)[:, None]
  return Centres(near, count > 0)


def merge(
  old: Centres, uploads: Centres, arrived: Array, count_absent: bool = False
) -> Centres:
  """Averages an identity's centres over the clients that have one.

  Jiang et al., L2RW, eq. 5, over the uploads that arrived; an identity that
  none of them has keeps its old centre.

  Args:
    old: the server's.
    uploads: `[K, C, D]` and `[K, C]`, in canonical order.
    arrived: bool `[K]`.
    count_absent: a client without the identity counts as one whose centre is
      zero, as in the released code; the paper leaves it out.
  """
  present = uploads.present & arrived[:, None]

  # One after another: zeros for empty places then change no bit of the sum.
  def add(sum_, upload):
    features, here = upload
    return sum_ + jnp.where(here[:, None], features, 0.0), None

  total, _ = jax.lax.scan(
    add, jnp.zeros_like(old.features), (uploads.features, present)
  )
  num = present.sum(axis=0)
  fresh = num > 0
  if count_absent:
    num = jnp.full_like(num, arrived.sum())
  mean = total / jnp.maximum(num, 1)[:, None]
  return Centres(
    jnp.where(fresh[:, None], mean, old.features), fresh | old.present
  )
