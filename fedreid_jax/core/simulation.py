"""A simulation of clients, with one code path for any number of devices.

Images stay on the device as uint8 if they fit. If they exceed a budget, the
round is cut into segments of steps, and the images of the next segment are
transferred while the current one is computed. Per-client state is on the host
and only the rows of the cohort are transferred to devices: device memory does
not grow with the number of clients.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import (
  cohort,
  compiled,
  costs,
  image_store,
  placement,
  prng,
  round_log,
  segments,
  transfer,
  trees,
  types,
)
from fedreid_jax.core.batch_stats import Layers
from fedreid_jax.core.compose import Algorithm
from fedreid_jax.core.reduction import Choice
from fedreid_jax.core.types import ClientData, Flat


class Options(NamedTuple):
  """Options of the simulation of clients.

  Attributes:
    seed: seed of the run.
    fraction: fraction of the clients that take part in a round.
    width: number of clients vmapped at a time on a device, 0 for all.
    ordered: whether uploads are reduced in canonical client order.
    budget: limit of the bytes of images on a device, 0 for no limit.
    plan_shape: `(S, B)` of the longest plan of the run.
    data_pass_batch: images of one step of a pass over all images.
    reduction: how the uploads of a round are reduced.
    places: largest number of clients in a round, each of which is sampled
      independently with the probability `fraction`; 0 for cohorts of a fixed
      size.
  """

  seed: int
  fraction: float
  width: int
  ordered: bool
  budget: int
  plan_shape: tuple[int, int]
  data_pass_batch: int
  reduction: Choice
  places: int = 0


class Executor:
  """Runs the rounds of an algorithm over a federation.

  This is the only stateful object of the engine: it holds images on devices and
  compiled functions. A run can be resumed from the states passed to its
  methods.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[ClientData],
    planner: cohort.Planner,
    image_shape: tuple[int, int, int],
    options: Options,
    mesh: Mesh,
    public: np.ndarray | None = None,
  ):
    """Places clients and their images.

    Args:
      algorithm: a federated method.
      clients: all clients, in canonical order.
      planner: `(round, client) -> Plan`.
      image_shape: `(H, W, ch)`.
      options: options of the simulation.
      mesh: devices.
      public: the public set, uint8 `[M, H, W, ch]`, kept on every device.
    """
    self._algorithm, self._clients, self._planner = algorithm, clients, planner
    self._options = options
    self._seed = prng.data(options.seed)
    self._split = NamedSharding(mesh, P(placement.AXIS))
    self._whole = NamedSharding(mesh, P())
    if public is None:
      public = np.zeros((0, *image_shape), np.uint8)
    self._public = transfer.put(public, self._whole)
    self._placement = cohort.place(clients, mesh.devices.size)
    self._cohort_size = options.places or len(self._sample_cohort(0))
    self._lanes = cohort.num_lanes(self._placement, self._cohort_size)
    store = image_store.ImageStore(
      clients, self._placement, self._split, image_shape
    )
    self._segments = segments.Segments(
      store,
      self._placement,
      self._lanes,
      options.budget,
      functools.partial(transfer.put, sharding=self._split),
    )
    batch = options.data_pass_batch

    def passes(client: int, modality: int | None = None) -> types.Plan:
      return cohort.pass_plan(clients[client], options.seed, batch, modality)

    self._passes = functools.cache(passes)
    most = max(client.num_images for client in clients)
    self._pass_shape = -(-most // batch), batch
    self._run = compiled.make(algorithm, mesh, options.width, options.ordered)
    # Shapes of the uploads of a streamed round, after training and without.
    self._sent: dict[bool, types.Upload] = {}

  def init(
    self,
    variables: Flat,
    pretrained: Sequence[str] = (),
    own: Sequence[Flat] | None = None,
  ) -> tuple[types.ServerState, types.ClientState]:
    """Returns (server state on devices, client states on the host `[N]`).

    Args:
      variables: variables of the model before round 0.
      pretrained: names of variables that are read from a file: personal ones
        start from these values as well, instead of random numbers per client.
      own: initial variables of each client, used instead of `pretrained`.
    """
    init_server = jax.jit(
      self._algorithm.init_server, out_shardings=self._whole
    )
    sizes = np.asarray([c.num_images for c in self._clients], np.float32)
    server = init_server(variables, sizes, self._public, self._seed)
    one = jax.jit(self._algorithm.init_client)
    loaded = {name: variables[name] for name in pretrained}
    known = own or [loaded] * len(self._clients)
    states = [
      jax.device_get(
        one(np.uint32(prng.client_uid(c.name)), leaves, self._seed)
      )
      for c, leaves in zip(self._clients, known, strict=True)
    ]
    return server, jax.tree.map(lambda *rows: np.stack(rows), *states)

  @property
  def clustered(self) -> bool:
    """Whether the server keeps several models."""
    return self._algorithm.clustered

  @property
  def reduction(self) -> Choice:
    """How the uploads of a round are reduced."""
    return self._options.reduction

  @property
  def notices(self) -> list[str]:
    """Notices of the components for users of the method."""
    texts = [component.info.notice for component in self._algorithm.components]
    return [text for text in texts if text]

  def warnings(self, metrics: dict[str, float]) -> list[str]:
    """Returns the components' warnings about the metrics of a round."""
    texts: list[str] = []
    for component in self._algorithm.components:
      prefix = f'{component.name}_'
      own = {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
      }
      if component.info.warn and own:
        texts.append(component.info.warn(own))
    return [text for text in texts if text]

  def models_to_evaluate(self, states: types.ClientState) -> dict[int, Flat]:
    """Returns the clients' own models that components keep for evaluation.

    Args:
      states: states of the clients, on the host, `[N, ...]`.

    Returns:
      Variables by canonical index of the client.
    """
    models: dict[int, Flat] = {}
    for component in self._algorithm.components:
      if component.client and component.client.models_to_evaluate:
        kept = states.states[component.name]
        variables, present = component.client.models_to_evaluate(kept)
        for k in np.flatnonzero(present):
          models[int(k)] = {n: x[k] for n, x in variables.items()}
    return models

  def put_server(self, server: types.ServerState) -> types.ServerState:
    """Puts a server state from the host on every device."""
    return transfer.put(server, self._whole)

  def prepare(
    self, server: types.ServerState, states: types.ClientState
  ) -> tuple[types.ServerState, dict[str, Counter[str]]]:
    """Runs the data passes before round 0, if the method has any.

    Args:
      server: server state, donated if there is a pass.
      states: client states on the host, updated in place.

    Returns:
      (server with the messages of all clients, log); the log has `up` and
      `down` like that of a round: `down` is the bytes of the model and `up`
      those of the messages.
    """
    log: dict[str, Counter[str]] = {'up': Counter(), 'down': Counter()}
    if not self._algorithm.prepares:
      return server, log
    for members in self._all_clients():
      lanes, tasks = self._tasks(members, server.groups, 0)
      uploads, (rows, _) = self._local(server, states, lanes, tasks, 0, False)
      for way, sizes in self._wire(server, uploads, members, False).items():
        log[way].update(sizes)
      server = self._run.receive(server, uploads)
      transfer.keep(states, transfer.get(rows), lanes, lanes >= 0)
    return server, log

  def round(
    self, server: types.ServerState, states: types.ClientState, round_: int
  ) -> tuple[types.ServerState, dict[str, Any]]:
    """Runs one round.

    Args:
      server: server state, donated.
      states: client states on the host, updated in place for the clients with
        a valid upload.
      round_: global round.

    Returns:
      (server, log). The log has `clients`, `valid`, `groups` and `weights` (or
      their `entropy`) in canonical order of the cohort. It also has
      `fell_back` (whether weights were replaced by sizes); `metrics` (means
      over all steps) and `median_loss` (over clients, of their means), both
      only if there is a valid upload; `per_client`, metrics of each client of
      the cohort (means over its steps, in canonical order); `images`; and
      `up` and `down`, the bytes of the whole cohort by content.
    """
    drawn = self._sample_cohort(round_)
    lanes, tasks = self._tasks(drawn, server.groups, round_)
    uploads, (rows, sums) = self._local(
      server, states, lanes, tasks, round_, True
    )
    log: dict[str, Any] = {**self._wire(server, uploads, drawn, True)}
    ranks = transfer.put(tasks.drawn, self._split)
    server, entries = self._run.aggregate(
      server, uploads, ranks, np.int32(round_), self._public, self._seed
    )
    entries = {
      k: v[: len(drawn)] if v.ndim else v.item()
      for k, v in jax.tree.map(np.asarray, entries).items()
    }
    clients = np.sort(drawn)
    valid = np.isin(lanes, clients[entries['valid']])
    transfer.keep(states, transfer.get(rows), lanes, valid)
    sums = transfer.get(sums)
    log |= round_log.training(sums, tasks.num_steps, valid)
    log['per_client'] = round_log.per_client(sums, tasks.num_steps, lanes)
    log |= entries | {'clients': clients, 'images': int(tasks.valid.sum())}
    return server, log

  def forecast(
    self, server: types.ServerState, states: types.ClientState
  ) -> costs.Costs:
    """Compiles the local training of round 0 and returns its costs.

    Nothing is run. If the images do not fit on a device, the program is that of
    one segment of local steps.

    Args:
      server: server state.
      states: client states on the host, `[N, ...]`.
    """
    tasks, uploads, training = self._first_round(server, states)
    sent = self._wire(server, uploads, self._sample_cohort(0), True)
    return costs.of_program(training.lower(), tasks, sent)

  def programs(
    self, server: types.ServerState, states: types.ClientState
  ) -> dict[str, jax.stages.Traced]:
    """Returns the programs of round 0, 'training' and 'aggregation'.

    They can be lowered for any platform. Nothing is compiled or run.

    Args:
      server: server state.
      states: client states on the host, `[N, ...]`.
    """
    tasks, uploads, training = self._first_round(server, states)
    ranks = np.zeros(len(tasks.index), np.int32)
    aggregation = self._run.aggregate.trace(
      server, uploads, ranks, np.int32(0), self._public, self._seed
    )
    return {'training': training, 'aggregation': aggregation}

  def senders(
    self, server: types.ServerState, states: types.ClientState
  ) -> list[str]:
    """Returns the components whose clients send messages.

    Args:
      server: server state.
      states: client states on the host, `[N, ...]`.
    """
    _, uploads, _ = self._first_round(server, states)
    return [n for n, sent in uploads.messages.items() if jax.tree.leaves(sent)]

  def _first_round(
    self, server: types.ServerState, states: types.ClientState
  ) -> tuple[types.ClientTask, types.Upload, jax.stages.Traced]:
    """Returns (tasks of round 0, shapes of its uploads, its training)."""
    lanes, tasks = self._tasks(self._sample_cohort(0), server.groups, 0)
    tree, placed = self._placed(states, lanes, tasks)
    run, number, resident = self._run, np.int32(0), self._segments.resident
    carry = jax.eval_shape(run.begin, server, number, (), tree, placed)
    uploads, _ = jax.eval_shape(
      run.end, server, number, (), (carry, tree), placed
    )
    if self._algorithm.fold:
      self._sent[True] = self._shapes(server, tree, placed, True)
    if resident is not None:
      training = run.whole.trace(server, number, resident, tree, placed)
    else:
      table, part = next(self._segments.training(lanes, tasks))
      training = run.train.trace(server, number, table, carry, part)
    return tasks, uploads, training

  def moments(
    self,
    models: Flat,
    groups: np.ndarray,
    own: Flat,
    modality: int | None = None,
  ) -> Layers:
    """Measures moments of batch normalisation on the images of every client.

    Images are augmented as in training, because running moments also come from
    augmented images and the weights are fitted to the moments of such images.

    Args:
      models: variables of the models, `[G, ...]`.
      groups: the model that each client measures, int32 `[N]`.
      own: variables that differ between clients, on the host, `[N, ...]`.
      modality: of the images that are measured, None for all; a client without
        such images has the moments of no images.

    Returns:
      Moments by layer (`core.batch_stats`), on the host, `[N, ...]`.
    """
    models = transfer.put(models, self._whole)
    nothing = jax.device_get(self._run.no_moments(models, own))
    every = transfer.copies(nothing, len(self._clients))
    for members in self._all_clients():
      lanes, tasks = self._tasks(members, groups, 0, modality)
      safe = np.where(lanes >= 0, lanes, 0)
      mine = transfer.put({n: x[safe] for n, x in own.items()}, self._split)
      found = transfer.put(transfer.copies(nothing, len(lanes)), self._split)
      for table, part in self._segments.passing(lanes, tasks):
        found = self._run.moments(models, table, (mine, found), part)
      transfer.keep(every, transfer.get(found), lanes, lanes >= 0)
    return every

  def _all_clients(self) -> Iterator[np.ndarray]:
    """Yields all clients in parts of the size of a cohort."""
    everyone = np.arange(len(self._clients))
    for first in range(0, len(everyone), self._cohort_size):
      yield everyone[first : first + self._cohort_size]

  def _sample_cohort(self, round_: int) -> np.ndarray:
    options = self._options
    if options.places:
      return cohort.sample_poisson(
        options.seed,
        round_,
        len(self._clients),
        options.fraction,
        options.places,
      )
    return cohort.sample_cohort(
      options.seed, round_, len(self._clients), options.fraction
    )

  def _tasks(
    self,
    members: np.ndarray,
    groups: Any,
    round_: int,
    modality: int | None = None,
  ) -> tuple[np.ndarray, types.ClientTask]:
    lanes = cohort.assign_lanes(self._placement, members, self._lanes)
    return lanes, cohort.make_tasks(
      self._clients,
      self._placement,
      lanes,
      self._planner,
      self._options.plan_shape,
      functools.partial(self._passes, modality=modality),
      self._pass_shape,
      np.asarray(groups),
      members,
      round_,
      self._options.seed,
    )

  def _placed(
    self, states: types.ClientState, lanes: np.ndarray, tasks: types.ClientTask
  ) -> tuple[types.ClientState, types.ClientTask]:
    """Returns the client states and the tasks of all lanes, on devices."""
    safe = np.where(lanes >= 0, lanes, 0)
    rows = transfer.put(trees.rows(states, safe), self._split)
    return rows, transfer.put(tasks, self._split)

  def _local(
    self,
    server: types.ServerState,
    states: types.ClientState,
    lanes: np.ndarray,
    tasks: types.ClientTask,
    round_: int,
    trains: bool,
  ) -> tuple[Any, tuple[Any, Any]]:
    """Returns (uploads, (client states, sums of metrics)) of all lanes."""
    tree, placed = self._placed(states, lanes, tasks)
    number = np.int32(round_)
    if self._algorithm.fold and trains not in self._sent:
      self._sent[trains] = self._shapes(server, tree, placed, trains)
    if self._segments.resident is not None:
      run = self._run.whole if trains else self._run.prepare
      return run(server, number, self._segments.resident, tree, placed)
    carry = self._run.begin(server, number, (), tree, placed)
    sums: dict[str, Any] = {}
    if trains:
      for table, part in self._segments.training(lanes, tasks):
        carry, more = self._run.train(server, number, table, carry, part)
        sums = jax.tree.map(jax.numpy.add, sums, more) if sums else more
    if self._algorithm.program.has_data_pass:
      for read in (self._run.measure, self._run.data_pass):
        for table, part in self._segments.passing(lanes, tasks):
          carry = read(server, number, table, carry, part)
    end = self._run.end if trains else self._run.end_untrained
    uploads, (rows, _) = end(server, number, (), (carry, tree), placed)
    return uploads, (rows, sums)

  def _shapes(
    self, server: types.ServerState, tree: Any, placed: Any, trains: bool
  ) -> types.Upload:
    """Returns the shapes of stacked uploads."""
    run, number = self._run, np.int32(0)
    carry = jax.eval_shape(run.begin, server, number, (), tree, placed)
    end = run.sent if trains else run.sent_untrained
    tree = carry, tree
    return jax.eval_shape(end, server, number, (), tree, placed)[0]

  def _wire(
    self,
    server: types.ServerState,
    uploads: Any,
    members: np.ndarray,
    trains: bool,
  ) -> round_log.Bytes:
    uploads = self._sent.get(trains, uploads)  # those of a streamed round
    return round_log.wire(
      self._algorithm, server, uploads, members, len(self._clients), trains
    )
