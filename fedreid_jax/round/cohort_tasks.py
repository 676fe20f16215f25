"""The cohorts of a run, their lanes, and the tasks of their clients."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.core import types
from fedreid_jax.core.types import ClientData
from fedreid_jax.round import cohort
from fedreid_jax.round.cohort import Lanes
from fedreid_jax.round.local_rounds import Wave
from fedreid_jax.round.settings import SimulationOptions
from fedreid_jax.round.timetable import Round


def cohort_size(clients: int, options: SimulationOptions) -> int:
  """Returns the largest number of clients of a round, `K`."""
  return options.places or cohort.size(clients, options.fraction)


class Drawn(NamedTuple):
  """The clients of a round.

  Attributes:
    clients: in the order of sampling, `[K]`.
    waves: lanes and tasks of each wave.
    timed: the round in simulated time, None if time is not simulated.
  """

  clients: np.ndarray
  waves: list[Wave]
  timed: Round | None


class CohortTasks:
  """Draws cohorts and makes the tasks of their clients.

  Attributes:
    size: largest number of clients of a round, `K`.
    planner: `(round, client) -> Plan`.
    lanes: distribution of clients over devices.
  """

  def __init__(
    self,
    clients: Sequence[ClientData],
    placement: cohort.Placement,
    planner: cohort.Planner,
    lanes: Lanes,
    options: SimulationOptions,
  ):
    """Prepares the tasks of a federation."""
    self._clients, self._placement = clients, placement
    self._options, self.planner, self.lanes = options, planner, lanes
    self.size = cohort_size(len(clients), options)
    batch = options.data_pass_batch

    def passes(client: int, modality: int | None = None) -> types.Plan:
      return cohort.pass_plan(clients[client], options.seed, batch, modality)

    # The pass of a client is the same in every round.
    self._passes = functools.cache(passes)
    most = max(client.num_images for client in clients)
    self._pass_shape = -(-most // batch), batch

  def everyone(self) -> Iterator[np.ndarray]:
    """Yields the indices of all clients, at most `K` at a time."""
    # The lanes of a device suffice for a cohort, and not for all clients.
    number = np.arange(len(self._clients))
    for first in range(0, len(number), self.size):
      yield number[first : first + self.size]

  def first(self) -> np.ndarray:
    """Returns the clients of round 0, for the shapes of its programs.

    A round that Poisson sampling leaves empty has client 0 here.
    """
    drawn = self.sample(0)
    return drawn if len(drawn) else np.arange(1)

  def sample(self, round_: int) -> np.ndarray:
    """Returns the cohort of a round, in the order of sampling."""
    options = self._options
    number = len(self._clients)
    if options.places:
      return cohort.sample_poisson(
        options.sampling, round_, number, options.fraction, options.places
      )
    return cohort.sample_cohort(
      options.sampling, round_, number, options.fraction
    )

  def draw(self, round_: int, groups: Any, most: int | None = None) -> Drawn:
    """Returns the clients of a round.

    Args:
      most: largest number of waves to return, None for all.
    """
    timetable = self._options.timetable
    timed = timetable.round(round_) if timetable else None
    clients = timed.clients if timed else self.sample(round_)
    staleness = timed.staleness if timed else None
    waves = self.waves(clients, groups, round_, staleness=staleness, most=most)
    return Drawn(clients, waves, timed)

  def first_wave(self, round_: int, groups: Any) -> Wave | None:
    """Returns the first wave of a round, None after the last round."""
    if round_ >= self._options.rounds:
      return None
    return self.draw(round_, groups, most=1).waves[0]

  def waves(
    self,
    members: np.ndarray,
    groups: Any,
    round_: int,
    modality: int | None = None,
    staleness: np.ndarray | None = None,
    most: int | None = None,
  ) -> list[Wave]:
    """Returns the lanes and the tasks of each wave of a round.

    Args:
      members: clients in the order of sampling, `[K]`.
      modality: modality of the images in data passes, None for all.
      staleness: updates of the server since it sent the members' models, int32
        `[K]`; None for zeros.
      most: largest number of waves to return, None for all.
    """
    if staleness is None:
      staleness = np.zeros(len(members), np.int32)

    def tasks(lanes: np.ndarray) -> types.ClientTask:
      return cohort.make_tasks(
        self._clients,
        self._placement,
        lanes,
        self.planner,
        self._options.plan_shape,
        functools.partial(self._passes, modality=modality),
        self._pass_shape,
        np.asarray(groups),
        members,
        staleness,
        round_,
        self._options.seed,
        self._options.secret,
      )

    return [(lanes, tasks(lanes)) for lanes in self.lanes.waves(members)[:most]]
