"""Random patterns as images: a person is a grid of colours.

Every identity of a domain has a grid of random colours. Its images are the grid
under the light of a camera, with noise. A domain is any name; the name and
`data.world_seed` determine its images.
"""

import dataclasses
import functools
import zlib
from typing import Annotated

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.data import federation
from fedreid_jax.data.federation import Images, Source

GRID = (4, 2)  # colours of a person, rows and columns
DOMAINS = ('north', 'south')  # without data.sources


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Size and difficulty of the domains."""

  persons: Annotated[int, Range(2), 'identities of a domain'] = 8
  cameras: Annotated[int, Range(2), 'of a domain'] = 2
  shots: Annotated[int, Range(1), 'images of a person from a camera'] = 3
  noise: Annotated[float, Range(0, 1), 'deviation of the noise'] = 0.1


def load(config, clients: bool, options: Options = Options()) -> Source:
  """Draws the domains of a configuration, each when it is needed.

  Args:
    config: `config.data`.
    clients: whether to include the training domains.
    options: fields of the group `source`.

  Raises:
    ConfigError: for classification, since identities differ by domain.
    DataError: for a domain that is both training and test domain.
  """
  if config.task != 'retrieval':
    raise errors.ConfigError(
      'patterns of a target have other identities', 'data.task', 'retrieval'
    )
  names = tuple(config.sources) or DOMAINS
  federation.check_disjoint(names, config.targets)
  targets = []
  for name in config.targets:
    images = _images(config, options, name)
    targets.append(federation.split_target(images, images.cameras == 0))
  shape = (config.height, config.width, config.channels, config.world_seed)
  public = bool(config.public) and clients
  return Source(
    tuple(_images(config, options, name) for name in names if clients),
    tuple(targets),
    repr((names, tuple(config.targets), config.public, shape, options)),
    _images(config, options, config.public) if public else None,
  )


def _images(config, options: Options, name: str) -> Images:
  """Returns the images of a domain in the order person, camera, shot."""
  size = (options.persons, options.cameras, options.shots)
  persons, cameras, _ = (
    axis.reshape(-1).astype(np.int32) for axis in np.indices(size)
  )

  @functools.cache
  def draw() -> np.ndarray:
    rng = np.random.default_rng((zlib.crc32(name.encode()), config.world_seed))
    grids = rng.uniform(size=(options.persons, *GRID, 3))
    light = rng.uniform(0.7, 1.0, (options.cameras, 1, 1, 3))
    rows = np.arange(config.height) * GRID[0] // config.height
    columns = np.arange(config.width) * GRID[1] // config.width
    clean = grids[:, rows][:, :, columns][persons] * light[cameras]
    noisy = clean + options.noise * rng.normal(size=clean.shape)
    images = (255 * noisy.clip(0, 1)).astype(np.uint8)
    return images if config.channels == 'rgb' else images[..., 1:2]

  return Images(name, draw, persons, cameras, np.zeros_like(persons))
