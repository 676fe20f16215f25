"""Where clients run: one code path from a laptop to a pod.

Images stay on the device as uint8 where they fit; over a budget the round is
cut into segments of steps, and the next segment's images are sent while this
one computes. Per-client state stays on the host and only the cohort's rows
travel: device memory does not grow with the number of clients.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import cohort, image_store, placement, prng, types
from fedreid_jax.core.batch_stats import Layers
from fedreid_jax.core.compose import Algorithm
from fedreid_jax.core.types import ClientData, Tree


class Options(NamedTuple):
  """How clients are run.

  Attributes:
    seed: of the run.
    fraction: of clients that take part in a round.
    width: clients vmapped at a time on a device, 0 for all of them.
    ordered: reduce in canonical client order.
    budget: bytes of images a device may hold, 0 for no limit.
    plan_shape: `(S, B)` of the longest plan of the run.
    data_pass_batch: images of one step of a pass over all images.
  """

  seed: int
  fraction: float
  width: int
  ordered: bool
  budget: int
  plan_shape: tuple[int, int]
  data_pass_batch: int


class Executor:
  """Runs the rounds of an algorithm over a federation.

  The one stateful object of the engine: it holds images on devices and
  compiled functions. All a resume needs is in the states it is given.
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
      algorithm: what to run.
      clients: all of them, in canonical order.
      planner: `(round, client) -> Plan`.
      image_shape: `(H, W, ch)`.
      options: how.
      mesh: devices.
      public: images everybody may see, uint8 `[M, H, W, ch]`, kept on every
        device.
    """
    self._algorithm, self._clients, self._planner = algorithm, clients, planner
    self._options = options
    self._split = NamedSharding(mesh, P(placement.AXIS))
    self._whole = NamedSharding(mesh, P())
    self._public = None if public is None else self._put(public, self._whole)
    self._homes = cohort.place(clients, mesh.devices.size)
    self._shelf = image_store.Shelf(
      clients, self._homes, self._split, image_shape
    )
    self._cohort_size = len(self._draw(0))
    self._slots = cohort.num_slots(self._homes, self._cohort_size)
    size = self._homes.rows * self._shelf.image_bytes
    resident = not options.budget or size <= options.budget
    self._table = self._shelf.resident() if resident else None
    batch = options.data_pass_batch
    self._passes = functools.cache(
      lambda k: cohort.pass_plan(clients[k], options.seed, batch)
    )
    most = max(client.num_images for client in clients)
    self._pass_shape = -(-most // batch), batch
    self._run = placement.compile_rounds(
      algorithm, mesh, options.width, options.ordered
    )

  def init(
    self,
    variables: types.Flat,
    pretrained: Sequence[str] = (),
    own: Sequence[types.Flat] | None = None,
  ):
    """Returns (server state on devices, client states on the host `[N]`).

    Args:
      variables: of the model before round 0.
      pretrained: names of leaves that come from a file: what never travels
        starts from them too, not from random numbers of its client.
      own: instead, the variables that each client starts from.
    """
    init_server = jax.jit(
      self._algorithm.init_server, out_shardings=self._whole
    )
    sizes = np.asarray([c.num_images for c in self._clients], np.float32)
    server = init_server(variables, sizes, self._public)
    one = jax.jit(self._algorithm.init_client)
    loaded = {name: variables[name] for name in pretrained}
    known = own or [loaded] * len(self._clients)
    states = [
      jax.device_get(one(np.uint32(prng.client_uid(c.name)), leaves))
      for c, leaves in zip(self._clients, known, strict=True)
    ]
    return server, jax.tree.map(lambda *rows: np.stack(rows), *states)

  @property
  def grouped(self) -> bool:
    """Whether the server keeps several models."""
    return self._algorithm.grouped

  @property
  def notices(self) -> list[str]:
    """What users of the method must know."""
    components = self._algorithm.components
    return [component.notice for component in components if component.notice]

  def warnings(self, metrics: dict[str, float]) -> list[str]:
    """Returns the texts of components that find a round's metrics wrong."""
    texts = []
    for component in self._algorithm.components:
      prefix = f'{component.name}_'
      own = {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
      }
      if component.warn and own:
        texts.append(component.warn(own))
    return [text for text in texts if text]

  def put_server(self, server: types.ServerState) -> types.ServerState:
    """Puts a server state from the host on every device."""
    return self._put(server, self._whole)

  def prepare(
    self, server: types.ServerState, states: types.ClientState
  ) -> tuple[types.ServerState, dict[str, Counter]]:
    """Surveys every client before round 0, if the method asks for it.

    Args:
      server: donated if there is a survey.
      states: client states on the host, updated in place.

    Returns:
      (server with what it collected, log); the log has `up` and `down` as that
      of a round: the model goes down, statistics come up.
    """
    log = {'up': Counter(), 'down': Counter()}
    if not self._algorithm.prepares:
      return server, log
    for members in self._everyone():
      seats, work = self._orders(members, server.groups, 0)
      (uploads, rows), _ = self._local(server, states, seats, work, 0, False)
      for way, sent in self._wire(server, uploads, members, False).items():
        log[way].update(sent)
      server = self._run.collect(server, uploads)
      _keep(states, self._get(rows), seats, seats >= 0)
    return server, log

  def round(
    self, server: types.ServerState, states: types.ClientState, round_: int
  ) -> tuple[types.ServerState, dict[str, Any]]:
    """Runs one round.

    Args:
      server: donated.
      states: client states on the host, updated in place for the clients whose
        upload arrived finite.
      round_: global round.

    Returns:
      (server, log); the log has, in canonical order of the cohort, `clients`,
      `arrived`, `groups`, `weights` (or their `entropy`), then `fell_back`
      (whether weights were replaced by sizes), `metrics` (means over all
      steps), `median_loss` (over clients, of their means), both only where
      an upload arrived, `images`, and `up` and `down`, the bytes of the whole
      cohort by what travels.
    """
    drawn = self._draw(round_)
    rank = np.zeros(len(self._clients), np.int32)
    rank[drawn] = np.arange(len(drawn))
    seats, work = self._orders(drawn, server.groups, round_)
    (uploads, rows), sums = self._local(
      server, states, seats, work, round_, True
    )
    log = self._wire(server, uploads, drawn, True)
    ranks = self._put(rank[seats], self._split)
    server, said = self._run.aggregate(
      server, uploads, ranks, np.int32(round_), self._public
    )
    said = {
      k: v[: len(drawn)] if v.ndim else v.item()
      for k, v in jax.tree.map(np.asarray, said).items()
    }
    clients = np.sort(drawn)
    arrived = np.isin(seats, clients[said['arrived']])
    _keep(states, self._get(rows), seats, arrived)
    log |= _measured(self._get(sums), work.num_steps, arrived)
    log |= said | {'clients': clients, 'images': int(work.valid.sum())}
    return server, log

  def moments(
    self, models: types.Flat, groups: np.ndarray, own: types.Flat
  ) -> Layers:
    """Measures moments of batch normalisation on the images of every client.

    Images are augmented as in training, from which running moments come too:
    the weights are fitted to the moments of such images.

    Args:
      models: leaves of models, `[G, ...]`.
      groups: which of them each client measures, int32 `[N]`.
      own: leaves that differ from client to client, on the host, `[N, ...]`.

    Returns:
      Moments by layer (`core.batch_stats`), on the host, `[N, ...]`.
    """
    models = self._put(models, self._whole)
    nothing = jax.device_get(self._run.no_moments(models, own))
    num = len(self._clients)
    every = jax.tree.map(lambda x: np.stack([x] * num), nothing)
    for members in self._everyone():
      seats, work = self._orders(members, groups, 0)
      safe = np.where(seats >= 0, seats, 0)
      start = jax.tree.map(lambda x: np.stack([x] * len(seats)), nothing)  # noqa: B023
      mine = self._put({n: x[safe] for n, x in own.items()}, self._split)
      found = self._put(start, self._split)
      for table, part in self._passing(seats, work):
        found = self._run.moments(models, table, (mine, found), part)
      _keep(every, self._get(found), seats, seats >= 0)
    return every

  def _everyone(self) -> Iterator[np.ndarray]:
    """Yields all clients, as many at a time as take part in a round."""
    everyone = np.arange(len(self._clients))
    for first in range(0, len(everyone), self._cohort_size):
      yield everyone[first : first + self._cohort_size]

  def _draw(self, round_: int) -> np.ndarray:
    options = self._options
    return cohort.draw(
      options.seed, round_, len(self._clients), options.fraction
    )

  def _orders(self, members, groups, round_: int):
    seats = cohort.seat(self._homes, members, self._slots)
    return seats, cohort.work(
      self._clients,
      self._homes,
      seats,
      self._planner,
      self._options.plan_shape,
      self._passes,
      self._pass_shape,
      np.asarray(groups),
      round_,
    )

  def _local(self, server, states, seats, work, round_: int, trains: bool):
    """Returns ((uploads, client states), sums of metrics) of all places."""
    safe = np.where(seats >= 0, seats, 0)
    tree = self._put(jax.tree.map(lambda x: x[safe], states), self._split)
    orders = self._put(work, self._split)
    number = np.int32(round_)
    if self._table is not None:
      run = self._run.whole if trains else self._run.prepare
      return run(server, number, self._table, tree, orders)
    carry = self._run.begin(server, number, (), tree, orders)
    sums: dict = {}
    if trains:
      for table, segment in self._training(seats, work):
        carry, more = self._run.train(server, number, table, carry, segment)
        sums = jax.tree.map(jax.numpy.add, sums, more) if sums else more
    if self._algorithm.program.surveys:
      for read in (self._run.measure, self._run.survey):
        for table, segment in self._passing(seats, work):
          carry = read(server, number, table, carry, segment)
    end = self._run.end if trains else self._run.end_untrained
    return end(server, number, (), (carry, tree), orders), sums

  def _training(self, seats, work) -> Iterator[tuple[types.Table, types.Work]]:
    """Yields the images and orders of each segment of steps."""
    for first, table, rows, valid in self._segments(
      seats, work.rows, work.valid
    ):
      start = np.full(len(seats), first, np.int32)
      segment = work.replace(rows=rows, valid=valid, first_step=start)
      yield table, self._put(segment, self._split)

  def _passing(self, seats, work) -> Iterator[tuple[types.Table, types.Work]]:
    """Yields the images and orders of each segment of a pass."""
    if self._table is not None:
      yield self._table, self._put(work, self._split)
      return
    for first, table, rows, valid in self._segments(
      seats, work.pass_rows, work.pass_valid
    ):
      start = np.full(len(seats), first, np.int32)
      segment = work.replace(pass_rows=rows, pass_valid=valid, first_step=start)
      yield table, self._put(segment, self._split)

  def _segments(self, seats, rows: np.ndarray, valid: np.ndarray):
    """Cuts batches into segments, two of which fit the budget.

    Args:
      seats: client of each place, -1 where empty, `[places]`.
      rows: of the resident table, int32 `[places, S, B]`.
      valid: real rows, bool `[places, S, B]`; the batches of a client that has
        fewer than `S` are at the front.

    Yields:
      (first batch, table of the images, rows of that table, valid).
    """
    steps, batch = rows.shape[1:]
    step = self._slots * batch * self._shelf.image_bytes
    length = int(np.clip(self._options.budget // (2 * step), 1, steps))
    first_row = self._homes.first_row[np.maximum(seats, 0)]
    own = np.maximum(rows - first_row[:, None, None], 0)
    for first in range(0, int(valid.any(axis=2).sum(axis=1).max()), length):
      cut = np.zeros((len(seats), length, batch), np.int32)
      real = np.zeros(cut.shape, bool)
      here = slice(first, first + length)
      size = own[:, here].shape[1]
      cut[:, :size], real[:, :size] = own[:, here], valid[:, here]
      busy = np.where(real.any(axis=(1, 2)), seats, -1)
      table = self._shelf.segment(busy, cut.reshape(len(seats), -1))
      at = np.arange(cut.size, dtype=np.int32).reshape(cut.shape)
      yield first, table, at % (self._slots * length * batch), real

  def _wire(self, server, uploads, members, trains: bool) -> dict[str, Any]:
    """Returns the bytes of a round, by what travels, of all its clients.

    Without training the model comes down and nothing else, and stays there.
    """

    def size(tree, share: int = 1) -> int:
      sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)]
      return len(members) * sum(sizes) // share

    places = uploads.index.shape[0]
    groups = len(self._clients) if self._algorithm.grouped else 1
    up = {n: size(x, places) for n, x in uploads.extras.items()}
    down = {'model': size(server.shared, groups)}
    if trains:
      sent = jax.eval_shape(self._algorithm.extras, server)
      down |= {n: size(x) for n, x in sent.items()}
      up['model'] = size(uploads.shared, places)
    return {
      'up': {n: x for n, x in up.items() if x},
      'down': {n: x for n, x in down.items() if x},
    }

  def _put(self, tree: Tree, sharding: NamedSharding) -> Tree:
    def one(array):
      array = np.asarray(array)
      return jax.make_array_from_callback(
        array.shape, sharding, lambda index: array[index]
      )

    return jax.tree.map(one, tree)

  def _get(self, tree: Tree) -> Tree:
    """Brings arrays sharded over places whole to every process."""
    if jax.process_count() == 1:
      return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def _measured(sums, num_steps: np.ndarray, arrived: np.ndarray):
  """Returns the part of a round's log that says what training measured."""
  if not arrived.any():  # there is no mean of nothing
    return {'metrics': {}}
  steps = num_steps[arrived]
  means = sums['loss'][arrived] / np.maximum(steps, 1)
  return {
    'metrics': {
      k: float(v[arrived].sum() / max(steps.sum(), 1)) for k, v in sums.items()
    },
    'median_loss': float(np.median(means)),
  }


def _keep(states, rows, seats: np.ndarray, arrived: np.ndarray) -> None:
  """Writes the arrived clients' new rows into the host's states."""

  def write(old, new):
    old[seats[arrived]] = new[arrived]

  jax.tree.map(write, states, rows)
