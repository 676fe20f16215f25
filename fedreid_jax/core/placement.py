"""Maps a function of one client over the clients of all devices.

`shard_map` runs over a mesh axis `clients`, and on every device `lax.map` runs
over its clients, `width` at a time: with 1 they run one after another, each
with its own number of steps; with 0 all clients of a device are vmapped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from fedreid_jax.core.types import Tree

AXIS = 'clients'


def make_mesh(num_devices: int | None = None) -> Mesh:
  """Returns a mesh of the first `num_devices` (default: all) devices."""
  devices = _first_devices(num_devices)
  return jax.make_mesh(
    (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
  )


def _first_devices(num_devices: int | None) -> Sequence[Any]:
  return jax.devices()[:num_devices]


def over_clients(
  fn: Callable[..., Any], mesh: Mesh, width: int
) -> Callable[..., Any]:
  """Maps a function of one client over the lanes of all devices.

  Args:
    fn: `(replicated, table, one client's trees) -> trees`.
    mesh: devices.
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

  # With check_vma the gradient with respect to a replicated tree is summed over
  # the axis, which would silently mix the clients of different devices.
  return jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(P(), P(AXIS), P(AXIS)),
    out_specs=P(AXIS),
    check_vma=False,
  )
