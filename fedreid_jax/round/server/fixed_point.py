"""Weighted sums over clients in fixed point, which are equal in any order.

Sums of floating-point numbers depend on the order of their terms, so that they
would change with the number of devices. Integers do not. A term `w v`, with
`|v| <= limit` and weights whose absolute values sum to at most 1, is

  x = w v 2^30 / limit,  high = rint(x),  low = rint((x - high) 2^bits),

and both integers are added as int32. The limit is a power of two, so `x` has
the bits of the float32 product `w v`, and `x - high` is exact. The sums cannot
wrap: with K terms `|sum high| <= 2^30 + K/2`, and the choice of `low_bits`
gives `|sum low| <= K 2^(bits-1) <= 2^30`. The rounding of a term is at most
`limit 2^-(31 + bits)`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array

UNIT = 2.0**30


class Sum(NamedTuple):
  """A sum of terms.

  Attributes:
    high: in units of `limit 2^-30`, int32.
    low: remainders in units of `limit 2^-(30 + bits)`, int32.
  """

  high: Array
  low: Array


def low_bits(num_terms: int) -> int:
  """Returns the number of bits of a remainder, for sums of so many terms."""
  return 31 - max(1, (num_terms - 1).bit_length())


def limit(values: Array, headroom: int) -> Array:
  """Returns a power of two above the absolute values, float32.

  Args:
    values: float32, finite.
    headroom: the result is `2^headroom` times the smallest power of two that
      is at least 1 and at least the largest absolute value.
  """
  largest = jnp.abs(values).max(initial=1.0)
  mantissa, exponent = jnp.frexp(largest.astype(jnp.float32))
  exponent = exponent - (mantissa == 0.5) + headroom
  # exp2 of a whole number is not exact on every platform.
  bits = (exponent.astype(jnp.int32) + 127) << 23
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def zero(like: Array) -> Sum:
  """Returns the sum of no terms of a shape."""
  zeros = jnp.zeros(like.shape, jnp.int32)
  return Sum(zeros, zeros)


def add(
  total: Sum, value: Array, weight: Array, limit: Array, bits: int
) -> Sum:
  """Adds a term.

  Args:
    total: sum of the terms so far.
    value: float32, absolute values at most `limit`.
    weight: float32; the absolute values of all weights sum to at most 1.
    limit: a power of two.
    bits: of `low_bits`.
  """
  scaled = weight * value * (UNIT / limit)
  high = jnp.rint(scaled)
  low = jnp.rint((scaled - high) * 2.0**bits)
  return Sum(
    total.high + high.astype(jnp.int32), total.low + low.astype(jnp.int32)
  )


def read(total: Sum, limit: Array, bits: int) -> Array:
  """Returns a sum as float32, with the arguments of `add`."""
  whole = total.high + (total.low >> bits)
  part = total.low & (2**bits - 1)
  value = whole.astype(jnp.float32) + part.astype(jnp.float32) * 2.0**-bits
  return value * (limit / UNIT)
