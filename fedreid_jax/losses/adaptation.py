"""Losses of clients that adapt to images without labels.

The discrepancy of two sets of features, and softmax triplet losses against
labels and against a teacher (Ge et al., "Mutual mean-teaching", ICLR 2020).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity, metric

KERNELS = 5
# The widths of the kernels are powers of two around the mean distance, so that
# the third of five has this distance.
NARROWEST = 2.0 ** -(KERNELS // 2)


class Hardest(NamedTuple):
  """The hardest pairs of each anchor of a batch.

  Attributes:
    positive: distance to the farthest other image of the anchor's identity.
    negative: distance to the nearest image of another identity.
    images: indices of these two images.
    counts: whether there are both.
  """

  positive: Float[Array, ' B']
  negative: Float[Array, ' B']
  images: tuple[Int[Array, ' B'], Int[Array, ' B']]
  counts: Bool[Array, ' B']


def mmd(
  x: Float[Array, 'B D'],
  y: Float[Array, 'P D'],
  valid_x: Bool[Array, ' B'],
  valid_y: Bool[Array, ' P'],
) -> Float[Array, '']:
  """The squared maximum mean discrepancy of two sets of features.

  `mean k(x, x') + mean k(y, y') - 2 mean k(x, y)` over all pairs, an image with
  itself included, with `k(a, b) = sum_i exp(-|a - b|^2 / (2^i w))`, i = 0..4,
  and `4 w` the mean squared distance of two different rows of both sets, which
  has no gradient. It is 0 if a set has no valid row.
  """
  rows = jnp.concatenate((x, y))
  valid = jnp.concatenate((valid_x, valid_y))
  both = valid[:, None] & valid[None]
  # Padded rows may not be finite.
  rows = jnp.where(valid[:, None], rows, 0.0)
  squared = jnp.where(both, jnp.square(metric.pairwise_distance(rows)), 0.0)
  num = valid.sum()
  mean = squared.sum() / jnp.maximum(num * (num - 1), 1)
  width = jax.lax.stop_gradient(NARROWEST * mean)
  # Rows that are all equal have distances by rounding only.
  width = jnp.where(width > metric.SHORT, width, 1.0)
  kernel = jnp.zeros_like(squared)
  for i in range(KERNELS):
    kernel += jnp.exp(-quotients.divide(squared, 2.0**i * width))
  shares = _even(valid_x), _even(valid_y)
  signed = jnp.concatenate((shares[0], -shares[1]))
  weights = jnp.where(both, signed[:, None] * signed[None], 0.0)
  some = valid_x.any() & valid_y.any()
  return jnp.where(some, (weights * kernel).sum(), 0.0)


def _even(valid: Bool[Array, ' B']) -> Float[Array, ' B']:
  """Equal shares of the valid rows, whose sum is 1."""
  one = valid.astype(jnp.float32)
  return quotients.divide(one, jnp.maximum(one.sum(), 1.0))


def softmax_triplet(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
) -> Float[Array, '']:
  """The mean of `log(1 + exp(d+ - d-))` over the hardest pairs.

  It is the cross-entropy of softmax(d+, d-) with all weight on d-. Distances
  are Euclidean. An anchor without a positive or a negative does not count.
  """
  hardest = hardest_pairs(features, labels, valid)
  gap = hardest.positive - hardest.negative
  return identity.masked_mean(jax.nn.softplus(gap), hardest.counts)


def soft_softmax_triplet(
  features: Float[Array, 'B D'],
  teacher: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
) -> Float[Array, '']:
  """The cross-entropy of softmax(d+, d-) with that of a teacher.

  The pairs are the hardest of `features`; the teacher's distances of the same
  pairs have no gradient.
  """
  hardest = hardest_pairs(features, labels, valid)
  gap = hardest.positive - hardest.negative
  teacher = jnp.where(valid[:, None], jax.lax.stop_gradient(teacher), 0.0)
  distance = metric.pairwise_distance(teacher)
  far, near = (
    jnp.take_along_axis(distance, found[:, None], axis=1)[:, 0]
    for found in hardest.images
  )
  share = jax.nn.sigmoid(far - near)
  each = share * jax.nn.softplus(-gap) + (1 - share) * jax.nn.softplus(gap)
  return identity.masked_mean(each, hardest.counts)


def hardest_pairs(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
) -> Hardest:
  """Returns the hardest pairs; distances are 0 if an anchor does not count."""
  features = jnp.where(valid[:, None], features, 0.0)
  distance = metric.pairwise_distance(features)
  real = valid[:, None] & valid[None]
  same = labels[:, None] == labels[None]
  positives = same & real & ~jnp.eye(len(labels), dtype=bool)
  negatives = ~same & real
  counts = positives.any(axis=1) & negatives.any(axis=1)
  far = jnp.where(positives, distance, -1.0)
  near = jnp.where(negatives, distance, metric.FAR)
  return Hardest(
    jnp.where(counts, far.max(axis=1), 0.0),
    jnp.where(counts, near.min(axis=1), 0.0),
    (far.argmax(axis=1), near.argmin(axis=1)),
    counts,
  )
