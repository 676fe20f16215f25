"""Rounds of FedPav on made-up clients of random images, and image files."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DIFFERENT = 256  # number of rendered images, which the files repeat


class Rounds(NamedTuple):
  """The parts of rounds of FedPav.

  Attributes:
    executor: runs rounds.
    model: the network.
    variables: before the first round.
    names: of the clients.
  """

  executor: Any
  model: Any
  variables: Any
  names: list[str]


def clients(
  number: int, images: int, shape: tuple[int, int, int], identities: int
) -> list[Any]:
  """Returns clients that all have the same images.

  Args:
    number: of clients.
    images: of a client.
    shape: `(H, W, ch)` of an image.
    identities: of a client.
  """
  import fedreid_jax as fr

  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (images, *shape), dtype=np.uint8)
  labels = np.arange(images) % identities
  return [fr.client_data(f'c{k:05}', pixels, labels) for k in range(number)]


def rounds(
  config: Any, clients: Sequence[Any], devices: int | None = None
) -> Rounds:
  """Builds the executor of rounds, and the network with its variables.

  Args:
    config: with the fields of a recipe.
    clients: of the rounds.
    devices: of the mesh, by default all.
  """
  import jax

  from fedreid_jax import algorithms
  from fedreid_jax.config import validation
  from fedreid_jax.data import arrays, augment
  from fedreid_jax.round import compose, placement
  from fedreid_jax.training import build, engine

  config = validation.validate(config)
  mean, std = config.data.mean, config.data.std
  federation = arrays.federation(clients, None, mean, std)
  columns = max(client.num_identities for client in federation.clients)
  shape = federation.image_shape
  model = build.network(config, columns, shape)
  executor = engine.make_rounds(
    config,
    federation,
    model,
    compose.load(('fedpav',), {}, algorithms),
    augment.make(config.augment, mean, std),
    placement.make_mesh(devices),
  )
  variables = jax.jit(model.init)(jax.random.key(0))
  names = [client.name for client in federation.clients]
  return Rounds(executor, model, variables, names)


class Timed:
  """Runs the rounds one after another and measures each.

  Attributes:
    server: its state after the rounds so far.
    states: of the clients.
    number: rounds so far.
  """

  def __init__(self, executor: Any, server: Any, states: Any):
    """Starts with the states before the first round."""
    self.executor, self.server, self.states = executor, server, states
    self.number = 0

  def __call__(self) -> tuple[int, float]:
    """Runs a round; returns its images and seconds."""
    import jax

    start = time.perf_counter()
    self.server, log = self.executor.round(
      self.server, self.states, self.number
    )
    jax.block_until_ready(self.server)
    self.number += 1
    return log['images'], time.perf_counter() - start


def files(folder: Path, number: int) -> list[str]:
  """Writes JPEG files of rendered persons, 128x64, and returns their names."""
  from PIL import Image

  from fedreid_jax.data.synthetic import photographs, versions

  sample = photographs.generate(
    0, 16, 4, 4, height=128, width=64, source=versions.FIRST
  )
  names = [f'{k:06d}.jpg' for k in range(number)]
  for name, pixels in zip(names, sample.images, strict=False):
    Image.fromarray(pixels).save(folder / name, quality=90)
  for k in range(min(DIFFERENT, number), number):
    shutil.copyfile(folder / names[k % DIFFERENT], folder / names[k])
  return names
