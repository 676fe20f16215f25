"""Unit vectors and cosines of features."""

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
  """Returns cosines of pairs of rows; the cosine with a row of zeros is 0."""
  # The quotient of sums, unlike a sum of products of unit vectors, is 1 exactly
  # for equal rows.
  x, y = _near_one(x), _near_one(y)
  # The floor keeps the gradient at zero finite.
  size = jnp.sqrt(jnp.maximum((x * x).sum(-1) * (y * y).sum(-1), 1e-16))
  return (x * y).sum(-1) / size


def _near_one(x: Float[Array, 'B D']) -> Float[Array, 'B D']:
  # Squares of squares overflow above 1e9 and vanish below 1e-9. A power of two
  # changes no digit, and the cosine does not depend on it.
  _, exponent = jnp.frexp(jnp.abs(x).max(axis=-1, keepdims=True))
  return x * jnp.ldexp(jnp.ones((), x.dtype), -jnp.clip(exponent, -126, 126))


def pairwise_cosine(x: Float[Array, 'B D']) -> Float32[Array, 'B B']:
  """Returns the cosines between all rows."""
  x = unit(x)
  # With a scale of 64 in an exponent, the short floats that some accelerators
  # use by default leave no digits.
  return jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
