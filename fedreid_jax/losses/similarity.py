"""Angles between features."""

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array


def unit(x: Array) -> Array:
  """Scales rows `[..., D]` to unit length, in float32; zeros stay zeros."""
  x = x.astype(jnp.float32)
  # A division by `optax.safe_norm` would round differently from `rsqrt`.
  square = (x * x).sum(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def cosine(x: Array, y: Array) -> Array:
  """Cosines `[B]` of rows `[B, D]`, 0 and with a finite gradient at zero."""
  size = jnp.sqrt(jnp.maximum((x * x).sum(-1) * (y * y).sum(-1), 1e-16))
  return (x * y).sum(-1) / size


def pairwise_cosine(x: Array) -> Array:
  """Cosines `[B, B]` of the angles between rows `[B, D]`."""
  x = unit(x)
  # With a scale of 64 in an exponent, the short floats that some accelerators
  # use by default leave no digits.
  return jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
