"""Pictures of the synthetic world, to fill miniatures of data sets with."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedreid_jax.data import synthetic

QUALITY = 95  # of JPEG files; other formats lose nothing
SHARED = 0.8  # of the infrared is brightness, as in the small worlds of configs


class Photos(NamedTuple):
  """Every person before every camera.

  Attributes:
    visible: uint8 `[persons, cameras, shots, H, W, 3]`.
    infrared: the same moments, uint8 of the same shape.
  """

  visible: np.ndarray
  infrared: np.ndarray

  @property
  def people(self) -> range:
    """Returns the numbers of all persons, from 0."""
    return range(self.visible.shape[0])

  @property
  def shots(self) -> range:
    """Returns the numbers of all shots, from 0."""
    return range(self.visible.shape[2])

  def cameras(self, most: int) -> range:
    """Returns the numbers of the first cameras, from 0."""
    return range(min(most, self.visible.shape[1]))

  def halves(self) -> tuple[range, range]:
    """Returns persons to train on and persons to test on."""
    half = len(self.people) // 2
    return self.people[:half], self.people[half:]


def render(
  identities: int,
  *,
  cameras: int = 15,
  shots: int = 2,
  height: int = 128,
  width: int = 64,
  seed: int = 0,
) -> Photos:
  """Renders persons before cameras, in both modalities.

  Raises:
    ConfigError: for a count below one.
  """
  views = [
    synthetic.generate(
      0,
      identities,
      cameras,
      shots,
      height=height,
      width=width,
      seed=seed,
      modality=modality,
      shared=SHARED,
    ).images.reshape(identities, cameras, shots, height, width, 3)
    for modality in synthetic.MODALITIES
  ]
  return Photos(*views)


def save(root: Path, name: str, pixels: np.ndarray) -> None:
  """Writes an image in the format its name says."""
  path = root / name
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(pixels).save(path, quality=QUALITY)


def write_text(root: Path, name: str, lines: list[str]) -> None:
  """Writes a list file, a line an entry."""
  path = root / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')
