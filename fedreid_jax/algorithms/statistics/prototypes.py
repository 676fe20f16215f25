"""Feature bank of a round, and the prototypes of identities made of it.

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
class FeatureBank:
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
class Prototypes:
  """One feature for each identity.

  Attributes:
    features: zeros where there is none, `[C, D]`.
    present: which identities have one, bool `[C]`.
  """

  features: Array
  present: Array


def empty(capacity: int, num_features: int) -> FeatureBank:
  """Returns a bank with room for `capacity` features."""
  return FeatureBank(
    jnp.zeros((capacity, num_features), jnp.float32),
    jnp.full(capacity, -1, jnp.int32),
    jnp.int32(0),
  )


def insert(
  bank: FeatureBank, features: Array, labels: Array, valid: Array
) -> FeatureBank:
  """Adds a batch; what finds no room any more is not kept.

  Args:
    bank: of `M` features.
    features: `[B, D]`.
    labels: int32 `[B]`.
    valid: real rows, bool `[B]`; others take no room.
  """
  capacity = bank.labels.shape[0]
  rows = jnp.where(valid, bank.num + jnp.cumsum(valid) - 1, capacity)
  return FeatureBank(
    bank.features.at[rows].set(features, mode='drop'),
    bank.labels.at[rows].set(labels, mode='drop'),
    bank.num + valid.sum(dtype=jnp.int32),
  )


def no_prototypes(num_identities: int, num_features: int) -> Prototypes:
  """Returns the centres of no images."""
  return Prototypes(
    jnp.zeros((num_identities, num_features), jnp.float32),
    jnp.zeros(num_identities, bool),
  )


def nearest_means(bank: FeatureBank, num_identities: int, k: int) -> Prototypes:
  """Averages the `k` features of each identity nearest to their mean.

  Jiang et al., L2RW, eq. 3-4, distances Euclidean; an identity of fewer than
  `k` features is averaged whole. Of equally near ones the earliest count.

  Args:
    bank: of a round.
    num_identities: `C`.
    k: features of a centre.
  """
  real = bank.labels >= 0
  owners = jnp.where(real, bank.labels, num_identities)
  own = jnp.minimum(owners, num_identities - 1)

  # Rows sent to slot `C` are dropped: no copy of the bank is masked.
  def total(values, chosen):
    sent = jnp.where(chosen, owners, num_identities)
    return jax.ops.segment_sum(values, sent, num_identities)

  count = total(jnp.ones_like(owners), real)
  mean = total(bank.features, real) / jnp.maximum(count, 1)[:, None]
  away = jnp.square(bank.features - mean[own]).sum(axis=1)
  order = jnp.lexsort((away, owners))
  place = jnp.zeros_like(owners).at[order].set(jnp.arange(len(owners)))
  rank = place - (jnp.cumsum(count) - count)[own]
  near = total(bank.features, rank < k) / jnp.clip(count, 1, k)[:, None]
  return Prototypes(near, count > 0)


def merge(
  old: Prototypes,
  messages: Prototypes,
  valid: Array,
  count_absent: bool = False,
) -> Prototypes:
  """Averages an identity's centres over the clients that have one.

  Jiang et al., L2RW, eq. 5, over the valid uploads; an identity that
  none of them has keeps its old centre.

  Args:
    old: the server's.
    messages: `[K, C, D]` and `[K, C]`, in canonical order.
    valid: bool `[K]`.
    count_absent: a client without the identity counts as one whose centre is
      zero, as in the released code; the paper leaves it out.
  """
  present = messages.present & valid[:, None]

  # One after another: zeros for empty places then change no bit of the sum.
  def add(sum_, upload):
    features, here = upload
    return sum_ + jnp.where(here[:, None], features, 0.0), None

  total, _ = jax.lax.scan(
    add, jnp.zeros_like(old.features), (messages.features, present)
  )
  num = present.sum(axis=0)
  fresh = num > 0
  if count_absent:
    num = jnp.full_like(num, valid.sum())
  mean = total / jnp.maximum(num, 1)[:, None]
  return Prototypes(
    jnp.where(fresh[:, None], mean, old.features), fresh | old.present
  )
