"""Triplet loss without a margin over softly weighted images of a batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity, metric

# The exponential of a larger number overflows in float32.
LARGEST = 88.0


def _soft_mean(
  distance: Float[Array, 'B B'], chosen: Bool[Array, 'B B'], sign: float
) -> Float[Array, ' B']:
  """Returns means of distances with the weights `softmax(sign * distance)`."""
  # The public code adds 1e-6 to a sum of exponentials that are not shifted, so
  # that the weights of negatives vanish at distances above some 15.
  weights = jax.nn.softmax(
    jnp.where(chosen, sign * distance, -metric.FAR), axis=1
  )
  return jnp.where(chosen, weights * distance, 0.0).sum(axis=1)


def weighted_triplet(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  squared: bool = False,
) -> Float[Array, '']:
  """Returns the weighted regularisation triplet loss.

  `mean_i log(1 + exp(d+ - d-))` (Ye et al., "Deep learning for person
  re-identification: a survey and outlook", AGW). `d+` is the mean distance to
  the images of the anchor's identity, the anchor included, with weights
  softmax(d); `d-` is the mean distance to the others with weights softmax(-d).
  Distances are Euclidean, neither squared nor normalised. An anchor without a
  negative in the batch does not count.

  Args:
    features: one row per image.
    labels: identities.
    valid: real rows.
    squared: with `g = d+ - d-`, take `log(1 + exp(sign(g) min(g^2, 88)))` (Ye
      et al., "Channel augmented joint learning for visible-infrared
      recognition").
  """
  distance = metric.pairwise_distance(features)
  real = valid[:, None] & valid[None]
  same = labels[:, None] == labels[None]
  negative = ~same & real
  gap = _soft_mean(distance, same & real, 1.0)
  gap = gap - _soft_mean(distance, negative, -1.0)
  if squared:
    sign = jnp.where(gap > 0, 1.0, -1.0)
    gap = sign * jnp.minimum(gap * gap, LARGEST)
  return identity.masked_mean(jax.nn.softplus(gap), negative.any(axis=1))
