"""Views of photographs, made on the device inside the compiled step.

Images arrive as uint8. The test view normalises; the training view pads and
crops, mirrors, normalises and erases a rectangle, each image with a key of its
own. Erasing fills after normalisation, as the papers' code does.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array

ERASE_AREA = (0.02, 0.4)
ERASE_ASPECT = (0.3, 1 / 0.3)


class Views(NamedTuple):
  """Pure functions from stored to normalised images.

  Attributes:
    train: `(key, uint8 [B, H, W, ch]) -> float32 [B, H, W, ch]`.
    test: `(uint8 [B, H, W, ch]) -> float32 [B, H, W, ch]`.
  """

  train: Callable[[Array, Array], Array]
  test: Callable[[Array], Array]


def make(config, mean: tuple[float, ...], std: tuple[float, ...]) -> Views:
  """Builds both views from `config.augment`.

  Args:
    config: fields `pad` (pixels of zeros on every side before a random crop
      back to size), `flip` (probability), `erase` (probability), `erase_fill`
      (one value a channel, () for zeros).
    mean: per channel, of values in 0..1.
    std: per channel.
  """

  fill = jnp.asarray(config.erase_fill or 0.0, jnp.float32)

  def test(images):
    scale = 1.0 / (255.0 * jnp.asarray(std, jnp.float32))
    shift = jnp.asarray(mean, jnp.float32) / jnp.asarray(std, jnp.float32)
    return images.astype(jnp.float32) * scale - shift

  def one(key, image):
    crop_key, flip_key, erase_key = jax.random.split(key, 3)
    if config.pad:
      image = pad_and_crop(crop_key, image, config.pad)
    if config.flip:
      mirror = jax.random.bernoulli(flip_key, config.flip)
      image = jnp.where(mirror, image[:, ::-1], image)
    image = test(image)
    if config.erase:
      image = erase(erase_key, image, config.erase, fill)
    return image

  def train(key, images):
    own = jax.vmap(jax.random.fold_in, (None, 0))(
      key, jnp.arange(images.shape[0])
    )
    return jax.vmap(one)(own, images)

  return Views(train, test)


def pad_and_crop(key: Array, image: Array, pad: int) -> Array:
  """Pads `[H, W, ch]` with zeros and cuts a window of the old size."""
  top, left = jax.random.randint(key, (2,), 0, 2 * pad + 1)
  wide = jnp.pad(image, ((pad, pad), (pad, pad), (0, 0)))
  return jax.lax.dynamic_slice(wide, (top, left, 0), image.shape)


def erase(
  key: Array, image: Array, probability: float, fill: Array | float = 0.0
) -> Array:
  """Fills one random rectangle of a normalised image.

  Area uniform in 2 to 40 % of the image, aspect (height over width) uniform in
  0.3 to 3.33 (Zhong et al.). A rectangle that does not fit is not drawn again,
  so the rate is a little below `probability`.
  """
  height, width, _ = image.shape
  keys = jax.random.split(key, 5)
  lowest, highest = ERASE_AREA
  area = jax.random.uniform(keys[0], minval=lowest, maxval=highest)
  narrow, tall = ERASE_ASPECT
  aspect = jax.random.uniform(keys[1], minval=narrow, maxval=tall)
  area = area * height * width
  high = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
  wide = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
  fits = (high < height) & (wide < width)
  happens = fits & jax.random.bernoulli(keys[2], probability)
  top = jax.random.randint(keys[3], (), 0, jnp.maximum(height - high, 0) + 1)
  left = jax.random.randint(keys[4], (), 0, jnp.maximum(width - wide, 0) + 1)
  y, x = jnp.arange(height)[:, None], jnp.arange(width)[None]
  inside = (y >= top) & (y < top + high) & (x >= left) & (x < left + wide)
  return jnp.where((happens & inside)[..., None], fill, image)
