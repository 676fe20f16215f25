"""Weighted sums over clients: in float32, or in fixed point.

Sums of floating-point numbers depend on the order of their terms, so that they
would change with the number of devices. Integers do not. A term `w v`, with
`|v| <= limit` and weights whose absolute values sum to at most 1, is

  x = w v 2^30 / limit,  high = rint(x),  low = rint((x - high) 2^bits),

and both integers are added as int32. The rounding of a term is at most
`limit 2^-(31 + bits)`.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Tree
from fedreid_jax.method.sums import (
  HEADROOM,
  HEADROOM_STATISTICS,
  Bound,
  Term,
)

UNIT = 2.0**30


class Sum(NamedTuple):
  """A sum of terms in fixed point.

  Attributes:
    high: sum of the rounded terms, in units of `limit 2^-30`, int32.
    low: sum of the remainders, in units of `limit 2^-(30 + bits)`, int32.
  """

  high: Array
  low: Array


def low_bits(num_terms: int) -> int:
  """Returns the number of bits of a remainder, for sums of so many terms."""
  # Remainders cannot wrap: `|sum low| <= K 2^(bits - 1) <= 2^30` with K terms.
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
  # A power of two has the mantissa 0.5, and is its own limit.
  exponent = exponent - (mantissa == 0.5) + headroom
  # The bits of a float32, as exp2 of integers is not exact on every platform.
  bits = (exponent.astype(jnp.int32) + 127) << 23
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def zero(like: Array) -> Sum:
  """Returns the sum of no terms, in the shape of an array."""
  zeros = jnp.zeros(like.shape, jnp.int32)
  return Sum(zeros, zeros)


def add(
  total: Sum, value: Array, weight: Array, limit: Array, bits: int
) -> Sum:
  """Adds a term.

  Args:
    value: values, float32, of at most `limit` in absolute value.
    weight: float32; the absolute values of all weights sum to at most 1.
    limit: a power of two.
    bits: result of `low_bits`.
  """
  # As the limit is a power of two, `scaled` has the bits of `weight * value`,
  # and `scaled - high` is exact. `|sum high| <= 2^30 + K/2` cannot wrap.
  scaled = weight * value * (UNIT / limit)
  high = jnp.rint(scaled)
  low = jnp.rint((scaled - high) * 2.0**bits)
  return Sum(
    total.high + high.astype(jnp.int32), total.low + low.astype(jnp.int32)
  )


def read(total: Sum, limit: Array, bits: int) -> Array:
  """Returns a sum as float32; `limit` and `bits` are those of `add`."""
  whole = total.high + (total.low >> bits)
  part = total.low & (2**bits - 1)
  value = whole.astype(jnp.float32) + part.astype(jnp.float32) * 2.0**-bits
  return value * (limit / UNIT)


class Float32(NamedTuple):
  """Sums in float32, whose bits depend on the order of the clients."""

  sees_weights = True

  def unit(self, bound: Bound) -> float:
    """Returns 1: weights need no unit, by which they would be divided."""
    del bound
    return 1.0

  def limit(self, name: str, value: Array) -> Array:
    """Returns infinity: the change of a parameter has no limit."""
    del name, value
    return jnp.float32(jnp.inf)

  def in_range(self, term: Term, limit: Array) -> Array:
    """Returns true: every term can be added."""
    del term, limit
    return jnp.bool_(True)

  def zero(self, term: Term) -> Array:
    """Returns the sum of no terms, in the shape of the values of a term."""
    return jnp.zeros(term.values.shape, jnp.float32)

  def add(self, total: Array, term: Term, limit: Array) -> Array:
    """Adds a term; a weight that is not finite counts as 0."""
    del limit
    weight = jnp.where(jnp.isfinite(term.weight), term.weight, 0.0)
    return total + weight * term.values

  def read(self, total: Array, limit: Array) -> Array:
    """Returns a sum, which is float32."""
    del limit
    return total


class FixedPoint(NamedTuple):
  """Sums with the same bits in any order of the clients.

  Attributes:
    sizes: numbers of images of the K largest clients.
  """

  sizes: tuple[float, ...]
  sees_weights = True

  def unit(self, bound: Bound) -> float:
    """Returns the least power of two that bounds the weights of K clients."""
    mantissa, exponent = math.frexp(bound(np.array(self.sizes)))
    return 2.0 ** (exponent - (mantissa == 0.5))

  def limit(self, name: str, value: Array) -> Array:
    """Returns the limit of the change of a parameter or running statistic."""
    params, _ = trees.trainable({name: value})
    return limit(value, HEADROOM if params else HEADROOM_STATISTICS)

  def in_range(self, term: Term, limit: Array) -> Array:
    """Returns whether the values of a term are within their limit, bool."""
    return (jnp.abs(term.values) <= limit).all()

  def zero(self, term: Term) -> Sum:
    """Returns the sum of no terms, in the shape of the values of a term."""
    return zero(term.values)

  def add(self, total: Sum, term: Term, limit: Array) -> Sum:
    """Adds a term; a weight that is not finite or too large counts as 0."""
    # False for nan. `Fold.mean` reacts to such weights; here they only must not
    # wrap the sums.
    usable = jnp.abs(term.weight) <= 1.0
    weight = jnp.where(usable, term.weight, 0.0)
    return add(total, term.values, weight, limit, self._bits())

  def read(self, total: Sum, limit: Array) -> Array:
    """Returns a sum in fixed point as float32."""
    return read(total, limit, self._bits())

  def _bits(self) -> int:
    return low_bits(len(self.sizes))


def is_sum(leaf: Any) -> bool:
  """Returns whether a node of a tree is a sum in fixed point."""
  return isinstance(leaf, Sum)


def pick(tree: Tree, chosen: Array, axis: str) -> Tree:
  """Returns the float32 arrays of the one chosen device along a mesh axis.

  Args:
    tree: arrays of this device.
    chosen: whether this device is chosen, bool; zeros if none is.
  """

  def one(value: Array) -> Array:
    # A sum of bit patterns, because 0.0 + -0.0 would lose the sign.
    value = value.astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(value, jnp.int32)
    total = jnp.asarray(jax.lax.psum(jnp.where(chosen, bits, 0), axis))
    return jax.lax.bitcast_convert_type(total, jnp.float32)

  return jax.tree.map(one, tree)
