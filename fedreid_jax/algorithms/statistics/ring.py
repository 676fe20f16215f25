"""Real numbers as integers modulo 2^b, whose sums are exact in any order.

A value v with |v| <= B is the integer x = rint(s v), stored modulo 2^b. The sum
of K such integers stays between -2^(b-1) and 2^(b-1), so that the sum modulo
2^b is the sum W of the integers, and W / s has an error of at most K / (2 s),
or K / s with fewer than 24 bits, where x is rounded at random without bias.
Reading W as float32, which has 24 bits, adds an error of 2^-24 |W| / s, which
is larger than K / (2 s) where |W| > 2^23 K.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core.types import Array

# With this many bits or more, a value is rounded to the nearest integer. With
# fewer, steps are coarse, and only a random rounding has no bias in the mean.
NEAREST = 24


def scale(bound: float, num_terms: int, bits: int) -> float:
  """Returns s, the largest power of two without overflow.

  Args:
    bound: B, rounded to float32.
    num_terms: K.
    bits: b, 16 to 32.
  """
  bound = float(np.float32(bound))
  # Each term may be rounded up, so its rounding counts in the sum.
  most = (2 ** (bits - 1) - 1) / num_terms - rounding(bits)
  # A power of two, because a product with it changes no digit in float32. At
  # most 2^(b-2) keeps a single value within int32.
  _, exponent = math.frexp(min(most, 2.0 ** (bits - 2)) / bound)
  return 2.0 ** (exponent - 1)


def rounding(bits: int) -> float:
  """Returns the largest |x - s v| of a value v and its integer x."""
  return 0.5 if bits >= NEAREST else 1.0


def encode(
  values: Array, scale_: float, bits: int, key: Array | None = None
) -> Array:
  """Returns integers modulo 2^b, uint32 of the shape of the values.

  Args:
    values: float32, absolute values at most the bound of `scale`.
    scale_: s of `scale`.
    bits: b.
    key: PRNG key of the random rounding, None to round to the nearest integer.
  """
  scaled = values * jnp.float32(scale_)
  if key is None:
    whole = jnp.rint(scaled)
  else:
    whole = jnp.floor(scaled)
    drawn = jax.random.uniform(key, values.shape)
    whole += (drawn < scaled - whole).astype(jnp.float32)
  return wrap(unsigned(whole.astype(jnp.int32)), bits)


def decode(total: Array, scale_: float, bits: int) -> Array:
  """Returns the values of a sum of `encode`, float32.

  Args:
    total: sum modulo 2^b, uint32.
    scale_: s of `scale`.
    bits: b.
  """
  return whole(total, bits).astype(jnp.float32) / jnp.float32(scale_)


def whole(total: Array, bits: int) -> Array:
  """Returns the integer of a sum modulo 2^b, int32."""
  # The sign is the bit b - 1; the shift back to the right copies it.
  spare = 32 - bits
  raised = jax.lax.bitcast_convert_type(total << spare, jnp.int32)
  return raised >> spare


def unsigned(values: Array) -> Array:
  """Reinterprets int32 as uint32, that is modulo 2^32."""
  return jax.lax.bitcast_convert_type(values, jnp.uint32)


def wrap(values: Array, bits: int) -> Array:
  """Returns uint32 modulo 2^b."""
  return values & jnp.uint32(2**bits - 1)
