"""Angles between features."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Float32

from fedreid_jax.core.types import Array


def unit(x: Float[Array, '*rows D']) -> Float32[Array, '*rows D']:
  """Scales rows to unit length, in float32; zeros stay zeros."""
  x = x.astype(jnp.float32)
  # A division by `optax.safe_norm` would round differently from `rsqrt`.
  square = (x * x).sum(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def cosine(
  x: Float[Array, 'B D'], y: Float[Array, 'B D']
) -> Float[Array, ' B']:
  """Cosines of pairs of rows, 0 and with a finite gradient at zero."""
  size = jnp.sqrt(jnp.maximum((x * x).sum(-1) * (y * y).sum(-1), 1e-16))
  return (x * y).sum(-1) / size


def pairwise_cosine(x: Float[Array, 'B D']) -> Float32[Array, 'B B']:
  """Cosines of the angles between rows."""
  x = unit(x)
  # With a scale of 64 in an exponent, the short floats that some accelerators
  # use by default leave no digits.
  return jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
