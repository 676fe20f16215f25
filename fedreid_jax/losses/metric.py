"""Losses on distances between the images of a batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity

# Above any distance, and finite so that differences with it are not nan.
FAR = 1e9


def pairwise_distance(x: Float[Array, 'B D']) -> Float[Array, 'B B']:
  """Returns Euclidean distances between rows, with finite gradients at zero.

  The distance of a row to itself is exactly zero.
  """
  # Distances do not depend on a common mean, but in float32 the squares of a
  # large one leave no digits for them. The first row is subtracted, because
  # padded rows would enter the mean of all rows.
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
  """Returns the batch-hard triplet loss (Hermans et al.; DFH, section 3.2).

  `mean_n [max_{p: y_p = y_n} |f_n - f_p| - min_{q: y_q != y_n} |f_n - f_q|
  + m]_+` with Euclidean distances, neither squared nor normalised. An anchor
  may be its own positive. An anchor without a negative does not count.

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
