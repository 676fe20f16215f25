"""One client's functions over the clients of all devices, compiled.

`shard_map` over a mesh axis `clients`, and on every device `lax.map` over its
clients, `width` at a time: 1 runs them one after another, each with its own
number of steps; 0 vmaps all of a device's.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import types
from fedreid_jax.core.compose import Algorithm

AXIS = 'clients'


def make_mesh(num_devices: int | None = None) -> Mesh:
  """Returns a mesh of the first `num_devices` (default: all) devices."""
  devices = jax.devices()[:num_devices]
  return jax.make_mesh(
    (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
  )


def over_clients(fn: Callable, mesh: Mesh, width: int) -> Callable:
  """Maps a function of one client over the places of all devices.

  Args:
    fn: `(replicated, table, one client's trees) -> trees`.
    mesh: devices.
    width: clients vmapped at a time, 1 for none, 0 for all of a device's.

  Returns:
    `(replicated, table [devices * rows, ...], trees [places, ...]) -> trees`.
  """

  def on_device(replicated, table, clients):
    one = functools.partial(fn, replicated, table)
    if width == 1:
      return jax.lax.map(one, clients)
    if width == 0:
      return jax.vmap(one)(clients)
    return jax.lax.map(one, clients, batch_size=width)

  # With check_vma the gradient with respect to a replicated tree is summed over
  # the axis: the clients of different devices would be mixed without an error.
  return jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(P(), P(AXIS), P(AXIS)),
    out_specs=P(AXIS),
    check_vma=False,
  )


class Compiled(NamedTuple):
  """Jitted functions over all places.

  Those of a round take `(server, round, table, tree, work)`; `train`,
  `measure`, `survey` and `whole` consume their tree.

  Attributes:
    begin: tree is the client states; returns carries.
    train: tree is the carries; returns (carries, sums of metrics).
    measure: tree is the carries; returns carries.
    survey: tree is the carries; returns carries.
    end: tree is (carries, client states); returns (uploads, states).
    end_untrained: the same before round 0.
    whole: all at once, from states to ((uploads, states), sums).
    prepare: the same without training.
    moments: `(models [G, ...], table, (own, moments), work) -> moments` of
      every client's augmented images at its group's model with its own leaves.
    no_moments: `(models [G, ...], own) -> moments` of no images, of one client.
    aggregate: `(server, uploads, drawn, round, public) -> (server, log)`.
    collect: `(server, uploads) -> server`.
  """

  begin: Callable
  train: Callable
  measure: Callable
  survey: Callable
  end: Callable
  end_untrained: Callable
  whole: Callable
  prepare: Callable
  moments: Callable
  no_moments: Callable
  aggregate: Callable
  collect: Callable


def compile_rounds(
  algorithm: Algorithm, mesh: Mesh, width: int, ordered: bool
) -> Compiled:
  """Builds the compiled functions of an algorithm on a mesh.

  Args:
    algorithm: what to run.
    mesh: devices.
    width: clients vmapped at a time on a device.
    ordered: bring whole uploads to every device before they are reduced, so
      that the sum is the same on any number of them.
  """
  program = algorithm.program

  def of_group(models, work):
    return {name: leaf[work.group] for name, leaf in models.items()}

  def broadcast(replicated, work):
    shared, extras, round_ = replicated
    return types.Broadcast(of_group(shared, work), extras, round_)

  def begin(replicated, _, client):
    state, work = client
    return program.begin(broadcast(replicated, work), state, work)

  def train(replicated, table, client):
    carry, work = client
    return program.train(broadcast(replicated, work), table, carry, work)

  def measure(_, table, client):
    carry, work = client
    variables = {**carry.params, **carry.buffers}
    found = program.measure(table, variables, carry.moments, work)
    return carry.replace(moments=found)

  def survey(_, table, client):
    carry, work = client
    return program.survey(table, carry, work)

  def end(replicated, _, client, trained=True):
    (carry, state), work = client
    sent = broadcast(replicated, work)
    return program.end(sent, state, carry, work, trained)

  def whole(replicated, table, client, trains=True):
    state, work = client
    carry, sums = begin(replicated, table, client), {}
    if trains:
      carry, sums = train(replicated, table, (carry, work))
    if program.surveys:
      carry = measure(replicated, table, (carry, work))
      carry = survey(replicated, table, (carry, work))
    return end(replicated, table, ((carry, state), work), trains), sums

  def moments(models, table, client):
    (own, found), work = client
    variables = of_group(models, work) | own
    return program.measure(table, variables, found, work, augment=True)

  def no_moments(models, own):
    one = {name: leaf[0] for name, leaf in {**models, **own}.items()}
    return program.moments(one)

  def mapped(fn, donate=()):
    over = over_clients(fn, mesh, width)

    def run(server, round_, table, tree, work):
      replicated = server.shared, algorithm.extras(server), round_
      return over(replicated, table, (tree, work))

    return jax.jit(run, donate_argnums=donate)

  def over_images(models, table, tree, work):
    return over_clients(moments, mesh, width)(models, table, (tree, work))

  replicated = NamedSharding(mesh, P())

  def canonical(trees: tuple) -> tuple:
    if ordered:
      trees = jax.lax.with_sharding_constraint(trees, replicated)
    if mesh.devices.size == 1:
      return trees
    index = trees[0].index
    order = jnp.argsort(jnp.where(index < 0, jnp.iinfo(index.dtype).max, index))
    return jax.tree.map(lambda leaf: leaf[order], trees)

  def aggregate(server, uploads, drawn, round_, public):
    uploads, drawn = canonical((uploads, drawn))
    return algorithm.aggregate(server, uploads, drawn, round_, public)

  def collect(server, uploads):
    return algorithm.collect(server, canonical((uploads,))[0])

  on_server = functools.partial(
    jax.jit, donate_argnums=0, out_shardings=replicated
  )
  return Compiled(
    begin=mapped(begin),
    train=mapped(train, donate=3),
    measure=mapped(measure, donate=3),
    survey=mapped(survey, donate=3),
    end=mapped(end),
    end_untrained=mapped(functools.partial(end, trained=False)),
    whole=mapped(whole, donate=3),
    prepare=mapped(functools.partial(whole, trains=False)),
    moments=jax.jit(over_images),
    no_moments=jax.jit(no_moments),
    aggregate=on_server(aggregate),
    collect=on_server(collect),
  )
