"""Federated learning on clients of arrays, from Python and step by step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.config import load, schema
from fedreid_jax.core import placement, types
from fedreid_jax.core.component import Component
from fedreid_jax.core.optimizers import Optimizer
from fedreid_jax.data import augment
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.models import functional
from fedreid_jax.training import build


class SimulationState(NamedTuple):
  """State of a simulation between two rounds.

  Attributes:
    server: of the server, on the devices.
    clients: of all clients, on the host, `[N, ...]`.
    round: number of rounds that are done.
  """

  server: types.ServerState
  clients: types.ClientState
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
  ):
    """Places clients and their images on devices.

    Args:
      model_fn: `(C) -> Flax module` with the interface of
        `fedreid_jax.models.reid.ReIDNet`.
      components: of the method, in order, such as `[fedpav.make()]`.
      clients: with unique names and images of one shape.
      optimizer: of the clients, by default that of the fields `optim.*`.
      fields: fields of the groups `local`, `optim`, `loss`, `augment` and
        `execution` by their full names, and `seed`, `rounds` (the length of the
        schedule), `fraction` and `batch_stats_rule`. docs/options.md lists
        them with their defaults.
      mesh: with the axis `clients`, by default of the first device.
      public: images that the server may use, uint8 `[M, H, W, ch]`.
      mean: of each channel of normalised images, by default 0.5.
      std: of each channel, by default 0.25.

    Raises:
      ConfigError: for a field that does not exist or a value that cannot be
        used, or components that cannot be composed.
      DataError: for clients that the method cannot work with.
    """
    config = load.change(schema.default(), fields or {})
    ordered = tuple(sorted(clients, key=lambda client: client.name))
    names = [client.name for client in ordered]
    if not names or len({*names}) < len(names):
      raise errors.DataError(
        f'{len(names)} clients with {len({*names})} names',
        'clients',
        'give one or more, each with its own name',
      )
    shape = ordered[0].images().shape[1:]
    channels = shape[-1]
    federation = Federation(
      clients=ordered,
      targets=(),
      image_shape=shape,
      mean=tuple(mean or [0.5] * channels),
      std=tuple(std or [0.25] * channels),
      digest='',
      public=None if public is None else _public(public),
    )
    columns = max(client.num_identities for client in ordered)
    self._model = functional.wrap(model_fn(columns), shape)
    self._executor = build.make_executor(
      config,
      federation,
      self._model,
      tuple(components),
      augment.make(config.augment, federation.mean, federation.std),
      mesh or placement.make_mesh(1),
      optimizer=optimizer,
    )
    self.names = tuple(names)

  def init(self, key: types.Array) -> SimulationState:
    """Returns the state before the first round.

    Args:
      key: typed PRNG key of the initial model.
    """
    variables = jax.jit(self._model.init)(key)
    server, clients = self._executor.init(variables)
    server, _ = self._executor.prepare(server, clients)
    return SimulationState(server, clients, 0)

  def round(
    self, state: SimulationState
  ) -> tuple[SimulationState, dict[str, Any]]:
    """Runs one round.

    Args:
      state: of the simulation; its server state is donated and must not be used
        again.

    Returns:
      (state, log); the log is that of `core.simulation.Executor.round`.
    """
    clients = jax.tree.map(np.copy, state.clients)
    server, log = self._executor.round(state.server, clients, state.round)
    return SimulationState(server, clients, state.round + 1), log

  def models(self, state: SimulationState) -> dict[str, types.Flat]:
    """Returns the variables of the models by name, as `results.json` has them.

    Args:
      state: of the simulation.

    Returns:
      'global', 'cluster:GROUP' or 'client:NAME' to a flat dict of variables.
    """
    return build.named_models(
      jax.device_get(state.server.shared),
      state.clients.personal,
      np.asarray(state.server.groups),
      self.names,
    )

  def embed(self, variables: types.Flat, images: types.Array) -> types.Array:
    """Returns embeddings of normalised images in evaluation mode, `[B, D]`.

    Args:
      variables: of one model.
      images: float32 `[B, H, W, ch]`.
    """
    outputs, _ = self._model.apply(variables, images, train=False)
    return outputs.embedding


def _public(images: np.ndarray) -> Images:
  column = np.zeros(len(images), np.int32)
  return Images('public', lambda: images, column, column, column)


def client_data(
  name: str,
  images: np.ndarray,
  labels: Sequence[int] | np.ndarray,
  cameras: Sequence[int] | np.ndarray | None = None,
  modalities: Sequence[int] | np.ndarray | None = None,
  num_identities: int | None = None,
) -> types.ClientData:
  """Returns a client of arrays.

  >>> import numpy as np
  >>> import fedreid_jax as fr
  >>> images = np.zeros((3, 16, 8, 3), np.uint8)
  >>> client = fr.client_data('entrance', images, [0, 1, 1])
  >>> client.num_images, client.num_identities
  (3, 2)

  Args:
    name: unique; its hash is the root of the client's random numbers.
    images: uint8 `[M, H, W, ch]`.
    labels: identities, dense from 0, `[M]`.
    cameras: `[M]`, by default 0.
    modalities: 0 visible, 1 infrared, `[M]`, by default 0.
    num_identities: `C`, by default the largest label plus one.

  Raises:
    DataError: for arrays that do not belong together.
  """
  labels = np.asarray(labels, np.int32)
  size = len(images)
  columns = {
    'labels': labels,
    'cameras': np.zeros(size, np.int32) if cameras is None else cameras,
    'modalities': np.zeros(size, np.int32)
    if modalities is None
    else modalities,
  }
  columns = {n: np.asarray(x, np.int32) for n, x in columns.items()}
  wrong = [n for n, x in columns.items() if x.shape != (size,) or x.min() < 0]
  if not size or images.ndim != 4 or images.dtype != np.uint8 or wrong:
    raise errors.DataError(
      f'images {images.dtype}{list(images.shape)} with '
      + ', '.join(f'{n} {list(x.shape)}' for n, x in columns.items()),
      f'client {name}',
      'give uint8 [M, H, W, ch] and numbers from 0 of shape [M]',
    )
  return types.ClientData(
    name=name,
    images=lambda: images,
    labels=columns['labels'],
    cameras=columns['cameras'],
    modalities=columns['modalities'],
    num_identities=num_identities or int(labels.max()) + 1,
  )
