"""The clients of each round, drawn from the seed or from simulated time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedreid_jax.round import cohort
from fedreid_jax.round.settings import SimulationOptions
from fedreid_jax.round.timetable import Round


class Cohort(NamedTuple):
  """The clients of a round.

  Attributes:
    clients: canonical indices in the order of sampling, int32 `[K]`.
    staleness: updates of the server since it sent their models, int32 `[K]`.
    timed: the round in simulated time, None if time is not simulated.
  """

  clients: np.ndarray
  staleness: np.ndarray
  timed: Round | None = None


def fresh(clients: np.ndarray) -> Cohort:
  """Returns a cohort of clients that have received the newest model."""
  return Cohort(clients, np.zeros(len(clients), np.int32))


class Cohorts:
  """Draws the cohort of every round; the draws depend on no earlier one.

  Attributes:
    size: largest number of clients of a round, `K`.
  """

  def __init__(self, num_clients: int, options: SimulationOptions):
    """Draws nothing yet."""
    self._number, self._options = num_clients, options
    self.size = options.places or cohort.size(num_clients, options.fraction)

  def everyone(self) -> Iterator[Cohort]:
    """Yields all clients in canonical order, at most `K` at a time."""
    # The lanes of a device suffice for a cohort, and not for all clients.
    number = np.arange(self._number)
    for first in range(0, len(number), self.size):
      yield fresh(number[first : first + self.size])

  def draw(self, round_: int) -> Cohort:
    """Returns the clients of a round."""
    timetable = self._options.timetable
    if timetable:
      timed = timetable.round(round_)
      return Cohort(timed.clients, timed.staleness, timed)
    return fresh(self._sample(round_))

  def first(self) -> Cohort:
    """Returns the clients of round 0, for the shapes of its programs.

    A round that Poisson sampling leaves empty has client 0 here.
    """
    drawn = self._sample(0)
    return fresh(drawn if len(drawn) else np.arange(1))

  def next(self, round_: int) -> Cohort | None:
    """Returns the clients after a round, None after the last round."""
    last = round_ + 1 >= self._options.rounds
    return None if last else self.draw(round_ + 1)

  def _sample(self, round_: int) -> np.ndarray:
    options = self._options
    number = self._number
    if options.places:
      return cohort.sample_poisson(
        options.sampling, round_, number, options.fraction, options.places
      )
    return cohort.sample_cohort(
      options.sampling, round_, number, options.fraction
    )
