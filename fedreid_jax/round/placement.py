"""Maps a function of one client over the clients of all devices.

`shard_map` runs over a mesh axis `clients`, and on every device `lax.map` runs
over its clients, `width` at a time. With a width of 1 the clients run one after
another, each with its number of steps; with 0 all clients of a device are
vmapped. Trees of arrays are transferred between the host and the devices of all
processes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Tree

AXIS = 'clients'


def is_described(mesh: Any) -> bool:
  """Returns whether the devices of a mesh are a description, without memory.

  Programs can be compiled for them (`jax.experimental.topologies`) and not run.
  """
  return mesh.devices.flat[0] not in jax.devices()


def put(tree: Tree, sharding: NamedSharding) -> Any:
  """Puts arrays of the host, which are equal in every process, on devices.

  Returns shapes for devices that are only described.
  """
  if is_described(sharding.mesh):
    return shapes(tree, sharding)
  # A process has no access to the devices of others: it only puts its shards.

  def one(array: Any) -> jax.Array:
    array = np.asarray(array)
    return jax.make_array_from_callback(
      array.shape, sharding, lambda index: array[index]
    )

  return jax.tree.map(one, tree)


def shapes(tree: Tree, sharding: NamedSharding) -> Any:
  """Returns the shapes of arrays with a sharding."""
  return jax.tree.map(functools.partial(described, sharding=sharding), tree)


def are_shapes(tree: Any) -> bool:
  """Returns whether a tree has shapes in place of arrays."""
  leaves = jax.tree.leaves(tree)
  return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def described(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
  """Returns the shape of an array with a sharding."""
  leaf = leaf if hasattr(leaf, 'dtype') else np.asarray(leaf)
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


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


def make_mesh(
  num_devices: int | None = None, devices: Sequence[Any] = ()
) -> Mesh:
  """Returns a mesh of the first `num_devices` (default: all) devices.

  Without `devices` those of this machine are used.
  """
  kinds = (AxisType.Auto,)
  if devices:
    # A part of a pod that is described has no order of its own.
    chosen = np.asarray(devices[:num_devices])
    return Mesh(chosen, (AXIS,), axis_types=kinds)
  here = jax.devices()[:num_devices]
  return jax.make_mesh((len(here),), (AXIS,), axis_types=kinds, devices=here)


def divided_axis(shape: Sequence[int], devices: int) -> int | None:
  """Returns the axis along which devices have parts of an array, or None.

  It is the longest one, unless it is shorter than the number of devices.
  """
  if max(shape, default=0) < devices:
    return None
  return int(np.argmax(shape))


def part_bytes(leaves: Tree, devices: int) -> int:
  """Returns the bytes of the largest part of arrays that are divided."""

  def one(leaf: Any) -> int:
    size = leaf.size * leaf.dtype.itemsize
    axis = divided_axis(leaf.shape, devices)
    if axis is None:
      return size
    length = leaf.shape[axis]
    return size // length * -(-length // devices)

  return sum(map(one, jax.tree.leaves(leaves)))


def over_clients(
  fn: Callable[..., Any], mesh: Mesh, width: int
) -> Callable[..., Any]:
  """Returns the map of a function of one client over the lanes of all devices.

  Args:
    fn: `(replicated, table, one client's trees) -> trees`.
    width: number of clients that are vmapped at a time; 1 uses no vmap, 0 all
      clients of a device.

  Returns:
    `(replicated, table [devices * rows, ...], trees [lanes, ...]) -> trees`.
  """

  def on_device(replicated: Tree, table: Tree, clients: Tree) -> Tree:
    one = functools.partial(fn, replicated, table)
    if width == 1:
      return jax.lax.map(one, clients)
    if width == 0:
      return jax.vmap(one)(clients)
    return jax.lax.map(one, clients, batch_size=width)

  return _on_devices(on_device, mesh, P(AXIS))


class Carried(NamedTuple):
  """A fold with a carry through the loop over the clients of a device.

  Attributes:
    zeros: `(replicated, shapes of a first result) -> carry`.
    add: `(replicated, carry, first result) -> (carry, trees to keep)`.
  """

  zeros: Callable[..., Tree]
  add: Callable[..., tuple[Tree, Tree]]


def fold_clients(
  fn: Callable[..., Any], carried: Carried, mesh: Mesh, width: int
) -> Callable[..., Any]:
  """Returns the fold of the results of a function of one client over lanes.

  Args:
    fn: `(replicated, table, one client's trees) -> (result, trees)`; the result
      is folded and not stacked.
    width: number of clients that are vmapped at a time, as in `over_clients`.

  Returns:
    `(replicated, table [devices * rows, ...], trees [lanes, ...]) -> (carries
    [devices, ...], (trees to keep [lanes, ...], trees [lanes, ...]))`.
  """

  def on_device(
    replicated: Tree, table: Tree, clients: Tree
  ) -> tuple[Tree, tuple[Tree, Tree]]:
    one = functools.partial(fn, replicated, table)

    def add(carry: Tree, results: tuple[Tree, Tree]) -> tuple[Tree, Any]:
      result, rest = results
      carry, kept = carried.add(replicated, carry, result)
      return carry, (kept, rest)

    def step(carry: Tree, client: Tree) -> tuple[Tree, Any]:
      return add(carry, one(client))

    def together(carry: Tree, group: Tree) -> tuple[Tree, Any]:
      # Clients are vmapped, and their results are added in order.
      return jax.lax.scan(add, carry, jax.vmap(one)(group))

    first = jax.eval_shape(one, trees.rows(clients, 0))[0]
    carry = carried.zeros(replicated, first)
    if width == 1:
      carry, found = jax.lax.scan(step, carry, clients)
    else:
      carry, found = _in_groups(together, carry, clients, width)
    return jax.tree.map(lambda leaf: leaf[None], carry), found

  return _on_devices(on_device, mesh, P(AXIS))


def over_devices(fn: Callable[[Tree, str], Tree], mesh: Mesh) -> Any:
  """Returns `carries [devices, ...] -> carry` of a sum over devices.

  Args:
    fn: `(carry of a device, name of the mesh axis) -> carry` of all devices.
  """

  def on_device(carries: Tree) -> Tree:
    return fn(trees.rows(carries, 0), AXIS)

  return jax.shard_map(
    on_device, mesh=mesh, in_specs=P(AXIS), out_specs=P(), check_vma=False
  )


def _in_groups(
  together: Callable[..., Any], carry: Tree, clients: Tree, width: int
) -> Any:
  """Scans groups of `width` clients, 0 for all; the last may be smaller."""
  lanes = jax.tree.leaves(clients)[0].shape[0]
  width = min(width or lanes, lanes)
  whole = lanes - lanes % width

  def grouped(leaf: Array) -> Array:
    return leaf[:whole].reshape(-1, width, *leaf.shape[1:])

  def flat(leaf: Array) -> Array:
    return leaf.reshape(-1, *leaf.shape[2:])

  groups = jax.tree.map(grouped, clients)
  carry, found = jax.lax.scan(together, carry, groups)
  found = jax.tree.map(flat, found)
  if whole == lanes:
    return carry, found
  carry, last = together(carry, trees.rows(clients, slice(whole, None)))
  return carry, jax.tree.map(lambda *x: jnp.concatenate(x), found, last)


def _on_devices(
  on_device: Callable[..., Any], mesh: Mesh, out_specs: Any
) -> Callable[..., Any]:
  # With check_vma the gradient with respect to a replicated tree is summed over
  # the axis, which would silently mix the clients of different devices.
  return jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(P(), P(AXIS), P(AXIS)),
    out_specs=out_specs,
    check_vma=False,
  )
