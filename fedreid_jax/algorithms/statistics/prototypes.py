"""Feature bank of a round, and the prototypes of identities computed from it.

A client stores the feature of every training image in the order of training, in
one log for all identities.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core.types import Array


# All features are kept, because each one moves the centre, to which the nearest
# are wanted. One log has the images of the round as its capacity; a bank for
# each identity would need the worst case for each.
@struct.dataclass
class FeatureBank:
  """Features of a round.

  Attributes:
    features: features in the order of insertion, `[M, D]`.
    labels: their identities, -1 for empty rows, int32 `[M]`.
    num: number of inserted features, int32.
  """

  features: Array
  labels: Array
  num: Array


@struct.dataclass
class Prototypes:
  """One feature for each identity.

  Attributes:
    features: one row per identity, zeros if it has no feature, `[C, D]`.
    present: whether each identity has a feature, bool `[C]`.
  """

  features: Array
  present: Array


def empty(capacity: int, num_features: int) -> FeatureBank:
  """Returns an empty bank for `capacity` features."""
  return FeatureBank(
    jnp.zeros((capacity, num_features), jnp.float32),
    jnp.full(capacity, -1, jnp.int32),
    jnp.int32(0),
  )


def insert(
  bank: FeatureBank, features: Array, labels: Array, valid: Array
) -> FeatureBank:
  """Adds a batch; features beyond the capacity are dropped.

  Args:
    bank: bank for `M` features.
    features: `[B, D]`.
    labels: int32 `[B]`.
    valid: real rows, bool `[B]`; other rows are not inserted.
  """
  capacity = bank.labels.shape[0]
  # Rows at the capacity are out of range and dropped.
  rows = jnp.where(valid, bank.num + jnp.cumsum(valid) - 1, capacity)
  return FeatureBank(
    bank.features.at[rows].set(features, mode='drop'),
    bank.labels.at[rows].set(labels, mode='drop'),
    bank.num + valid.sum(dtype=jnp.int32),
  )


def no_prototypes(num_identities: int, num_features: int) -> Prototypes:
  """Returns prototypes for which no identity has a feature."""
  return Prototypes(
    jnp.zeros((num_identities, num_features), jnp.float32),
    jnp.zeros(num_identities, bool),
  )


def nearest_means(bank: FeatureBank, num_identities: int, k: int) -> Prototypes:
  """Averages the `k` features of each identity nearest to their mean.

  Jiang et al., L2RW, eq. 3-4, with Euclidean distances; all features of an
  identity with fewer than `k` are averaged. Ties are broken by order.

  Args:
    bank: bank of a round.
    num_identities: `C`.
    k: number of features in a centre.
  """
  real = bank.labels >= 0
  owners = jnp.where(real, bank.labels, num_identities)
  own = jnp.minimum(owners, num_identities - 1)

  # Rows of segment `C` are dropped, which avoids a masked copy of the bank.
  def total(values: Array, chosen: Array) -> Array:
    segment = jnp.where(chosen, owners, num_identities)
    return jax.ops.segment_sum(values, segment, num_identities)

  count = total(jnp.ones_like(owners), real)
  mean = total(bank.features, real) / jnp.maximum(count, 1)[:, None]
  away = jnp.square(bank.features - mean[own]).sum(axis=1)
  # Sorted by identity and then by distance; the rank of a feature is its place
  # behind the first of its identity. Empty rows come last.
  order = jnp.lexsort((away, owners))
  place = jnp.zeros_like(owners).at[order].set(jnp.arange(len(owners)))
  rank = place - (jnp.cumsum(count) - count)[own]
  near = total(bank.features, rank < k) / jnp.clip(count, 1, k)[:, None]
  return Prototypes(near, count > 0)


def terms(message: Prototypes) -> Prototypes:
  """Returns the terms of one client in the sums of `mean`, float32.

  `present` becomes a count of 0 or 1.
  """
  present = message.present
  features = jnp.where(present[:, None], message.features, 0.0)
  return Prototypes(features, present.astype(jnp.float32))


def mean(
  old: Prototypes, sums: Prototypes, everyone: Array | None = None
) -> Prototypes:
  """Averages an identity's centres over the clients that have one.

  Jiang et al., L2RW, eq. 5, over the valid uploads; an identity without a
  feature in any of them keeps its old centre.

  Args:
    old: prototypes of the server.
    sums: sums of `terms` over the valid uploads.
    everyone: number of valid uploads if a client without the identity
      contributes a centre of zeros, as in the released code; None for the
      paper, where it does not contribute.
  """
  fresh = sums.present > 0
  num = sums.present if everyone is None else everyone
  mean = sums.features / jnp.atleast_1d(jnp.maximum(num, 1))[:, None]
  return Prototypes(
    jnp.where(fresh[:, None], mean, old.features), fresh | old.present
  )
