"""A tiny federation and what runs it, shared by tests."""

import dataclasses
import math

import jax
import numpy as np

from fedreid_jax.config import schema
from fedreid_jax.core import contexts, placement, types
from fedreid_jax.data import augment, federation
from fedreid_jax.models import functional, networks
from fedreid_jax.training import build

IMAGE_SHAPE = (8, 8, 1)
SIZES = {'ash': 9, 'birch': 14, 'cedar': 5, 'dogwood': 11}


def toy_client(name: str, num: int, identities: int = 3) -> types.ClientData:
  """A client of random images, `num` of `identities` people."""
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


def toy_images(name: str, num: int, identities: int = 3) -> federation.Images:
  """Images that are no client's."""
  client = toy_client(name, num, identities)
  return federation.Images(
    name, client.images, client.labels, client.cameras, client.modalities
  )


def toy_public() -> federation.Images:
  """Forty images everybody may see."""
  return toy_images('public', 40)


def toy_federation(clients) -> federation.Federation:
  """Clients and one target, whose first eight images are queries."""
  target = toy_images('target', 24, 5)
  return federation.Federation(
    clients,
    (federation.split_target(target, np.arange(24) < 8),),
    IMAGE_SHAPE,
    (0.5,),
    (0.25,),
    'toy',
  )


def step(**parts) -> contexts.LossCtx:
  """A context of a step with some of its fields, None for the others."""
  names = [field.name for field in dataclasses.fields(contexts.LossCtx)]
  return contexts.LossCtx(**(dict.fromkeys(names) | parts))


def num_parameters(tree) -> int:
  """Numbers in the leaves of a tree, of arrays or of shapes."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def toy_config():
  """A configuration of a tiny convnet on 8x8 images."""
  config = schema.default()
  config.model.name = 'convnet'
  config.model.features = (4, 8)
  config.local.batch, config.local.data_pass_batch = 4, 4
  config.local.identities = 2
  config.augment.pad = 1
  config.data.mean, config.data.std = (0.5,), (0.25,)
  config.data.channels = 'grey'
  return config


def make_executor(config, clients, components, devices: int = 1, traces=None):
  """Builds (executor, variables, model) of a toy federation.

  Args:
    config: toy configuration.
    clients: canonical order.
    components: what `compose.load` returns.
    devices: simulated devices to use.
    traces: list that grows at every trace of the training view.
  """
  model = functional.wrap(
    networks.build(config.model, max(c.num_identities for c in clients)),
    IMAGE_SHAPE,
  )
  views = augment.make(config.augment, config.data.mean, config.data.std)

  def train_view(key, images, modalities=None):
    if traces is not None:
      traces.append(1)
    return views.train(key, images, modalities)

  everything = federation.Federation(
    clients,
    (),
    IMAGE_SHAPE,
    config.data.mean,
    config.data.std,
    'toy',
    toy_public(),
  )
  executor = build.make_executor(
    config,
    everything,
    model,
    components,
    views._replace(train=train_view),
    placement.make_mesh(devices),
  )
  return executor, jax.jit(model.init)(jax.random.key(config.seed)), model


def run(executor, variables, rounds: int):
  """Runs some rounds; returns (server on the host, client states, logs)."""
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  logs = []
  for round_ in range(rounds):
    server, log = executor.round(server, states, round_)
    logs.append(log)
  return jax.device_get(server), states, logs


def assert_equal_trees(a, b):
  """Fails unless two trees have the same bits."""
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close_trees(a, b, tolerance: float):
  """Fails unless each leaf is close, as a share of its largest value."""

  def check(x, y):
    scale = max(np.abs(x).max(initial=0), 1.0)
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)

  jax.tree.map(check, a, b)
