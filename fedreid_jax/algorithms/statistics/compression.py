"""Compressed updates: random rounding to few levels, and the largest values.

The simulation keeps the values in float32. The functions `*_bytes` compute the
length of the message that would be sent.
"""

import math

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array, Flat

SCALE = 4  # bytes of the float32 that goes with the codes of a leaf
VALUE = 4  # bytes of a float32, or of an index


def levels(bits: int) -> int:
  """Returns the largest code, one bit of which is its sign."""
  return 2 ** (bits - 1) - 1


def rounded(key: Array, values: Array, bits: int, by_norm: bool) -> Array:
  """Rounds values at random to a few levels, without bias.

  Args:
    key: PRNG key of the leaf, client and round.
    values: values of one leaf.
    bits: bits of a code.
    by_norm: whether the scale is the Euclidean norm (QSGD) or the largest
      magnitude.
  """
  most = levels(bits)
  size = jnp.abs(values)
  scale = size.max()
  if by_norm:
    # A square overflows from 1e19; a power of two changes no digit.
    _, exponent = jnp.frexp(scale)
    near_one = jnp.ldexp(values, -exponent)
    scale = jnp.ldexp(jnp.sqrt((near_one**2).sum()), exponent)
  # A leaf of zeros must not become 0 / 0.
  unit = jnp.where(scale == 0, 1.0, scale)
  codes = jnp.floor(size / unit * most + jax.random.uniform(key, values.shape))
  # The sum of the largest code and of almost one may round to the next code.
  return jnp.sign(values) * jnp.minimum(codes, most) * (scale / most)


def rounded_bytes(sizes: list[int], bits: int) -> int:
  """Returns the bytes of the codes and the scales of leaves of these sizes."""
  return sum(math.ceil(bits * size / 8) + SCALE for size in sizes)


def number_kept(size: int, ratio: float) -> int:
  """Returns how many of `size` values are sent, at least one."""
  # Without the margin the rounding of the product, 0.07 * 100 =
  # 7.000000000000001, would send one value more.
  return max(1, math.ceil(ratio * size - 1e-9))


def largest(leaves: Flat, ratio: float) -> Flat:
  """Keeps the values of largest magnitude over all leaves, and zeros the rest.

  Among equal magnitudes the first are kept, in the order of the names.

  Args:
    leaves: arrays by name.
    ratio: fraction of all values that is kept.
  """
  # A fixed order, because the first of equal magnitudes are kept.
  names = sorted(leaves)
  flat = jnp.concatenate([leaves[name].reshape(-1) for name in names])
  _, kept = jax.lax.top_k(jnp.abs(flat), number_kept(flat.size, ratio))
  sent = jnp.zeros_like(flat).at[kept].set(flat[kept])
  found: Flat = {}
  for name in names:
    part, sent = sent[: leaves[name].size], sent[leaves[name].size :]
    found[name] = part.reshape(leaves[name].shape)
  return found


def largest_bytes(size: int, ratio: float) -> int:
  """Returns the bytes of the kept values and of their positions.

  Positions are indices, or one bit for each value if that is shorter.
  """
  kept = number_kept(size, ratio)
  return VALUE * kept + min(VALUE * kept, math.ceil(size / 8))
