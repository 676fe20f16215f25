"""The tasks of the clients of a cohort."""

import functools
from collections.abc import Sequence

import numpy as np

from fedreid_jax.core import types
from fedreid_jax.core.types import ClientData
from fedreid_jax.round import cohort
from fedreid_jax.round.cohorts import Cohort
from fedreid_jax.round.settings import SimulationOptions


class CohortTasks:
  """Makes the tasks of clients."""

  def __init__(
    self,
    clients: Sequence[ClientData],
    placement: cohort.Placement,
    planner: cohort.Planner,
    options: SimulationOptions,
  ):
    """Prepares the tasks of a federation.

    Args:
      placement: rows of the clients' images in the tables of their devices.
      planner: `(round, client) -> Plan`.
    """
    self._clients, self._placement = clients, placement
    self._options, self._planner = options, planner
    batch = options.data_pass_batch

    def passes(client: int, modality: int | None = None) -> types.Plan:
      return cohort.pass_plan(clients[client], options.seed, batch, modality)

    # The pass of a client is the same in every round.
    self._passes = functools.cache(passes)
    most = max(client.num_images for client in clients)
    self._pass_shape = -(-most // batch), batch

  def of(
    self,
    lanes: np.ndarray,
    drawn: Cohort,
    groups: np.ndarray,
    round_: int,
    modality: int | None = None,
  ) -> types.ClientTask:
    """Returns the tasks of some clients of a cohort, `[lanes, ...]`.

    Args:
      lanes: client of each lane, -1 if empty, `[lanes]`.
      groups: group of every client, int32 `[N]`.
      modality: modality of the images in data passes, None for all.
    """
    return cohort.make_tasks(
      self._clients,
      self._placement,
      lanes,
      self._planner,
      self._options.plan_shape,
      functools.partial(self._passes, modality=modality),
      self._pass_shape,
      groups,
      drawn.clients,
      drawn.staleness,
      round_,
      self._options.seed,
      self._options.secret,
    )
