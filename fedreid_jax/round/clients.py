"""The interface between a round and those who run its clients."""

from typing import NamedTuple, Protocol

import numpy as np

from fedreid_jax.core import types
from fedreid_jax.core.types import Array
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.cohorts import Cohort
from fedreid_jax.round.server.server_round import Received


class Kept(NamedTuple):
  """States that clients keep if the server uses their uploads.

  Attributes:
    lanes: client of each state, -1 for a state that is not written here, int32
      `[lanes]`.
    states: states on the host, `[lanes, ...]`.
  """

  lanes: np.ndarray
  states: types.ClientState


class Sent(NamedTuple):
  """The results of the clients of a round.

  Attributes:
    uploads: stacked uploads `[K, ...]`, or their sums if the method adds them.
    ranks: position of each upload in the order of sampling, int32 `[K]`.
    lanes: clients that took part, -1 for an empty lane, int32 `[lanes]`.
    num_steps: number of steps of each, int32 `[lanes]`.
    images: number of images of all steps, with repetition.
    sums: sums of metrics over the steps, by name, float32 `[lanes]`; empty if
      the clients did not train.
    kept: new states of the clients.
    upload: one upload before it is added, or its shapes, from which bytes are
      counted.
  """

  uploads: Received
  ranks: Array
  lanes: np.ndarray
  num_steps: np.ndarray
  images: int
  sums: dict[str, np.ndarray]
  kept: list[Kept]
  upload: types.Upload


class Clients(Protocol):
  """Runs the clients of a round, for example on the devices of a machine."""

  def run(
    self,
    server: types.ServerState,
    store: ClientStore,
    drawn: Cohort,
    round_: int,
    *,
    trains: bool,
  ) -> Sent:
    """Runs the local rounds of a cohort.

    Args:
      server: state of the server, of which the clients receive the shared
        parameters of their groups and the messages of the components. It stays
        as it is.
      store: states of the clients, which are read only.
      drawn: clients of the round.
      round_: number of the round, from 0.
      trains: whether the clients train; false for the data passes before round
        0.
    """
    ...
