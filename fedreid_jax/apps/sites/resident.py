"""The executor at a site: the local rounds of its one client."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.apps.sites import shapes
from fedreid_jax.apps.sites.terms import Terms
from fedreid_jax.core import prng, types
from fedreid_jax.round import simulation
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.devices import transfer
from fedreid_jax.round.devices.client_store import ClientStore
from fedreid_jax.round.local_rounds import Wave


class Resident(simulation.Executor):
  """Runs the local rounds of one client, and sends its uploads elsewhere.

  It holds the images and the compiled functions of the site between rounds.

  Attributes:
    received: shapes of what the server sends, see `shapes.broadcast`.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[types.ClientData],
    *rest: Any,
    terms: Terms,
  ):
    """Places the images of the site.

    Args:
      algorithm: a federated method.
      clients: the one of the site.
      *rest: as for `simulation.Executor`.
      terms: of the site.
    """
    # The site has the messages of the server and not its state.
    local = algorithm._replace(messages=operator.attrgetter('states'))
    super().__init__(local, clients, *rest)
    self._terms, self._sender = terms, algorithm
    self.received: dict[str, Any] = {}

  def expect(
    self, variables: types.Flat, image_shape: tuple[int, int, int]
  ) -> None:
    """Sets the shapes of what the server sends.

    Args:
      variables: of the model.
      image_shape: `(H, W, ch)`.
    """
    self.received = shapes.broadcast(
      self._sender, variables, self._terms.sites, image_shape
    )

  def first_state(
    self, variables: types.Flat, pretrained: Sequence[str]
  ) -> types.ClientState:
    """Returns the state of the client before round 0, on the host.

    Args:
      variables: of the model before round 0.
      pretrained: names of those that are read from a file.
    """
    loaded = {name: variables[name] for name in pretrained}
    uid = np.uint32(prng.client_uid(self._clients[0].name))
    init = jax.jit(self.algorithm.init_client)
    return jax.device_get(init(uid, loaded, self._seed))

  def local(
    self,
    received: dict[str, Any],
    state: types.ClientState,
    round_: int,
    trains: bool,
  ) -> tuple[types.Upload, types.ClientState, dict[str, Any], int]:
    """Runs the local part of a round.

    Args:
      received: of the server, see `shapes.broadcast`.
      state: of the client, on the host.
      round_: global round.
      trains: whether the client trains; false for the data passes before round
        0.

    Returns:
      (upload, state to keep, sums of metrics, number of images), on the host.
    """
    server = types.ServerState(
      shared={n: leaf[None] for n, leaf in received['shared'].items()},
      groups=jnp.zeros(1, jnp.int32),
      states=received['messages'],
    )
    shapes = jax.eval_shape(lambda: state)
    store = ClientStore(lambda _: state, shapes, 1)
    wave = self._wave(server.groups, round_)
    uploads, (rows, sums) = self._local.wave(
      self.put_server(server), store, wave, round_, trains
    )
    found = jax.tree.map(_first, transfer.get((uploads, rows, sums)))
    return *found, int(wave[1].valid.sum())

  def _wave(self, groups: types.Array, round_: int) -> Wave:
    """Returns the lanes and the task of a round, with the site's index."""
    ((lanes, tasks),) = self._tasks.waves(np.zeros(1, int), groups, round_)
    index = np.full(len(lanes), self._terms.number, np.int32)
    return lanes, dataclasses.replace(tasks, index=index)


def _first(leaf: np.ndarray) -> np.ndarray:
  return leaf[0]
