"""Transforms of images, run on the device inside the compiled step.

The input is uint8. The test transform normalises it. The training transform
enlarges, pads and crops, mirrors, changes hues, normalises, erases a rectangle
and exchanges channels, with a key per image.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, Key, Num

from fedreid_jax.core.types import Array
from fedreid_jax.data.images import colour

# Smallest and largest height over width of an erased rectangle.
ERASE_ASPECT = (0.3, 1 / 0.3)


class Transforms(NamedTuple):
  """Pure functions from stored to normalised images.

  Attributes:
    train: `(key, uint8 [B, H, W, ch], modalities=None) -> float32 [B, H, W,
      ch]`; modalities are int32 `[B]`, None means that all are visible.
    test: `(uint8 [B, H, W, ch]) -> float32 [B, H, W, ch]`.
  """

  train: Callable[..., Float32[Array, 'B H W ch']]
  test: Callable[
    [Num[Array | np.ndarray, '*B H W ch']], Float32[Array, '*B H W ch']
  ]


def make(config, mean: tuple[float, ...], std: tuple[float, ...]) -> Transforms:
  """Builds both transforms from `config.augment`.

  Args:
    config: fields `enlarge` (probability of a random crop of the image enlarged
      by an eighth), `pad` (pixels of zeros on every side before a random crop
      back to size), `flip` (probability), `erase` (probability), `erase_fill`
      (one value per channel, () for zeros), `erase_area` (smallest and largest
      fraction of the image), `erase_tries` (rectangles drawn until one fits),
      and the fields of `colour.make`.
    mean: per channel, of values in 0..1.
    std: per channel.

  Raises:
    ConfigError: for colour changes of images without RGB channels.
  """
  fill = jnp.asarray(config['erase_fill'] or 0.0, jnp.float32)
  colours = colour.make(config, len(mean))

  def test(
    images: Num[Array | np.ndarray, '*B H W ch'],
  ) -> Float32[Array, '*B H W ch']:
    scale = 1.0 / (255.0 * jnp.asarray(std, jnp.float32))
    shift = jnp.asarray(mean, jnp.float32) / jnp.asarray(std, jnp.float32)
    return jnp.asarray(images).astype(jnp.float32) * scale - shift

  def one(key, image, group):
    # The n-th key does not depend on the number of keys that are split off.
    keys = jax.random.split(key, 6)
    if config['enlarge']:
      image = enlarge_and_crop(keys[5], image, config['enlarge'])
    if config['pad']:
      image = pad_and_crop(keys[0], image, config['pad'])
    if config['flip']:
      mirror = jax.random.bernoulli(keys[1], config['flip'])
      image = jnp.where(mirror, image[:, ::-1], image)
    # Erasing fills after normalisation, as in the papers' code.
    image = test(colours.before(keys[3], image, group))
    if config['erase']:
      image = erase(
        keys[2],
        image,
        config['erase'],
        fill,
        config['erase_area'],
        config['erase_tries'],
      )
    return colours.after(keys[4], image, group)

  def train(
    key: Key[Array, ''],
    images: Num[Array | np.ndarray, 'B H W ch'],
    modalities: Int[Array | np.ndarray, ' B'] | None = None,
  ) -> Float32[Array, 'B H W ch']:
    size = images.shape[0]
    # The key of an image depends on its place, not on the size of the batch.
    own = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size))
    return jax.vmap(one)(own, images, colours.groups(size, modalities))

  return Transforms(train, test)


def pad_and_crop(
  key: Key[Array, ''], image: Num[Array, 'H W ch'], pad: int
) -> Num[Array, 'H W ch']:
  """Pads an image with zeros and crops a window of the original size."""
  top, left = jax.random.randint(key, (2,), 0, 2 * pad + 1)
  wide = jnp.pad(image, ((pad, pad), (pad, pad), (0, 0)))
  return jax.lax.dynamic_slice(wide, (top, left, 0), image.shape)


def enlarge_and_crop(
  key: Key[Array, ''], image: Num[Array, 'H W ch'], probability: float
) -> Float32[Array, 'H W ch']:
  """Crops a window of the original size from an image enlarged by an eighth.

  This is the augmentation of Wu and Gong's code (`Random2DTranslation` of
  torchreid), with bilinear interpolation and rounded sizes.
  """
  height, width, channels = image.shape
  larger = round(height * 1.125), round(width * 1.125)
  keys = jax.random.split(key, 3)
  wide = jax.image.resize(
    image.astype(jnp.float32), (*larger, channels), 'bilinear'
  )
  top = jax.random.randint(keys[0], (), 0, larger[0] - height + 1)
  left = jax.random.randint(keys[1], (), 0, larger[1] - width + 1)
  crop = jax.lax.dynamic_slice(wide, (top, left, 0), image.shape)
  return jnp.where(jax.random.bernoulli(keys[2], probability), crop, image)


def erase(
  key: Key[Array, ''],
  image: Float[Array, 'H W ch'],
  probability: float,
  fill: Float[Array, ''] | Float[Array, ' ch'] | float,
  area: tuple[float, float],
  tries: int,
) -> Float[Array, 'H W ch']:
  """Fills one random rectangle of a normalised image.

  Zhong et al., "Random erasing data augmentation". The area is uniform between
  two fractions of the image, and the aspect (height over width) is uniform in
  0.3 to 3.33. Of `tries` rectangles the first that fits is used.
  """
  height, width, _ = image.shape
  keys = jax.random.split(key, 5)
  lowest, highest = area
  size = jax.random.uniform(keys[0], (tries,), minval=lowest, maxval=highest)
  narrow, tall = ERASE_ASPECT
  aspect = jax.random.uniform(keys[1], (tries,), minval=narrow, maxval=tall)
  size = size * height * width
  high = jnp.round(jnp.sqrt(size * aspect)).astype(jnp.int32)
  wide = jnp.round(jnp.sqrt(size / aspect)).astype(jnp.int32)
  fits = (high < height) & (wide < width)
  # 0 if none fits. Then nothing is erased, and the rate of erasing is a little
  # below the probability.
  first = fits.argmax()
  high, wide = high[first], wide[first]
  happens = fits[first] & jax.random.bernoulli(keys[2], probability)
  # The place is computed for a rectangle that does not fit, too, and needs
  # limits that are not negative.
  top = jax.random.randint(keys[3], (), 0, jnp.maximum(height - high, 0) + 1)
  left = jax.random.randint(keys[4], (), 0, jnp.maximum(width - wide, 0) + 1)
  y, x = jnp.arange(height)[:, None], jnp.arange(width)[None]
  inside = (y >= top) & (y < top + high) & (x >= left) & (x < left + wide)
  return jnp.where((happens & inside)[..., None], fill, image)
