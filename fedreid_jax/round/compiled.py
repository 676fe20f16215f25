"""The compiled functions of a simulation on a mesh of devices.

If a round has several waves, their sums and uploads are joined here as well.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import batch_stats
from fedreid_jax.round import local_step, local_training, placement
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.server import server_round
from fedreid_jax.round.server.arithmetic import FixedPoint
from fedreid_jax.round.server.fold import Fold, Folded, Totals

Replicated = tuple[Flat, dict[str, Tree], Array]


# What the programs of clients receive: the state of the server in a simulation,
# at a real site (shared parameters, messages).
Source = Any
Broadcast = Callable[[Source], tuple[Flat, dict[str, Tree]]]


class OfClients(NamedTuple):
  """Compiled functions over all lanes.

  The functions of a round take `(source, round, table, tree, tasks)`; `train`,
  `measure` and `data_pass` donate their tree.

  Attributes:
    begin: the tree is the client states; returns carries.
    train: the tree is the carries; returns (carries, sums of metrics).
    measure: the tree is the carries; returns carries.
    data_pass: the tree is the carries; returns carries.
    end: the tree is (carries, client states); returns (uploads, (states, ())).
      Uploads are stacked, or `Folded` with the sums of each device, `[devices,
      ...]`, if the method adds them.
    end_untrained: `end` before round 0.
    add: `(Totals, Totals) -> Totals` of two waves, `[devices, ...]`; donates
      the first.
    moments: `(models [G, ...], table, (own, moments), tasks) -> moments` of
      every client's augmented images at its group's model with its personal
      parameters.
    no_moments: `(models [G, ...], own) -> moments` of one client without
      images.
  """

  begin: Callable[..., Any]
  train: jax.stages.Wrapped
  measure: Callable[..., Any]
  data_pass: Callable[..., Any]
  end: Callable[..., Any]
  end_untrained: Callable[..., Any]
  add: Callable[..., Any]
  moments: Callable[..., batch_stats.Layers]
  no_moments: Callable[..., batch_stats.Layers]


class OfServer(NamedTuple):
  """Compiled functions of the server, which donate its state.

  Attributes:
    aggregate: `(server, uploads, drawn, round, public, seed) -> (server, log)`;
      it can be traced unless it is of `in_python`.
    receive: `(server, uploads) -> server`.
  """

  aggregate: Any
  receive: Callable[..., types.ServerState]


def of_clients(algorithm: Algorithm, mesh: Mesh, width: int) -> OfClients:
  """Builds the functions of clients that receive the state of the server."""

  def broadcast(server: types.ServerState) -> tuple[Flat, dict[str, Tree]]:
    return server.shared, algorithm.messages(server)

  return of_program(algorithm.program, broadcast, mesh, width, algorithm.fold)


def of_program(
  program: local_training.Program,
  broadcast: Broadcast,
  mesh: Mesh,
  width: int,
  fold: Fold | None = None,
) -> OfClients:
  """Builds the functions of clients that run a program.

  Args:
    broadcast: `(source) -> (shared parameters [G, ...], messages)`.
    fold: sums to which uploads are added, of a source that is the state of the
      server; None stacks uploads.
  """
  of_client = _OfClient(program)
  over = functools.partial(_over_lanes, broadcast, mesh, width)
  ends = early = over
  if fold:
    ends = _adding_up(broadcast, fold, mesh, width)
    early = _adding_up(broadcast, fold.untrained(), mesh, width)
  # Resident images and segments of images run in the same programs, which
  # therefore round alike.
  return OfClients(
    begin=over(of_client.begin),
    train=over(of_client.train, donate=True),
    measure=over(of_client.measure, donate=True),
    data_pass=over(of_client.data_pass, donate=True),
    end=ends(of_client.end),
    end_untrained=early(functools.partial(of_client.end, trained=False)),
    add=jax.jit(
      functools.partial(add_waves, fold),
      donate_argnums=0,
      out_shardings=NamedSharding(mesh, P(placement.AXIS)),
    ),
    moments=_moments(of_client, mesh, width),
    no_moments=jax.jit(of_client.no_moments),
  )


def _over_lanes(
  broadcast: Broadcast,
  mesh: Mesh,
  width: int,
  fn: Callable[..., Any],
  donate: bool = False,
) -> jax.stages.Wrapped:
  """Returns a function of a round, `(source, round, table, tree, tasks)`."""
  over = placement.over_clients(fn, mesh, width)

  def run(
    source: Source,
    round_: Array,
    table: Any,
    tree: Any,
    tasks: types.ClientTask,
  ) -> Any:
    replicated = *broadcast(source), round_
    return over(replicated, table, (tree, tasks))

  return jax.jit(run, donate_argnums=(3,) if donate else ())


def _adding_up(
  broadcast: Broadcast, fold: Fold, mesh: Mesh, width: int
) -> Callable[..., jax.stages.Wrapped]:
  """Returns a variant of `_over_lanes` for functions that return uploads.

  The functions of a round that it builds add the first results, which are
  uploads, to sums instead of stacking them. They return (`Folded`, second
  result).
  """

  def zeros(replicated: Any, sent: Any) -> Totals:
    (shared, _, _), states = replicated
    return fold.zeros(trees.rows(shared, 0), states, sent[0])

  def add(replicated: Any, totals: Totals, sent: Any) -> Any:
    (shared, _, _), states = replicated
    return fold.add(totals, trees.rows(shared, 0), states, *sent)

  carried = placement.Carried(zeros, add)

  def over(fn: Callable[..., Any], donate: bool = False) -> jax.stages.Wrapped:
    def one(replicated: Any, table: Any, client: Any) -> Any:
      upload, rest = fn(replicated[0], table, client)
      return (upload, client[1].drawn), rest

    folded = placement.fold_clients(one, carried, mesh, width)

    def run(
      server: types.ServerState,
      round_: Array,
      table: Any,
      tree: Any,
      tasks: types.ClientTask,
    ) -> Any:
      replicated = *broadcast(server), round_
      totals, ((uploads, raw, far), rest) = folded(
        (replicated, fold.states(server)), table, (tree, tasks)
      )
      return Folded(uploads, raw, far, totals), rest

    return jax.jit(run, donate_argnums=(3,) if donate else ())

  return over


def _moments(
  of_client: '_OfClient', mesh: Mesh, width: int
) -> Callable[..., batch_stats.Layers]:
  """Returns `(models [G, ...], table, (own, moments), tasks) -> moments`."""
  over = placement.over_clients(of_client.moments, mesh, width)

  def moments(
    models: Flat, table: Any, tree: Any, tasks: types.ClientTask
  ) -> Any:
    return over(models, table, (tree, tasks))

  return jax.jit(moments)


def of_server(algorithm: Algorithm, mesh: Mesh) -> OfServer:
  """Builds the functions of the server, on all devices of a mesh."""
  fold = algorithm.fold
  # The number of lanes depends on the number of devices. Sums with the same
  # bits on any number of devices need arrays of the same size.
  cohort = None
  if fold is not None and isinstance(fold.arithmetic, FixedPoint):
    cohort = len(fold.arithmetic.sizes)
  split = algorithm.by_coordinate and mesh.devices.size > 1
  canonical = functools.partial(_canonical, mesh, cohort, fold, split)

  def aggregate(
    server: types.ServerState,
    uploads: server_round.Received,
    drawn: Array,
    round_: Array,
    public: Array,
    seed: Array,
  ) -> Any:
    uploads, drawn = canonical(uploads, drawn)
    return algorithm.aggregate(server, uploads, drawn, round_, public, seed)

  def receive(
    server: types.ServerState, uploads: server_round.Received
  ) -> types.ServerState:
    return algorithm.receive(server, canonical(uploads)[0])

  replicated = NamedSharding(mesh, P())
  jit = functools.partial(jax.jit, donate_argnums=0, out_shardings=replicated)
  return OfServer(jit(aggregate), jit(receive))


def in_python(algorithm: Algorithm) -> OfServer:
  """Builds the functions of the server without compilation, on one device."""

  def merged(uploads: server_round.Received) -> server_round.Received:
    if isinstance(uploads, Folded):
      return dataclasses.replace(uploads, totals=trees.rows(uploads.totals, 0))
    return uploads

  def aggregate(server: Any, uploads: Any, *rest: Any) -> Any:
    return algorithm.aggregate(server, merged(uploads), *rest)

  def receive(server: Any, uploads: Any) -> types.ServerState:
    return algorithm.receive(server, merged(uploads))

  return OfServer(aggregate, receive)


def _canonical(
  mesh: Mesh,
  cohort: int | None,
  fold: Fold | None,
  split: bool,
  uploads: server_round.Received,
  *columns: Array,
) -> Any:
  """Returns uploads and columns `[K, ...]` in canonical order of the clients.

  Args:
    mesh: devices, each of which gets the rows of all clients.
    cohort: `K`, to which the rows are cut; None keeps the rows of empty lanes.
    fold: sums of the method, which are added over devices here: once a round.
    split: whether a device gets all rows of a part of the values of the model
      only.
    uploads: uploads of all lanes.
    *columns: more arrays of all lanes.
  """
  totals = None
  if isinstance(uploads, Folded):
    assert fold is not None
    totals = placement.over_devices(fold.merge, mesh)(uploads.totals)
    rows = uploads.uploads, uploads.raw, uploads.far, *columns
  else:
    rows = uploads, *columns
  whole = NamedSharding(mesh, P())
  places = jax.tree.map(lambda _: whole, rows)
  if split:
    parts = jax.tree.map(functools.partial(_part, mesh), rows[0].shared)
    places = dataclasses.replace(places[0], shared=parts), *places[1:]
  rows = jax.lax.with_sharding_constraint(rows, places)
  if mesh.devices.size > 1:
    index = rows[0].index
    last = jnp.iinfo(index.dtype).max
    # Lanes are in canonical order on each device only. Empty ones go last.
    order = jnp.argsort(jnp.where(index < 0, last, index))[:cohort]
    rows = trees.rows(rows, order)
  if totals is None:
    return rows
  kept, raw, far, *rest = rows
  return Folded(kept, raw, far, totals), *rest


def _part(mesh: Mesh, leaf: Array) -> NamedSharding:
  """Returns the sharding of a leaf `[K, ...]` over its longest other axis."""
  axis = placement.divided_axis(leaf.shape[1:], mesh.devices.size)
  if axis is None:
    return NamedSharding(mesh, P())
  return NamedSharding(mesh, P(*(None,) * (1 + axis), placement.AXIS))


def _of_group(models: Flat, task: types.ClientTask) -> Flat:
  return {name: leaf[task.group] for name, leaf in models.items()}


class _OfClient:
  """The program of one client as functions `(replicated, table, client)`."""

  def __init__(self, program: local_training.Program):
    self._program = program

  def _broadcast(
    self, replicated: Replicated, task: types.ClientTask
  ) -> types.Broadcast:
    shared, messages, round_ = replicated
    return types.Broadcast(
      _of_group(shared, task), messages, round_, task.staleness
    )

  def begin(
    self, replicated: Replicated, _: Any, client: Any
  ) -> local_step.Carry:
    state, task = client
    broadcast = self._broadcast(replicated, task)
    return self._program.begin(broadcast, state, task)

  def train(self, replicated: Replicated, table: Any, client: Any) -> Any:
    carry, task = client
    broadcast = self._broadcast(replicated, task)
    return self._program.train(broadcast, table, carry, task)

  def measure(self, _: Any, table: Any, client: Any) -> local_step.Carry:
    carry, task = client
    variables = {**carry.params, **carry.batch_stats}
    found = self._program.measure(table, variables, carry.moments, task)
    return dataclasses.replace(carry, moments=found)

  def data_pass(self, _: Any, table: Any, client: Any) -> local_step.Carry:
    carry, task = client
    return self._program.data_pass(table, carry, task)

  def end(
    self, replicated: Replicated, _: Any, client: Any, trained: bool = True
  ) -> Any:
    (carry, state), task = client
    broadcast = self._broadcast(replicated, task)
    upload, kept = self._program.end(broadcast, state, carry, task, trained)
    return upload, (kept, ())

  def moments(self, models: Flat, table: Any, client: Any) -> Any:
    (own, found), task = client
    variables = _of_group(models, task) | own
    return self._program.measure(table, variables, found, task, augment=True)

  def no_moments(self, models: Flat, own: Flat) -> batch_stats.Layers:
    one = {name: leaf[0] for name, leaf in {**models, **own}.items()}
    return self._program.no_moments(one)


def add_waves(fold: Fold | None, totals: Totals, more: Totals) -> Totals:
  """Returns the sums over the clients of two waves on each device."""
  assert fold is not None  # only a method with sums has several waves

  # As if the waves were two devices of a mesh, by vmap with a named axis.
  def merged(one: Totals) -> Totals:
    return fold.merge(one, 'waves')

  def on_device(one: Totals, other: Totals) -> Totals:
    both = jax.tree.map(lambda *x: jnp.stack(x), one, other)
    return trees.rows(jax.vmap(merged, axis_name='waves')(both), 0)

  return jax.vmap(on_device)(totals, more)


def join(rows: Sequence[Any], cohort: int) -> Any:
  """Returns `(uploads, raw, far)` of a round, in canonical order, `[K, ...]`.

  Args:
    rows: the same of each wave on the host, `[lanes, ...]`.
  """

  def column(*parts: np.ndarray) -> np.ndarray:
    # The last row is an empty lane, which is repeated below if the waves have
    # fewer lanes than K.
    return np.concatenate([*parts, np.zeros_like(parts[0][:1])])

  uploads, raw, far = jax.tree.map(column, *rows)
  index = uploads.index
  index[-1] = -1
  order = np.argsort(np.where(index < 0, np.iinfo(np.int32).max, index))
  order = np.append(order, [-1] * cohort)[:cohort]
  return trees.rows((uploads, raw, far), order)


def ranks(index: np.ndarray, parts: Sequence[types.ClientTask]) -> np.ndarray:
  """Returns the positions of uploads in the order of sampling, int32 `[K]`.

  Args:
    index: client of each upload, -1 if empty, `[K]`.
  """
  drawn = {
    int(client): int(position)
    for tasks in parts
    for client, position in zip(tasks.index, tasks.drawn, strict=True)
    if client >= 0
  }
  return np.array([drawn.get(int(k), 0) for k in index], np.int32)
