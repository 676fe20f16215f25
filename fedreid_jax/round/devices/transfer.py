"""Transfers trees of arrays between the host and devices of all processes."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from fedreid_jax.core.types import Tree


def put(tree: Tree, sharding: NamedSharding) -> Any:
  """Puts arrays of the host, which are equal in every process, on devices."""
  # A process has no access to the devices of others: it only puts its shards.

  def one(array: Any) -> jax.Array:
    array = np.asarray(array)
    return jax.make_array_from_callback(
      array.shape, sharding, lambda index: array[index]
    )

  return jax.tree.map(one, tree)


def get(tree: Tree) -> Any:
  """Returns all lanes of sharded arrays, on the host of every process."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def is_here(sharding: NamedSharding, size: int) -> np.ndarray:
  """Returns whether each of `size` lanes is on a device of this process."""
  here = np.zeros(size, bool)
  for index in sharding.addressable_devices_indices_map((size,)).values():
    here[index] = True
  return here


def get_here(tree: Tree) -> Any:
  """Returns sharded arrays on the host; lanes of other processes are zeros."""
  if jax.process_count() == 1:
    return jax.device_get(tree)

  def one(array: jax.Array) -> np.ndarray:
    rows = np.zeros(array.shape, array.dtype)
    for shard in array.addressable_shards:
      rows[shard.index] = shard.data
    return rows

  return jax.tree.map(one, tree)


def copies(tree: Tree, num: int) -> Any:
  """Returns copies of a tree on the host, with a new leading axis of `num`."""

  def stacked(leaf: np.ndarray) -> np.ndarray:
    return np.stack([leaf] * num)

  return jax.tree.map(stacked, tree)
