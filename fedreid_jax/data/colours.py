"""Changes of the colours of images, and colour jitter.

Luminance is 0.2989 R + 0.587 G + 0.114 B, and a hue is a fraction of the
circle. The four changes of colour jitter have the definitions of torchvision,
for images with values in 0..1, which are clipped after every change:

  brightness  f x                        contrast  f x + (1 - f) mean of grey
  saturation  f x + (1 - f) grey         hue       turned by f,

where grey is the luminance of a pixel, and its mean that of the whole image.
`jitter` makes each change once, in random order, with f uniform in [1 - a, 1 +
a], from 0, and for the hue in [-a, a]. torchvision rounds to whole grey levels
after every change of a photograph; here nothing is rounded.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Key, Num

from fedreid_jax.core.types import Array, Number

LUMINANCE = (0.2989, 0.5870, 0.1140)


class Amounts(NamedTuple):
  """Largest amount of each change of colour jitter; 0 leaves a change out."""

  brightness: float
  contrast: float
  saturation: float
  hue: float  # at most 0.5, half of the circle


def mixed(
  image: Float[Array, '*B H W 3'],
  mix: Float[Array | np.ndarray, '3 3'],
) -> Float[Array, '*B H W 3']:
  """Mixes channels by the weights `[input channel, output channel]`."""
  # A matrix product would round a channel that this only copies.
  red, green, blue = (image[..., k, None] * mix[k] for k in range(3))
  return red + green + blue


def luminance(image: Float[Array, '*B H W 3']) -> Float[Array, '*B H W 3']:
  """Writes the luminance of images to all three channels."""
  weights = np.repeat(np.array(LUMINANCE)[:, None], 3, axis=1)
  return mixed(image, jnp.asarray(weights, jnp.float32))


def rotate_hue(
  image: Float[Array, 'H W 3'], turn: Number
) -> Float[Array, 'H W 3']:
  """Rotates the hue of an image >= 0 by `turn`, a fraction of the circle."""
  red, green, blue = (image[..., k] for k in range(3))
  value, lowest = image.max(axis=-1), image.min(axis=-1)
  chroma = value - lowest
  # Grey pixels have no chroma to divide by; their hue does not matter.
  width = jnp.where(chroma > 0, chroma, 1.0)
  hue = jnp.where(
    value == red,
    (green - blue) / width,
    jnp.where(
      value == green, (blue - red) / width + 2.0, (red - green) / width + 4.0
    ),
  )

  def channel(offset):
    place = (offset + hue + 6.0 * turn) % 6.0
    return value - chroma * jnp.clip(jnp.minimum(place, 4.0 - place), 0.0, 1.0)

  return jnp.stack([channel(5.0), channel(3.0), channel(1.0)], axis=-1)


def brightness(
  image: Float[Array, 'H W 3'], factor: Number
) -> Float[Array, 'H W 3']:
  """Multiplies an image by a factor."""
  return _blend(image, jnp.zeros_like(image), factor)


def contrast(
  image: Float[Array, 'H W 3'], factor: Number
) -> Float[Array, 'H W 3']:
  """Moves an image from the mean of its luminance (0), or away (above 1)."""
  return _blend(image, luminance(image).mean(), factor)


def saturation(
  image: Float[Array, 'H W 3'], factor: Number
) -> Float[Array, 'H W 3']:
  """Moves pixels from their luminance (0), or away from it (above 1)."""
  return _blend(image, luminance(image), factor)


def _blend(image: Array, other: Array, factor: Number) -> Array:
  return jnp.clip(factor * image + (1.0 - factor) * other, 0.0, 1.0)


# In the order of `Amounts`, as the keys of the factors.
CHANGES: tuple[Callable[..., Array], ...] = (
  *(brightness, contrast, saturation, rotate_hue),
)


def jitter(
  key: Key[Array, ''],
  image: Num[Array, 'H W 3'],
  amounts: Amounts,
  probability: float,
) -> Float32[Array, 'H W 3']:
  """Changes the colours of an image with values in 0..255.

  Args:
    amounts: largest amounts; a change of amount 0 is not made.
    probability: that the image is changed at all.
  """
  keys = jax.random.split(key, 3)
  image = image.astype(jnp.float32)
  amount = jnp.asarray(amounts, jnp.float32)
  # A hue is turned from 0, the other factors leave an image unchanged at 1.
  centre = jnp.array([1.0, 1.0, 1.0, 0.0])
  lowest = jnp.maximum(centre - amount, jnp.array([0.0, 0.0, 0.0, -0.5]))
  factors = jax.random.uniform(
    keys[0], (4,), minval=lowest, maxval=centre + amount
  )
  made = [k for k, largest in enumerate(amounts) if largest]
  branches = [CHANGES[k] for k in made]
  order = jax.random.permutation(keys[1], len(made))
  changed = image / 255.0
  for place in range(len(made)):
    which = order[place]
    factor = factors[jnp.array(made)[which]]
    changed = jax.lax.switch(which, branches, changed, factor)
  happens = jax.random.bernoulli(keys[2], probability)
  return jnp.where(happens, 255.0 * changed, image)
