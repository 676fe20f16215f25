"""Trees of arrays between the host and the devices of all processes."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from fedreid_jax.core.types import Tree


def put(tree: Tree, sharding: NamedSharding) -> Any:
  """Puts arrays of the host, equal on every process, on devices."""

  def one(array: Any) -> jax.Array:
    array = np.asarray(array)
    return jax.make_array_from_callback(
      array.shape, sharding, lambda index: array[index]
    )

  return jax.tree.map(one, tree)


def get(tree: Tree) -> Any:
  """Returns arrays sharded over lanes completely on every process."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def copies(tree: Tree, num: int) -> Any:
  """Returns copies of a tree on the host along a new leading axis."""

  def stacked(leaf: np.ndarray) -> np.ndarray:
    return np.stack([leaf] * num)

  return jax.tree.map(stacked, tree)


def keep(
  states: Tree, rows: Tree, lanes: np.ndarray, valid: np.ndarray
) -> None:
  """Writes the new rows of valid clients into the states on the host.

  Args:
    states: states of all clients, `[N, ...]`, updated in place.
    rows: states of the clients of the lanes.
    lanes: client of each lane, -1 if empty.
    valid: whether each lane has a row to keep, bool.
  """

  def write(old: np.ndarray, new: np.ndarray) -> None:
    old[lanes[valid]] = new[valid]

  jax.tree.map(write, states, rows)
