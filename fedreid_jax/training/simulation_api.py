"""Federated learning on clients of arrays, from Python and step by step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from fedreid_jax.config import load, schema, validation
from fedreid_jax.core import types
from fedreid_jax.data import arrays, augment
from fedreid_jax.method.component import Component
from fedreid_jax.method.optimizers import Optimizer
from fedreid_jax.models import networks
from fedreid_jax.round import placement
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.clients import Clients
from fedreid_jax.training import engine, named_models
from fedreid_jax.training.files import run_secret


class SimulationState(NamedTuple):
  """State of a simulation between two rounds.

  Attributes:
    server: state of the server, on the devices.
    clients: states of the clients; `clients.stacked()` returns all of them,
      `[N, ...]`.
    round: number of rounds that are done.
  """

  server: types.ServerState
  clients: ClientStore
  round: int


class Simulation:
  """Federated learning without a work directory and without a recipe.

  >>> import jax, numpy as np
  >>> import fedreid_jax as fr
  >>> from fedreid_jax.algorithms import fedpav
  >>> from fedreid_jax.models import convnet, reid
  >>> rng = np.random.default_rng(0)
  >>> clients = [
  ...   fr.client_data(
  ...     name, rng.integers(0, 256, (8, 16, 8, 3), np.uint8), np.arange(8) % 4
  ...   )
  ...   for name in ('a', 'b')
  ... ]
  >>> simulation = fr.Simulation(
  ...   lambda identities: reid.ReIDNet(convnet.ConvNet((4, 8)), identities),
  ...   [fedpav.make()],
  ...   clients,
  ...   fields={'local.batch': 4},
  ... )
  >>> state = simulation.init(jax.random.key(0))
  >>> state, log = simulation.round(state)
  >>> state.round, log['weights'].tolist()
  (1, [0.5, 0.5])
  """

  def __init__(
    self,
    model_fn: Callable[[int], nn.Module],
    components: Sequence[Component],
    clients: Sequence[types.ClientData],
    *,
    optimizer: Optimizer | None = None,
    fields: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
    public: np.ndarray | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    runner: Callable[[Clients], Clients] | None = None,
  ):
    """Places clients on devices; their images are read in the first round.

    Args:
      model_fn: `(C) -> Flax module` with the interface of
        `fedreid_jax.models.reid.ReIDNet`; a component that changes the network
        needs a `ReIDNet`.
      components: of the method, in order, for example `[fedpav.make()]`.
      clients: with unique names and images of one shape.
      optimizer: of the clients, by default the one of the fields `optim.*`.
      fields: fields of the groups `local`, `optim`, `loss`, `augment`,
        `execution` and `privacy` by their full names, and `seed`, `rounds` (the
        length of the schedule), `fraction` and `batch_stats_rule`.
        `fedreid list fields` has them with their defaults.
      mesh: with the axis `clients`, by default of the first device.
      public: images that the server may use, uint8 `[M, H, W, ch]`.
      mean: of each channel of normalised images, by default 0.5.
      std: of each channel, by default 0.25.
      runner: receives the runner of the clients, a
        `fedreid_jax.round.clients.Clients`, and returns the one to use, by
        default the same.

    Raises:
      ConfigError: for a field that does not exist or a value that cannot be
        used, or components that cannot be composed.
      DataError: for clients that the method cannot work with.
    """
    config = validation.validate(load.change(schema.default(), fields or {}))
    federation = arrays.federation(clients, public, mean, std)
    columns = max(client.num_identities for client in federation.clients)
    changes = [c.network for c in components if c.network]
    module = networks.changed(model_fn(columns), changes)
    self._model = networks.wrap(module, federation.image_shape)
    self._rounds = engine.make_rounds(
      config,
      federation,
      self._model,
      tuple(components),
      augment.make(config.augment, federation.mean, federation.std),
      mesh or placement.make_mesh(1),
      optimizer=optimizer,
      secret=run_secret.make(config, federation, tuple(components), None),
      runner=runner,
    )
    self.names = tuple(client.name for client in federation.clients)

  def init(self, key: types.Array) -> SimulationState:
    """Returns the state before the first round."""
    variables = jax.jit(self._model.init)(key)
    server, clients = self._rounds.init(variables)
    server, _ = self._rounds.prepare(server, clients)
    return SimulationState(server, clients, 0)

  def round(
    self, state: SimulationState
  ) -> tuple[SimulationState, dict[str, Any]]:
    """Runs one round.

    Args:
      state: of the simulation; its server state is donated and must not be used
        again.

    Returns:
      (state, log); see `round.rounds.Rounds.round` for the log.
    """
    # A round changes a store in place; `state` keeps its own clients.
    clients = state.clients.copy()
    server, log = self._rounds.round(state.server, clients, state.round)
    return SimulationState(server, clients, state.round + 1), log

  def models(self, state: SimulationState) -> dict[str, types.Flat]:
    """Returns the variables of the models by their names in `results.json`.

    Returns:
      'global', 'cluster:GROUP' or 'client:NAME' to a flat dict of variables.
    """
    found = named_models.of(
      jax.device_get(state.server.shared),
      state.clients.personal,
      np.asarray(state.server.groups),
      self.names,
    )
    return dict(found)

  def embed(self, variables: types.Flat, images: types.Array) -> types.Array:
    """Returns embeddings of normalised images in evaluation mode, `[B, D]`.

    Args:
      images: float32 `[B, H, W, ch]`.
    """
    outputs, _ = self._model.apply(variables, images, train=False)
    return outputs.embedding
