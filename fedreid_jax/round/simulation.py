"""A simulation of clients, with one code path for any number of devices.

Images stay on the device as uint8 if they fit. If they exceed a budget, the
round is cut into segments of steps, and the images of the next segment are
transferred while the current one is computed. The states of the clients are in
a store (`round.client_store`). Only the states of the cohort are read
and transferred to devices, so that neither the memory of the devices nor the
work of the host in a round grows with the number of clients.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import prng, trees, types
from fedreid_jax.core.types import ClientData, Flat
from fedreid_jax.method.batch_stats import Layers
from fedreid_jax.round import (
  cohort,
  cohort_tasks,
  compiled,
  costs,
  local_rounds,
  placement,
  round_log,
  segments,
)
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.server.gathering import Uploads
from fedreid_jax.round.settings import SimulationOptions

COMPILER = 'compiler'  # beginning of the name of its thread


class Executor:
  """Runs the rounds of an algorithm over a federation.

  The executor holds images on devices and compiled functions. The states that
  its methods receive and return are enough to resume a run.

  Attributes:
    algorithm: the federated method.
    resident: whether devices keep the images of all clients.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[ClientData],
    planner: cohort.Planner,
    image_shape: tuple[int, int, int],
    options: SimulationOptions,
    mesh: Mesh,
    public: np.ndarray | None = None,
  ):
    """Places the clients; their images are read later.

    Args:
      public: the public set, uint8 `[M, H, W, ch]`, kept on every device.
    """
    self.algorithm, self._clients = algorithm, clients
    self._init_client = jax.jit(algorithm.init_client)
    self._options = options
    self._seed = prng.data(options.seed)
    self._split = NamedSharding(mesh, P(placement.AXIS))
    self._whole = NamedSharding(mesh, P())
    if public is None:
      public = np.zeros((0, *image_shape), np.uint8)
    self._public = placement.put(public, self._whole)
    placed = cohort.place(clients, mesh.devices.size)
    size = cohort_tasks.cohort_size(len(clients), options)
    store = segments.ImageStore(
      clients, placed, self._split, image_shape, kept=size
    )
    # With resident images a client runs on the device that has them. A small
    # cohort of many clients would not be distributed evenly then.
    at_home = size == len(clients) or mesh.devices.size == 1
    self.resident = at_home and store.fits(options.budget)
    adds = algorithm.fold is not None
    # A client has its parameters, their gradients and momenta, a state that may
    # be as large, and its images unless these stay on the devices.
    each = 4 * options.uploads.model_bytes
    if not self.resident:
      each += int(np.prod(options.plan_shape)) * store.image_bytes
    lanes = cohort.Lanes(
      placed,
      size,
      self.resident,
      [device.process_index for device in mesh.devices.flat],
      planner.num_steps,
      cohort.most_lanes(options.budget if adds else 0, each),
    )
    self._tasks = cohort_tasks.CohortTasks(
      clients, placed, planner, lanes, options
    )
    self._segments = segments.Segments(
      store,
      placed,
      lanes.per_device,
      options.budget,
      self.resident,
      functools.partial(placement.put, sharding=self._split),
    )
    self._run = compiled.make(algorithm, mesh, options.width)
    self._local = local_rounds.LocalRounds(
      algorithm, self._run, self._segments, self._split, self._whole
    )

  def init(
    self, variables: Flat, pretrained: Sequence[str] = ()
  ) -> tuple[types.ServerState, ClientStore]:
    """Returns (server state on devices, store of the client states).

    Args:
      variables: their shapes suffice for `compiled` and `forecast`.
      pretrained: names of variables that are read from a file: personal ones
        start from these values as well, instead of random numbers per client.
    """
    init_server = jax.jit(self.algorithm.init_server, out_shardings=self._whole)
    sizes = np.asarray([c.num_images for c in self._clients], np.float32)
    given = variables, sizes, self._public, self._seed
    if _are_shapes(variables):
      found = jax.eval_shape(init_server, *given)
      server = placement.shapes(found, self._whole)
    else:
      server = init_server(*given)
    loaded = {name: variables[name] for name in pretrained}
    shapes = jax.eval_shape(
      self.algorithm.init_client, np.uint32(0), loaded, self._seed
    )
    initial = functools.partial(self._initial, leaves=loaded)
    return server, ClientStore(initial, shapes, len(self._clients))

  def _initial(self, client: int, leaves: Flat) -> types.ClientState:
    uid = np.uint32(prng.client_uid(self._clients[client].name))
    return jax.device_get(self._init_client(uid, leaves, self._seed))

  @property
  def uploads(self) -> Uploads:
    """Number and size of the uploads of a round, and whether they are added."""
    return self._options.uploads

  def describe_images(self) -> str:
    """Returns a line for users that says where the clients' images are."""
    if self.resident:
      return 'images: all of them stay on the devices'
    lanes = self._tasks.lanes.per_device
    return (
      'images: those of a round are copied to the devices while it is '
      f'computed, for at most {lanes} clients at a time on each'
    )

  def start_from(self, store: ClientStore, own: Callable[[int], Flat]) -> None:
    """Writes the state of every client before round 0.

    Args:
      own: returns all initial variables of a client's model.
    """
    for members in self._tasks.everyone():
      states = [self._initial(int(k), own(int(k))) for k in members]
      rows = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
      # A store in memory has the rows of all clients in every process.
      store.write(members, rows, self._is_here(members) | (not store.local))

  def put_server(self, server: types.ServerState) -> types.ServerState:
    """Puts a server state from the host on every device."""
    return placement.put(server, self._whole)

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
    for members in self._tasks.everyone():
      for wave in self._tasks.waves(members, server.groups, 0):
        lanes, _ = wave
        uploads, (rows, _) = self._local.wave(server, store, wave, 0, False)
        here = lanes[lanes >= 0]
        for way, sizes in self._wire(server, uploads, here, False).items():
          log[way].update(sizes)
        server = self._run.receive(server, uploads)
        rows = self._local.fetch(store, rows)
        self._keep(store, rows, lanes, lanes >= 0)
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
      (server, log). The log has, in canonical order of the cohort, `clients`,
      `valid`, `groups`, `weights` (or their `entropy`) and `per_client`
      (metrics of each client, means over its steps). It has `fell_back`
      (whether sizes replaced the weights), `images` (their number), and `up`
      and `down` (bytes of the whole cohort by content). `metrics` has means
      over all steps and the metrics of `ServerHooks.metrics`, and `median_loss`
      is the median of the clients' mean losses; without a valid upload there
      are no means and no median. With simulated time the log has the
      `timetable` of the round.
    """
    groups = np.asarray(server.groups)
    drawn, waves, timed = self._tasks.draw(round_, groups)
    following = functools.partial(self._tasks.first_wave, round_ + 1, groups)
    uploads, ranks, rows, sums = self._local.round(
      server, store, waves, round_, self._tasks.size, following
    )
    log: dict[str, Any] = {**self._wire(server, uploads, drawn, True)}
    server, logged = self._run.aggregate(
      server,
      uploads,
      ranks,
      np.int32(round_),
      self._public,
      self._seed_of(round_),
    )
    entries, measured = round_log.of_server(logged, len(drawn))
    # The server's rows are in canonical order, as are the indices.
    clients = np.sort(drawn)
    counted, kept = clients[entries['valid']], clients[entries.pop('kept')]
    for (lanes, _), found in zip(waves, rows, strict=True):
      self._keep(store, found, lanes, np.isin(lanes, kept))
    lanes = np.concatenate([lanes for lanes, _ in waves])
    steps = np.concatenate([tasks.num_steps for _, tasks in waves])
    log |= round_log.training(sums, steps, np.isin(lanes, counted))
    log['metrics'] |= measured
    log['per_client'] = round_log.per_client(sums, steps, lanes)
    images = sum(int(tasks.valid.sum()) for _, tasks in waves)
    log |= entries | {'clients': clients, 'images': images}
    if timed:
      log['timetable'] = timed
    return server, log

  def read_images(self) -> None:
    """Reads the images that stay on the devices, unless they have been read."""
    _ = self._segments.resident

  def compile_ahead(
    self, server: types.ServerState, store: ClientStore
  ) -> Callable[[], Any]:
    """Begins to compile the programs of a round in another thread.

    Returns:
      A function that waits for the programs and raises the errors of the
      compiler. A round that begins before it has returned compiles them again.
    """
    # The shapes suffice, and a program may donate the state meanwhile.
    shapes = placement.shapes(server, self._whole)

    def make() -> None:
      self._compiled(shapes, store)  # JAX keeps the programs

    thread = futures.ThreadPoolExecutor(1, COMPILER)
    ahead = thread.submit(make)
    thread.shutdown(wait=False)
    return ahead.result

  def forecast(
    self, server: types.ServerState, store: ClientStore
  ) -> costs.Costs:
    """Compiles the programs of round 0 and returns its costs.

    Nothing is run. If images do not stay on devices, the program of one segment
    of steps is counted.
    """
    return self.compiled(server, store)[1]

  def compiled(
    self, server: types.ServerState, store: ClientStore
  ) -> tuple[costs.Programs, costs.Costs]:
    """Compiles as `forecast` does, and also returns the programs."""
    found, waves, sent = self._compiled(server, store)
    return found, costs.of_programs(found, waves, sent)

  def _compiled(
    self, server: types.ServerState, store: ClientStore
  ) -> tuple[costs.Programs, list[types.ClientTask], round_log.Bytes]:
    """Returns the programs of round 0, its tasks and the bytes sent."""
    _, uploads, _ = self._first_round(server, store)
    drawn = self._tasks.first()
    sent = self._wire(server, uploads, drawn, True)
    waves = self._tasks.waves(drawn, self._groups(server), 0)
    given = self._tasks.size, self._public, self._seed_of(0)
    found = costs.of_round(self._local, server, store, waves, *given)
    return found, [tasks for _, tasks in waves], sent

  def _groups(self, server: types.ServerState) -> np.ndarray:
    """Returns the group of every client; all are in one before round 0."""
    if _are_shapes(server.groups):
      return np.zeros(len(self._clients), np.int32)
    return np.asarray(server.groups)

  def programs(
    self, server: types.ServerState, store: ClientStore
  ) -> dict[str, jax.stages.Traced]:
    """Returns the programs of round 0, 'training' and 'aggregation'.

    They can be lowered for any platform. Nothing is compiled or run.
    """
    tasks, uploads, training = self._first_round(server, store)
    ranks = np.zeros(len(tasks.index), np.int32)
    aggregation = self._run.aggregate.trace(
      server, uploads, ranks, np.int32(0), self._public, self._seed_of(0)
    )
    return {'training': training(), 'aggregation': aggregation}

  def senders(self, server: types.ServerState, store: ClientStore) -> list[str]:
    """Returns the names of the components whose clients send messages."""
    _, uploads, _ = self._first_round(server, store)
    # Before they are added: sums are not the messages.
    sent = self._local.sent.get(True, uploads)
    return [n for n, found in sent.messages.items() if jax.tree.leaves(found)]

  def _first_round(
    self, server: types.ServerState, store: ClientStore
  ) -> tuple[types.ClientTask, types.Upload, Callable[[], jax.stages.Traced]]:
    """Returns (tasks of round 0, shapes of its uploads, trace of training)."""
    wave, *_ = self._tasks.waves(self._tasks.first(), self._groups(server), 0)
    tasks = wave[1]
    tree, placed = self._local.placed(store, wave)
    run, number = self._run, np.int32(0)
    carry = jax.eval_shape(run.begin, server, number, (), tree, placed)
    uploads, _ = jax.eval_shape(
      run.end, server, number, (), (carry, tree), placed
    )
    if self.algorithm.fold:
      self._local.sent[True] = self._local.shapes(server, tree, placed, True)

    def training() -> jax.stages.Traced:
      table, part = self._segments.described(placed, segments.STEPS)
      return run.train.trace(server, number, table, carry, part)

    return tasks, uploads, training

  def moments(
    self,
    models: Flat,
    groups: np.ndarray,
    own: Callable[[np.ndarray], Flat] | None = None,
    modality: int | None = None,
  ) -> Iterator[Layers]:
    """Measures moments of batch normalisation on the images of every client.

    Images are augmented as in training, because the weights were fitted to
    augmented images.

    Args:
      models: variables of the models, `[G, ...]`.
      groups: the model that each client measures, int32 `[N]`.
      own: returns the variables that differ between clients, `[k, ...]` on the
        host, for the indices of some clients, `[k]`; None if there are none.
      modality: modality of the images that are measured, None for all; a client
        without such images has the moments of no images.

    Yields:
      Moments by layer (`method.batch_stats`) of each client in canonical order,
      on the host.
    """
    models = placement.put(models, self._whole)
    first = own(np.arange(1)) if own else {}
    nothing = jax.device_get(self._run.no_moments(models, first))
    for members in self._tasks.everyone():
      everything = own(members) if own else {}
      found: dict[int, Layers] = {}
      for lanes, tasks in self._tasks.waves(members, groups, 0, modality):
        # Empty lanes, -1, get the first row, and have no images.
        mine = trees.rows(everything, np.searchsorted(members, lanes))
        mine = placement.put(mine, self._split)
        layers = placement.put(
          placement.copies(nothing, len(lanes)), self._split
        )
        for table, part in self._segments.passing(lanes, tasks):
          layers = self._run.moments(models, table, (mine, layers), part)
        layers = placement.get(layers)
        for lane in np.flatnonzero(lanes >= 0):
          found[int(lanes[lane])] = trees.rows(layers, int(lane))
      for k in members:
        yield found[int(k)]

  def _seed_of(self, round_: int) -> np.ndarray:
    """Returns the seed of the server's keys in a round."""
    return prng.of_round(self._seed, self._options.secret, round_)

  def _keep(
    self, store: ClientStore, rows: Any, lanes: np.ndarray, valid: np.ndarray
  ) -> None:
    """Writes the new states of the valid clients into the store."""
    if store.local:
      valid = valid & placement.is_here(self._split, len(lanes))
    store.write(lanes, rows, valid)

  def _is_here(self, members: np.ndarray) -> np.ndarray:
    """Returns whether each client runs on a device of this process."""
    return self._tasks.lanes.owners(members) == jax.process_index()

  def _wire(
    self,
    server: types.ServerState,
    uploads: Any,
    members: np.ndarray,
    trains: bool,
  ) -> round_log.Bytes:
    # Clients send uploads, and not the sums of them that `uploads` may be.
    uploads = self._local.sent.get(trains, uploads)
    return round_log.wire(
      self.algorithm, server, uploads, members, len(self._clients), trains
    )


def _are_shapes(tree: Any) -> bool:
  leaves = jax.tree.leaves(tree)
  return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
