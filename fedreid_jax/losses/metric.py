"""Losses on distances between the images of a batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity

FAR = 1e9


def pairwise_distance(x: Float[Array, 'B D']) -> Float[Array, 'B B']:
  """Euclidean distances between rows, gradients finite at zero.

  The first row is subtracted from all: distances do not depend on a common
  mean, but in float32 the squares of a large one leave no digits for them. The
  mean of the rows would serve as well, but padded rows would enter it. The
  distance of a row to itself is exactly zero.
  """
  x = x - jax.lax.stop_gradient(x[:1])
  square = (x * x).sum(axis=1)
  # Squares of nearly equal size cancel, so the product must not be rounded to
  # the short floats that some accelerators use by default.
  products = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
  squared = square[:, None] + square[None] - 2.0 * products
  # `optax.safe_norm` would need all differences, `[B, B, D]`.
  distance = jnp.sqrt(jnp.maximum(squared, 1e-12))
  return jnp.where(jnp.eye(len(x), dtype=bool), 0.0, distance)


def hard_triplet(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  margin: Number,
) -> Float[Array, '']:
  """Batch-hard triplet loss (Hermans et al.; DFH, section 3.2).

  `mean_n [max_{p: y_p = y_n} |f_n - f_p| - min_{q: y_q != y_n} |f_n - f_q|
  + m]_+`, Euclidean, neither squared nor normalised. The anchor may be its own
  positive. Anchors without a negative in the batch do not count.

  Args:
    features: one row per image.
    labels: identities.
    valid: real rows.
    margin: `m`.
  """
  distance = pairwise_distance(features)
  same = labels[:, None] == labels[None]
  real = valid[None] & valid[:, None]
  positive = jnp.where(same & real, distance, 0.0).max(axis=1)
  negative = jnp.where(~same & real, distance, FAR).min(axis=1)
  counts = valid & (~same & real).any(axis=1)
  hinge = jnp.maximum(positive - jnp.where(counts, negative, 0.0) + margin, 0.0)
  return identity.masked_mean(hinge, counts)
