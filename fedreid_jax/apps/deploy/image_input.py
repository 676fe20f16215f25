"""The images that an exported program receives: their layout and values.

Other programs send images of a network in forms of their own. Trackers that
were written for PyTorch have channels before rows, and normalise the pixels
themselves, most of them by the mean and standard deviation of ImageNet.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, UInt8

from fedreid_jax import errors
from fedreid_jax.apps.deploy.export_choices import (
  IMAGENET,
  NCHW,
  NHWC,
  NORMALISED,
  UINT8,
  UNIT,
  VALUES,
)
from fedreid_jax.core.types import Array
from fedreid_jax.models.weights import sources
from fedreid_jax.models.weights.sources import Pixels

_IMAGENET = sources.SOURCES[sources.TORCHVISION].pixels


class ImageInput(NamedTuple):
  """The form of the input `images` of a program.

  Attributes:
    layout: 'nhwc', `[b, H, W, ch]`, or 'nchw', `[b, ch, H, W]`.
    values: 'uint8', integers 0 to 255; or float32: 'unit', 0 to 1;
      'normalised', `(x - mean) / std` of values x in 0..1 with the mean and
      standard deviation of the run; 'imagenet', the same with those of
      ImageNet, whichever the run has.
  """

  layout: str = NHWC
  values: str = UINT8

  def check(self, channels: int) -> None:
    """Raises ConfigError for images without the channels of the values."""
    if self.values == IMAGENET and channels != len(_IMAGENET.mean):
      raise errors.ConfigError(
        'ImageNet has colour images, and the run has grey ones',
        '--input=imagenet',
        f'one of {", ".join(v for v in VALUES if v != IMAGENET)}',
      )

  def struct(
    self, batch: Any, image_shape: tuple[int, int, int]
  ) -> jax.ShapeDtypeStruct:
    """Shape and type of the input for images `(H, W, ch)`."""
    shape = image_shape
    if self.layout == NCHW:
      shape = image_shape[2], *image_shape[:2]
    kind = jnp.uint8 if self.values == UINT8 else jnp.float32
    return jax.ShapeDtypeStruct((batch, *shape), kind)

  def image_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """`(H, W, ch)` of the shape of an image in the layout."""
    first, *others = shape
    return (*others, first) if self.layout == NCHW else shape  # pyright: ignore

  def arranged(self, images: Array) -> Array:
    """The input as `[b, H, W, ch]`."""
    return images if self.layout == NHWC else images.transpose(0, 2, 3, 1)

  def view(
    self, normalise: Callable[[Any], Float32[Array, 'M H W ch']]
  ) -> Callable[[Array], Float32[Array, 'M H W ch']]:
    """The function from arranged to normalised images.

    `normalise` is that of the run, of values 0 to 255.
    """
    if self.values == NORMALISED:
      return lambda images: images
    if self.values == UINT8:
      return normalise
    if self.values == UNIT:
      return lambda images: normalise(255 * images)
    mean, std = (jnp.asarray(x, jnp.float32) for x in _IMAGENET[:2])
    return lambda images: normalise(255 * (images * std + mean))

  def of_pixels(
    self, pixels: UInt8[np.ndarray, 'M H W ch'], run: Pixels
  ) -> np.ndarray:
    """The input for decoded and resized images, by the normalisation of a run.

    It is what another program does before it calls the program.
    """
    images = pixels if self.values == UINT8 else pixels.astype(np.float32) / 255
    if before := self.before(run):
      mean, std = (np.asarray(x, np.float32) for x in before[:2])
      images = (images - mean) / std
    if self.layout == NHWC:
      return images
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))

  def before(self, run: Pixels) -> Pixels | None:
    """The normalisation before the program, None if the program has it."""
    if self.values == NORMALISED:
      return run
    return _IMAGENET if self.values == IMAGENET else None

  def text(self, run: Pixels) -> str:
    """Says which values the program expects."""
    if before := self.before(run):
      mean, std = (
        ', '.join(f'{x:g}' for x in one) for one in (before.mean, before.std)
      )
      return f'values 0 to 1 minus ({mean}), divided by ({std})'
    largest = 255 if self.values == UINT8 else 1
    return f'values 0 to {largest}, normalised in the program'


DEFAULT = ImageInput()
