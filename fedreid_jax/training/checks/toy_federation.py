"""A tiny federation of random images.

The checks of components (`contract`) and the tests run rounds on it within
seconds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import algorithms
from fedreid_jax.config import schema
from fedreid_jax.core import types
from fedreid_jax.data import augment
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.method.component import Component
from fedreid_jax.models import networks
from fedreid_jax.round import compose, simulation
from fedreid_jax.round.devices import placement
from fedreid_jax.training import engine

IMAGE_SHAPE = (8, 8, 1)
SIZES = {'ash': 9, 'birch': 14, 'cedar': 5, 'dogwood': 11}
FRACTION = 0.75  # three of four clients
Components = tuple[Component, ...]


class Rounds(NamedTuple):
  """One round of a method, then two rounds from the same start.

  Attributes:
    executor: of the rounds.
    variables: of the model before them.
    first: server, client states and logs after one round.
    second: the same after two rounds.
    traces: number of traces of the training function after the first round,
      and at the end.
  """

  executor: simulation.Executor
  variables: types.Flat
  first: tuple
  second: tuple
  traces: tuple[int, int]


def toy_client(name: str, num: int, identities: int = 3) -> types.ClientData:
  """Returns a client of random images, `num` of `identities` persons."""
  rng = np.random.default_rng(len(name) * 1000 + num)
  images = rng.integers(0, 256, (num, *IMAGE_SHAPE), dtype=np.uint8)
  labels = (np.arange(num) % identities).astype(np.int32)
  cameras = (np.arange(num) % 2).astype(np.int32)
  return types.ClientData(
    name,
    lambda: images,
    labels,
    cameras,
    np.zeros(num, np.int32),
    int(labels.max()) + 1,
  )


def toy_clients() -> tuple[types.ClientData, ...]:
  """Returns four clients of different sizes, one below two batches."""
  return tuple(toy_client(name, num) for name, num in SIZES.items())


def toy_images(name: str, num: int, identities: int = 3) -> Images:
  """Returns images that no client has."""
  client = toy_client(name, num, identities)
  return Images(
    name, client.images, client.labels, client.cameras, client.modalities
  )


def toy_config() -> Any:
  """Returns a configuration of a tiny convnet on 8x8 images."""
  config = schema.default()
  config.model.name = 'convnet'
  config.model.features = (4, 8)
  config.local.batch, config.local.data_pass_batch = 4, 4
  config.local.identities = 2
  config.augment.pad = 1
  config.data.mean, config.data.std = (0.5,), (0.25,)
  config.data.channels = 'grey'
  return config


def make_executor(
  config,
  clients: tuple[types.ClientData, ...],
  components: Components,
  devices: int = 1,
  traces: list | None = None,
) -> tuple[simulation.Executor, types.Flat, types.Model]:
  """Returns (executor, variables, model) of a toy federation.

  Args:
    config: toy configuration.
    clients: in canonical order.
    components: of the method.
    devices: number of devices.
    traces: list to which every trace of the training transform adds an element.
  """
  model = networks.wrap(
    networks.build(config.model, max(c.num_identities for c in clients)),
    IMAGE_SHAPE,
  )
  transforms = augment.make(config.augment, config.data.mean, config.data.std)

  # JAX runs Python code only while it traces, which makes traces countable.
  def train(key, images, modalities=None):
    if traces is not None:
      traces.append(1)
    return transforms.train(key, images, modalities)

  federation = Federation(
    clients,
    (),
    IMAGE_SHAPE,
    config.data.mean,
    config.data.std,
    'toy',
    toy_images('public', 40),
  )
  executor = engine.make_executor(
    config,
    federation,
    model,
    components,
    transforms._replace(train=train),
    placement.make_mesh(devices),
  )
  return executor, jax.jit(model.init)(jax.random.key(config.seed)), model


def run(
  executor: simulation.Executor, variables: types.Flat, rounds: int
) -> tuple:
  """Runs rounds; returns (server on the host, client states, logs)."""
  server, store = executor.init(variables)
  server, _ = executor.prepare(server, store)
  logs = []
  for round_ in range(rounds):
    server, log = executor.round(server, store, round_)
    logs.append(log)
  return jax.device_get(server), store.stacked(), logs


def method(name: str, beside: Sequence[str] = ()) -> Components:
  """Returns a component as the last of a method.

  Args:
    name: of the component.
    beside: names of the components before it; if empty, FedPav unless the
      component itself selects the shared parameters.
  """
  (component,) = compose.load((name,), {}, algorithms)
  if not beside and component.shared is not None:
    return (component,)
  return compose.load((*(beside or ('fedpav',)), name), {}, algorithms)


def run_twice(config, clients, components: Components) -> Rounds:
  """Runs one round and then two on three of four clients."""
  config.fraction = FRACTION
  traces: list[int] = []
  executor, variables, _ = make_executor(
    config, clients, components, traces=traces
  )
  first = run(executor, variables, 1)
  after_one = len(traces)
  second = run(executor, variables, 2)
  return Rounds(executor, variables, first, second, (after_one, len(traces)))
