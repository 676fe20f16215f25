"""Moments of the features of each identity, and the statistics of DFH."""

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core.types import Array


@struct.dataclass
class Moments:
  """Moments of the features of each identity, merged batch by batch.

  Attributes:
    count: images of each identity, `[C]`.
    mean: `[C, D]`.
    m2: sum of squared differences from the mean, `[C, D]`.
  """

  count: Array
  mean: Array
  m2: Array


def zeros(num_identities: int, num_features: int) -> Moments:
  """Returns the moments of no images."""
  mean = jnp.zeros((num_identities, num_features), jnp.float32)
  return Moments(jnp.zeros(num_identities, jnp.float32), mean, mean)


def merge(
  moments: Moments, features: Array, labels: Array, valid: Array
) -> Moments:
  """Adds a batch to the moments (pairwise update of Chan et al.).

  Args:
    moments: moments of `C` identities.
    features: `[B, D]`.
    labels: int32 `[B]`.
    valid: bool `[B]`.
  """
  num = moments.count.shape[0]
  # Segment `num` is out of range, so `segment_sum` drops padded rows without
  # reading their values, which may not be finite.
  owners = jnp.where(valid, labels, num)

  def total(values: Array) -> Array:
    return jax.ops.segment_sum(values, owners, num)

  ones = total(valid.astype(jnp.float32))
  each = jnp.maximum(ones, 1.0)[:, None]
  mean = total(features) / each
  # Squares of differences: in float32 a mean of squares minus a squared mean
  # loses its digits where the mean is large.
  gap = features - mean[jnp.minimum(owners, num - 1)]
  m2 = total(gap * gap)
  count = moments.count + ones
  share = (ones / jnp.maximum(count, 1.0))[:, None]
  shift = mean - moments.mean
  between = shift * shift * share * moments.count[:, None]
  return Moments(count, moments.mean + share * shift, moments.m2 + m2 + between)


def statistics(moments: Moments) -> Array:
  """Returns the DFS `[4, D]`: rows m, v, p, q (DFH eq. 3.1)."""
  # Padded identities of the label space have no images.
  seen = (moments.count > 0)[:, None]
  # Multiply by the inverse instead of dividing: XLA makes this change itself
  # on one device but not on several, and the last bit would differ.
  share = 1.0 / jnp.maximum(seen.sum(), 1)

  def mean(values: Array) -> Array:
    return jnp.where(seen, values, 0.0).sum(axis=0) * share

  spread = moments.m2 / jnp.maximum(moments.count, 1.0)[:, None]
  m, p = mean(moments.mean), mean(spread)
  v, q = mean((moments.mean - m) ** 2), mean((spread - p) ** 2)
  return jnp.stack([m, v, p, q])
