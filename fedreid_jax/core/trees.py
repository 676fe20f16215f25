"""Operations on trees of arrays, and on flat dicts of variables."""

import hashlib
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedreid_jax.core import patterns
from fedreid_jax.core.types import Array, Flat, Leaf, Tree

_T = TypeVar('_T')


def flatten(tree: Tree) -> Flat:
  """Returns a nested dict of variables as one like `{'params/a/b': leaf}`."""
  return traverse_util.flatten_dict(tree, sep='/')


def unflatten(flat: Flat) -> Tree:
  """Returns a flat dict of variables as the nested dict that Flax uses."""
  return traverse_util.unflatten_dict(flat, sep='/')


def split(flat: Flat, pattern: str) -> tuple[Flat, Flat]:
  """Returns (entries whose name starts with a match, all other entries)."""
  matches = patterns.Pattern(pattern, 'shared').match
  chosen = {name: leaf for name, leaf in flat.items() if matches(name)}
  return chosen, {n: leaf for n, leaf in flat.items() if n not in chosen}


def trainable(flat: Flat) -> tuple[Flat, Flat]:
  """Returns (parameters, running statistics)."""
  return split(flat, 'params/')


def digest(flat: Flat) -> str:
  """Returns the SHA-256 of names, types, shapes and bits, as hexadecimal."""
  found = hashlib.sha256()
  # Sorted, so that the digest does not depend on the order of the dict.
  for name, value in sorted(flat.items()):
    value = np.asarray(value)
    found.update(f'{name} {value.dtype} {value.shape}\n'.encode())
    found.update(value.tobytes())
  return found.hexdigest()


def zeros(shapes: Tree) -> Any:
  """Returns zeros with the shapes and types of arrays or of `eval_shape`."""

  def zero(leaf: Leaf) -> Array:
    return jnp.zeros(leaf.shape, leaf.dtype)

  return jax.tree.map(zero, shapes)


def all_finite(tree: Tree) -> Array:
  """Returns whether all numbers of all arrays are finite, bool."""
  return all_true(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def all_true(flags: Iterable[Array]) -> Array:
  """Returns whether all of any number of scalars are true, bool."""
  # XLA would make a chain of `and` of it and copy all of the chain into each
  # operation that uses the result: for a model of 200 arrays half of the time
  # of compilation.
  stacked = jnp.stack([jnp.bool_(True), *flags])
  return jax.lax.optimization_barrier(stacked).all()


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
    old: tree of the same structure.
  """

  def one(new: Array, old: Array) -> Array:
    # A product with the condition would keep nan and infinity of the other.
    return jnp.where(condition, new, old)

  return jax.tree.map(one, new, old)


def subtract(a: _T, b: _T) -> _T:
  """Returns `a - b` for the arrays of two trees of the same structure."""
  return jax.tree.map(jnp.subtract, a, b)
