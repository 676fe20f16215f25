"""Operations on every leaf of a tree: zeros, rows, choice and difference."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array, Leaf, Tree

_T = TypeVar('_T')


def zeros(shapes: Tree) -> Any:
  """Returns zeros with the shapes and types of arrays or of `eval_shape`."""

  def zero(leaf: Leaf) -> Array:
    return jnp.zeros(leaf.shape, leaf.dtype)

  return jax.tree.map(zero, shapes)


def num_bytes(tree: Tree) -> int:
  """Returns the bytes of all arrays, or of `eval_shape`."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def rows(tree: _T, index: Leaf) -> _T:
  """Returns the rows of every array at an index of the leading axis."""

  def chosen(leaf: Leaf) -> Leaf:
    return leaf[index]

  return jax.tree.map(chosen, tree)


def select(condition: Array, new: _T, old: _T) -> _T:
  """Returns `new` where the condition holds and `old` elsewhere.

  Args:
    condition: bool, is broadcast to every array.
    new: tree of arrays.
    old: tree of the same structure.
  """

  def one(new: Array, old: Array) -> Array:
    # A product with the condition would keep nan and infinity of the other.
    return jnp.where(condition, new, old)

  return jax.tree.map(one, new, old)


def subtract(a: _T, b: _T) -> _T:
  """Returns `a - b` for the arrays of two trees of the same structure."""
  return jax.tree.map(jnp.subtract, a, b)
