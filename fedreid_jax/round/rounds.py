"""The rounds of a federation: the cohort, its clients, and the server.

A value of the interface `round.clients.Clients` runs the clients. The states of
the clients are in a store (`round.client_store`).
"""

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import prng, types
from fedreid_jax.core.types import ClientData, Flat
from fedreid_jax.round import compiled, placement, round_log, shapes
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.clients import Clients, Kept
from fedreid_jax.round.cohorts import Cohorts
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.server.gathering import Uploads
from fedreid_jax.round.settings import SimulationOptions
from fedreid_jax.round.simulated import Simulated


class Rounds:
  """Runs the rounds of an algorithm over a federation.

  The states that its methods receive and return are enough to resume a run.

  Attributes:
    algorithm: the federated method.
    runner: runs the clients of a round.
    simulated: the clients on devices of this machine, None if their images are
      elsewhere.
    cohorts: the clients of each round.
    on_server: compiled functions of the server.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[ClientData],
    runner: Clients,
    cohorts: Cohorts,
    image_shape: tuple[int, int, int],
    options: SimulationOptions,
    mesh: Mesh,
    public: np.ndarray | None = None,
    simulated: Simulated | None = None,
    plain: bool = False,
  ):
    """Runs nothing yet.

    Args:
      image_shape: `(H, W, ch)`.
      public: the public set, uint8 `[M, H, W, ch]`, kept on every device.
      plain: whether nothing is compiled; then the mesh has one device.
    """
    self.algorithm, self.runner, self.cohorts = algorithm, runner, cohorts
    self.simulated = simulated
    self._mode = jax.disable_jit if plain else contextlib.nullcontext
    self.on_server = (
      compiled.in_python(algorithm)
      if plain
      else compiled.of_server(algorithm, mesh)
    )
    self._clients, self._options = clients, options
    self._init_client = jax.jit(algorithm.init_client)
    self._judge = algorithm.judge and jax.jit(
      algorithm.judge, out_shardings=NamedSharding(mesh, P())
    )
    self._seed = prng.data(options.seed)
    self.whole = NamedSharding(mesh, P())
    if public is None:
      public = np.zeros((0, *image_shape), np.uint8)
    self._public = placement.put(public, self.whole)

  @property
  def uploads(self) -> Uploads:
    """Number and size of the uploads of a round, and whether they are added."""
    return self._options.uploads

  def init(
    self, variables: Flat, pretrained: Sequence[str] = ()
  ) -> tuple[types.ServerState, ClientStore]:
    """Returns (server state on devices, store of the client states).

    Args:
      variables: their shapes suffice to compile programs (`round.ahead`).
      pretrained: names of variables that are read from a file: personal ones
        start from these values as well, instead of random numbers per client.
    """
    init_server = jax.jit(self.algorithm.init_server, out_shardings=self.whole)
    sizes = np.asarray([c.num_images for c in self._clients], np.float32)
    given = variables, sizes, self._public, self._seed
    with self._mode():
      if placement.are_shapes(variables):
        found = jax.eval_shape(init_server, *given)
        server = placement.shapes(found, self.whole)
      else:
        server = init_server(*given)
      loaded = {name: variables[name] for name in pretrained}
      like = jax.eval_shape(
        self.algorithm.init_client, np.uint32(0), loaded, self._seed
      )
    initial = functools.partial(self._initial, leaves=loaded)
    return server, ClientStore(initial, like, len(self._clients))

  def _initial(self, client: int, leaves: Flat) -> types.ClientState:
    uid = np.uint32(prng.client_uid(self._clients[client].name))
    with self._mode():
      return jax.device_get(self._init_client(uid, leaves, self._seed))

  def start_from(self, store: ClientStore, own: Callable[[int], Flat]) -> None:
    """Writes the state of every client before round 0.

    Args:
      own: returns all initial variables of a client's model.
    """
    for drawn in self.cohorts.everyone():
      members = drawn.clients
      states = [self._initial(int(k), own(int(k))) for k in members]
      rows = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
      here = np.ones(len(members), bool)
      # A store in memory has the rows of all clients in every process.
      if store.local and self.simulated:
        here = self.simulated.is_here(members)
      store.write(members, rows, here)

  def put_server(self, server: types.ServerState) -> types.ServerState:
    """Puts a server state from the host on every device."""
    return placement.put(server, self.whole)

  def prepare(
    self, server: types.ServerState, store: ClientStore
  ) -> tuple[types.ServerState, dict[str, Counter[str]]]:
    """Runs the data passes before round 0, if the method has any.

    Args:
      server: server state, donated if there is a pass.
      store: client states; the rows of all clients are written.

    Returns:
      (server with the messages of all clients, log). In the log, `up` has the
      bytes of the messages and `down` the bytes of the model.
    """
    log: dict[str, Counter[str]] = {'up': Counter(), 'down': Counter()}
    if not self.algorithm.prepares:
      return server, log
    for drawn in self.cohorts.everyone():
      with self._mode():
        sent = self.runner.run(server, store, drawn, 0, trains=False)
        for way, sizes in self.wire(
          server, sent.upload, drawn.clients, False
        ).items():
          log[way].update(sizes)
        server = self.on_server.receive(server, sent.uploads)
      _write(store, sent.kept, drawn.clients)
    return server, log

  def round(
    self, server: types.ServerState, store: ClientStore, round_: int
  ) -> tuple[types.ServerState, dict[str, Any]]:
    """Runs one round.

    Args:
      server: server state, donated.
      store: client states; the rows of the clients whose upload is used are
        written.

    Returns:
      (server, log). The log has, in canonical order of the clients that took
      part, `clients`, `valid`, `groups`, `weights` (or their `entropy`) and
      `per_client` (metrics of each client, means over its steps). It has
      `fell_back` (whether sizes replaced the weights), `images` (their number),
      and `up` and `down` (bytes of all these clients by content). `metrics` has
      means over all steps and the metrics of `ServerHooks.metrics`, and
      `median_loss` is the median of the clients' mean losses; without a valid
      upload there are no means and no median. With simulated time the log has
      the `timetable` of the round.
    """
    drawn = self.cohorts.draw(round_)
    with self._mode():
      sent = self.runner.run(server, store, drawn, round_, trains=True)
      lanes = sent.lanes
      # The server's rows are in canonical order, as are the indices.
      clients = np.sort(lanes[lanes >= 0])
      log: dict[str, Any] = {**self.wire(server, sent.upload, clients, True)}
      server, logged = self.on_server.aggregate(
        server, sent.uploads, sent.ranks, *self.of_round(round_)
      )
    entries, measured = round_log.of_server(logged, len(clients))
    counted, kept = clients[entries['valid']], clients[entries.pop('kept')]
    _write(store, sent.kept, kept)
    steps = sent.num_steps
    log |= round_log.training(sent.sums, steps, np.isin(lanes, counted))
    log['metrics'] |= measured
    log['per_client'] = round_log.per_client(sent.sums, steps, lanes)
    log |= entries | {'clients': clients, 'images': sent.images}
    if drawn.timed:
      log['timetable'] = drawn.timed
    return server, log

  def judge(
    self, server: types.ServerState, done: int, metrics: Mapping[str, float]
  ) -> types.ServerState:
    """Gives the components the result of an evaluation on held-out persons.

    Args:
      done: number of rounds that are done.
      metrics: means over these tests, by name.
    """
    if not self._judge:
      return server
    given = {name: np.float32(value) for name, value in metrics.items()}
    with self._mode():
      states = self._judge(server.states, given, np.int32(done))
    return dataclasses.replace(server, states=states)

  def of_round(self, round_: int) -> tuple[Any, Any, Any]:
    """Returns (number, public images, seed), arguments of `aggregate`."""
    seed = prng.of_round(self._seed, self._options.secret, round_)
    return np.int32(round_), self._public, seed

  def senders(self, server: types.ServerState) -> list[str]:
    """Returns the names of the components whose clients send messages."""
    options = self._options
    plan, batch = options.plan_shape, options.data_pass_batch
    sent = shapes.upload(self.algorithm, server, plan, batch, True)
    return [n for n, found in sent.messages.items() if jax.tree.leaves(found)]

  def wire(
    self,
    server: types.ServerState,
    upload: types.Upload,
    clients: np.ndarray,
    trains: bool,
  ) -> round_log.Bytes:
    """Returns the bytes `up` and `down` of some clients, by content.

    Args:
      upload: one of their uploads, or its shapes.
    """
    number = len(self._clients)
    return round_log.wire(
      self.algorithm, server, upload, clients, number, trains
    )


def _write(store: ClientStore, found: list[Kept], clients: np.ndarray) -> None:
  """Writes the new states of some clients into the store."""
  for lanes, states in found:
    store.write(lanes, states, np.isin(lanes, clients))
