"""Sums of weighted arrays over clients: float32, or exact in fixed point."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array, Tree
from fedreid_jax.round.server import fixed_point

# Below every exponent of a weight. It is finite, because the difference of two
# infinite numbers is not a number.
LOWEST = -1e30


class Arithmetic(NamedTuple):
  """How weighted arrays are added.

  Attributes:
    exact: whether sums are in fixed point.
    bits: of the remainders in fixed point, `fixed_point.low_bits`.
    largest: a power of two that the sum of absolute weights does not exceed.
  """

  exact: bool
  bits: int
  largest: float

  def zero(self, like: Array) -> Any:
    """Returns the sum of no arrays of a shape."""
    if self.exact:
      return fixed_point.zero(like)
    return jnp.zeros(like.shape, jnp.float32)

  def add(self, total: Any, value: Array, weight: Array, limit: Array) -> Any:
    """Returns `total + weight value`; a weight that is not finite counts as 0.

    Args:
      total: sum so far.
      value: float32, of the shape of the sum.
      weight: float32.
      limit: power of two, in fixed point above the absolute values.
    """
    usable = jnp.isfinite(weight)
    if not self.exact:
      return total + jnp.where(usable, weight, 0.0) * value
    usable &= jnp.abs(weight) <= self.largest
    share = jnp.where(usable, weight, 0.0) / self.largest
    return fixed_point.add(total, value, share, limit, self.bits)

  def merge(self, totals: Tree, axis: str) -> Tree:
    """Returns sums over the devices along a mesh axis."""
    return jax.lax.psum(totals, axis)

  def read(self, totals: Tree, limit: Array) -> Any:
    """Returns the float32 arrays of sums with one limit."""
    if not self.exact:
      return totals

    def one(total: fixed_point.Sum) -> Array:
      return self.largest * fixed_point.read(total, limit, self.bits)

    return jax.tree.map(
      one, totals, is_leaf=lambda x: isinstance(x, fixed_point.Sum)
    )


def make(exact: bool, num_terms: int, bound: float) -> Arithmetic:
  """Returns the arithmetic of sums of so many terms.

  Args:
    exact: whether sums are in fixed point.
    num_terms: largest number of terms.
    bound: limit of the sum of absolute weights, above 0.
  """
  mantissa, exponent = math.frexp(bound)
  largest = 2.0 ** (exponent - (mantissa == 0.5))
  return Arithmetic(exact, fixed_point.low_bits(num_terms), largest)


def pick(tree: Tree, chosen: Array, axis: str) -> Tree:
  """Returns the float32 arrays of the one chosen device along a mesh axis.

  Args:
    tree: arrays of this device.
    chosen: whether this device is chosen, bool; zeros if none is.
    axis: name of the mesh axis.
  """

  def one(value: Array) -> Array:
    # The sum of bits: 0.0 + -0.0 would lose the sign.
    value = value.astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(value, jnp.int32)
    total = jnp.asarray(jax.lax.psum(jnp.where(chosen, bits, 0), axis))
    return jax.lax.bitcast_convert_type(total, jnp.float32)

  return jax.tree.map(one, tree)
