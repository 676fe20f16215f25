"""Simulated clients, with one code path for any number of devices.

Images stay on the device as uint8 if they fit. If they exceed a budget, the
round is cut into segments of steps, and the images of the next segment are
transferred while the current one is computed. Only the states of the cohort are
read and transferred to devices, so that neither the memory of the devices nor
the work of the host in a round grows with the number of clients.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax import errors
from fedreid_jax.core import trees, types
from fedreid_jax.core.types import ClientData, Flat
from fedreid_jax.method.batch_stats import Layers
from fedreid_jax.round import cohort, compiled, placement, segments, shapes
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.clients import Kept, Sent
from fedreid_jax.round.cohort_tasks import CohortTasks
from fedreid_jax.round.cohorts import Cohort, Cohorts
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.local_rounds import LocalRounds, Wave
from fedreid_jax.round.server.fold import Folded
from fedreid_jax.round.settings import SimulationOptions


class Places(NamedTuple):
  """The places of clients and their images on devices.

  Attributes:
    lanes: lanes of the clients of a round.
    tasks: tasks of the clients.
    segments: images of the clients.
    resident: whether devices keep the images of all clients.
    split: sharding over lanes.
  """

  lanes: cohort.Lanes
  tasks: CohortTasks
  segments: segments.Segments
  resident: bool
  split: NamedSharding


def place(
  clients: Sequence[ClientData],
  planner: cohort.Planner,
  image_shape: tuple[int, int, int],
  size: int,
  options: SimulationOptions,
  mesh: Mesh,
  adds: bool,
) -> Places:
  """Places clients on devices; their images are read later.

  Args:
    size: largest number of clients of a round, `K`.
    adds: whether uploads are added, so that a round may have several waves.
  """
  split = NamedSharding(mesh, P(placement.AXIS))
  placed = cohort.place(clients, mesh.devices.size)
  store = segments.ImageStore(clients, placed, split, image_shape, kept=size)
  # With resident images a client runs on the device that has them. A small
  # cohort of many clients would not be distributed evenly then.
  at_home = size == len(clients) or mesh.devices.size == 1
  resident = at_home and store.fits(options.budget)
  # A client has its parameters, their gradients and momenta, a state that may
  # be as large, and its images unless these stay on the devices.
  each = 4 * options.uploads.model_bytes
  if not resident:
    each += int(np.prod(options.plan_shape)) * store.image_bytes
  lanes = cohort.Lanes(
    placed,
    size,
    resident,
    [device.process_index for device in mesh.devices.flat],
    planner.num_steps,
    cohort.most_lanes(options.budget if adds else 0, each),
  )
  images = segments.Segments(
    store,
    placed,
    lanes.per_device,
    options.budget,
    resident,
    functools.partial(placement.put, sharding=split),
  )
  tasks = CohortTasks(clients, placed, planner, options)
  return Places(lanes, tasks, images, resident, split)


class Simulated:
  """Runs the clients of a round on the devices of a mesh.

  Attributes:
    algorithm: the federated method.
    local: the local part of a round.
    resident: whether devices keep the images of all clients.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[ClientData],
    planner: cohort.Planner,
    image_shape: tuple[int, int, int],
    cohorts: Cohorts,
    options: SimulationOptions,
    mesh: Mesh,
  ):
    """Places the clients; their images are read later."""
    adds = algorithm.fold is not None
    self.algorithm, self._cohorts = algorithm, cohorts
    self._shape = options.plan_shape, options.data_pass_batch
    self._uploads: dict[bool, types.Upload] = {}
    self._lanes, self._tasks, images, self.resident, split = place(
      clients, planner, image_shape, cohorts.size, options, mesh, adds
    )
    self._whole = NamedSharding(mesh, P())
    run = compiled.of_clients(algorithm, mesh, options.width)
    passes = algorithm.program.runs_data_pass
    self.local = LocalRounds(run, images, split, passes)

  def describe_images(self) -> str:
    """Returns a line for users that says where the clients' images are."""
    if self.resident:
      return 'images: all of them stay on the devices'
    lanes = self._lanes.per_device
    return (
      'images: those of a round are copied to the devices while it is '
      f'computed, for at most {lanes} clients at a time on each'
    )

  def read_images(self) -> None:
    """Reads the images that stay on the devices, unless they have been read."""
    _ = self.local.segments.resident

  def is_here(self, clients: np.ndarray) -> np.ndarray:
    """Returns whether each client runs on a device of this process."""
    return self._lanes.owners(clients) == jax.process_index()

  def waves(
    self,
    drawn: Cohort,
    groups: np.ndarray,
    round_: int,
    modality: int | None = None,
    most: int | None = None,
  ) -> list[Wave]:
    """Returns the lanes and the tasks of each wave of a round.

    Args:
      groups: group of every client, int32 `[N]`.
      modality: modality of the images in data passes, None for all.
      most: largest number of waves to return, None for all.
    """
    return [
      (lanes, self._tasks.of(lanes, drawn, groups, round_, modality))
      for lanes in self._lanes.waves(drawn.clients)[:most]
    ]

  def run(
    self,
    server: types.ServerState,
    store: ClientStore,
    drawn: Cohort,
    round_: int,
    *,
    trains: bool,
  ) -> Sent:
    """Runs the local rounds of a cohort, one wave after another."""
    groups = np.asarray(server.groups)
    waves = self.waves(drawn, groups, round_)
    runs = (
      (wave, *self._wave(server, store, wave, round_, trains)) for wave in waves
    )
    # Images of the next round are read while the last wave is computed.
    ahead = functools.partial(self._read_ahead, round_, groups, trains)
    if len(waves) == 1:
      ((_, uploads, (rows, sums)),) = runs
      ahead()
      ranks = placement.put(waves[0][1].drawn, self.local.split)
      states, sums = [self._fetch(store, rows)], placement.get(sums)
    else:
      uploads, ranks, states, sums = self._added(runs, store, ahead)
    lanes = np.concatenate([lanes for lanes, _ in waves])
    return Sent(
      uploads,
      ranks,
      lanes,
      np.concatenate([tasks.num_steps for _, tasks in waves]),
      sum(int(tasks.valid.sum()) for _, tasks in waves),
      sums,
      [
        Kept(self._written(store, lanes), rows)
        for (lanes, _), rows in zip(waves, states, strict=True)
      ],
      self.upload(server, trains),
    )

  def upload(self, server: types.ServerState, trains: bool) -> types.Upload:
    """Returns the shapes of one upload; they are the same in every round."""
    if trains not in self._uploads:
      self._uploads[trains] = shapes.upload(
        self.algorithm, server, *self._shape, trains
      )
    return self._uploads[trains]

  def _added(
    self,
    runs: Iterator[tuple[Wave, Folded, tuple[Any, Any]]],
    store: ClientStore,
    ahead: Callable[[], None],
  ) -> tuple[Folded, Any, list[Any], dict[str, np.ndarray]]:
    """Adds the sums of waves, which begin to run when they are iterated.

    Returns:
      (sums, positions in the order of sampling, client states of each wave on
      the host, sums of metrics of all lanes on the host).
    """
    found: list[tuple[Any, Any, dict[str, np.ndarray]]] = []

    def keep(folded: Folded, rows: Any, sums: Any) -> None:
      parts = folded.uploads, folded.raw, folded.far
      kept, counted = placement.get((parts, sums))
      found.append((kept, self._fetch(store, rows), counted))

    wave, last, (rows, sums) = next(runs)
    tasks, totals = [wave[1]], last.totals
    for wave, more, (later, counted) in runs:
      totals = self.local.run.add(totals, more.totals)
      # To copy the rows of the last wave means to wait for them. By now the
      # devices have the next wave to compute.
      keep(last, rows, sums)
      tasks.append(wave[1])
      last, rows, sums = more, later, counted
    ahead()
    keep(last, rows, sums)
    joined = compiled.join([kept for kept, _, _ in found], self._cohorts.size)
    ranks = compiled.ranks(np.asarray(joined[0].index), tasks)
    columns = [counted for _, _, counted in found]
    sums = {n: np.concatenate([c[n] for c in columns]) for n in columns[0]}
    (kept, raw, far), ranks = placement.put((joined, ranks), self._whole)
    folded = Folded(kept, raw, far, totals)
    return folded, ranks, [rows for _, rows, _ in found], sums

  def _wave(
    self,
    server: types.ServerState,
    store: ClientStore,
    wave: Wave,
    round_: int,
    trains: bool,
  ) -> tuple[Any, tuple[Any, Any]]:
    lanes, _ = wave
    here = (
      placement.is_here(self.local.split, len(lanes)) if store.local else None
    )
    states = store.read(lanes, here)
    return self.local.wave(server, states, wave, round_, trains)

  def _fetch(self, store: ClientStore, rows: Any) -> Any:
    """Returns the new client states of all lanes on the host.

    If every process keeps the states of its clients only, the lanes of other
    processes are zeros.
    """
    return placement.get_here(rows) if store.local else placement.get(rows)

  def _written(self, store: ClientStore, lanes: np.ndarray) -> np.ndarray:
    """Returns the lanes whose states this process writes, -1 for others."""
    if not store.local:
      return lanes
    return np.where(placement.is_here(self.local.split, len(lanes)), lanes, -1)

  def _read_ahead(self, round_: int, groups: np.ndarray, trains: bool) -> None:
    if self.local.segments.resident is not None or not trains:
      return
    # The next round meets an error of its wave again. It must not end this one.
    with contextlib.suppress(errors.FedReIDError):
      if drawn := self._cohorts.next(round_):
        (wave,) = self.waves(drawn, groups, round_ + 1, most=1)
        self.local.segments.read_ahead(*wave)

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
    run = self.local.run
    models = placement.put(models, self._whole)
    first = own(np.arange(1)) if own else {}
    nothing = jax.device_get(run.no_moments(models, first))
    for drawn in self._cohorts.everyone():
      everything = own(drawn.clients) if own else {}
      found: dict[int, Layers] = {}
      for lanes, tasks in self.waves(drawn, groups, 0, modality):
        # Empty lanes, -1, get the first row, and have no images.
        mine = trees.rows(everything, np.searchsorted(drawn.clients, lanes))
        mine = placement.put(mine, self.local.split)
        layers = placement.put(
          placement.copies(nothing, len(lanes)), self.local.split
        )
        for table, part in self.local.segments.passing(lanes, tasks):
          layers = run.moments(models, table, (mine, layers), part)
        layers = placement.get(layers)
        for lane in np.flatnonzero(lanes >= 0):
          found[int(lanes[lane])] = trees.rows(layers, int(lane))
      for k in drawn.clients:
        yield found[int(k)]
