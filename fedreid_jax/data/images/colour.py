"""Random changes of the colours of an image in training.

Channel exchange copies one channel of a normalised image, or its luminance, to
all three (Ye et al., "Channel augmented joint learning for visible-infrared
recognition"; channel augmentation of L2RW). A law gives the probabilities of
five outcomes: unchanged, or red, green, blue or luminance in all channels.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Key, Num

from fedreid_jax import errors
from fedreid_jax.core.types import Array, Number

LUMINANCE = (0.2989, 0.5870, 0.1140)
Kind = Literal['exchange', 'copy', 'grey', 'adapt']
Infrared = Literal['same', 'adapt', 'hue']
# Weights of red, green, blue and luminance. 'adapt' is for infrared images of
# CAJ: a quarter for each channel, half of the last quarter for luminance, and
# the other half unchanged.
KINDS = {
  'exchange': (1, 1, 1, 1),
  'copy': (1, 1, 1, 0),
  'grey': (0, 0, 0, 1),
  'adapt': (2, 2, 2, 1),
}
# Probability of exchanging channels of infrared images: 'same' as for visible
# images, 'adapt' by CAJ's law, 'hue' never, but with rotated hues (DNS).
INFRARED = {'same': None, 'adapt': 7 / 8, 'hue': 0.0}
VISIBLE, OTHER, COPY = range(3)  # groups of images; 0 and 1 are modalities

# Weights of the five outcomes: `[outcome, input channel, output channel]`.
_MIXES = np.stack(
  [
    np.eye(3),
    *np.repeat(np.eye(3)[:, :, None], 3, axis=2),
    np.repeat(np.array(LUMINANCE)[:, None], 3, axis=1),
  ]
).astype(np.float32)


class Colours(NamedTuple):
  """Colour changes of a training transform.

  Attributes:
    groups: `(B, modalities [B] or None) -> [B]`, `VISIBLE`, `OTHER` or `COPY`.
    before: `(key, image, group) -> image`, run before normalisation.
    after: `(key, image, group) -> image`, run after normalisation and erasing.
  """

  groups: Callable[..., Int[Array, ' B']]
  before: Callable[..., Num[Array, 'H W ch']]
  after: Callable[..., Float[Array, 'H W ch']]


def make(config: Any, channels: int) -> Colours:
  """Builds the colour changes of a configuration.

  Args:
    config: fields `grey` (probability of luminance before normalisation),
      `channel` (probability of an exchange of channels), `channel_kinds` (its
      kind, of `KINDS`), `infrared` (the treatment of infrared images, of
      `INFRARED`), `copies` (the kind of exchange for every image in the second
      third of a batch, the copies of the sampler 'pk_caj'; '' if there are
      none).
    channels: number of channels of the images.

  Raises:
    ConfigError: for images without RGB channels.
  """
  # Changes that are off are left out when the step is traced, and cost nothing.
  grey, copies = config['grey'], config['copies']
  laws = _laws(config)
  turns, exchanges = config['infrared'] == 'hue', bool((laws[:, 0] < 1).any())
  if channels != 3 and (grey or turns or exchanges):
    raise errors.ConfigError(
      f'colour changes of images with {channels} channels',
      'augment',
      "turn them off, or set data.channels='rgb'",
    )

  def groups(size, modalities):
    if modalities is None:
      modalities = jnp.full(size, VISIBLE, jnp.int32)
    copied = bool(copies) & (jnp.arange(size) * 3 // size == 1)
    return jnp.where(copied, COPY, modalities)

  def before(key, image, group):
    if not (turns or grey):
      return image
    hue_key, grey_key = jax.random.split(key)
    image = image.astype(jnp.float32)
    if turns:
      turned = rotate_hue(image, jax.random.uniform(hue_key))
      image = jnp.where(group == OTHER, turned, image)
    if grey:
      happens = jax.random.bernoulli(grey_key, grey)
      image = jnp.where(happens, luminance(image), image)
    return image

  def after(key, image, group):
    if not exchanges:
      return image
    return exchange(key, image, jnp.asarray(laws)[group])

  return Colours(groups, before, after)


def _laws(config) -> np.ndarray:
  """Returns the law of visible images, infrared ones and copies, `[3, 5]`."""
  visible = law(config['channel_kinds'], config['channel'])
  share = INFRARED[config['infrared']]
  infrared = visible if share is None else law('adapt', share)
  copies = law(config['copies'], 1.0) if config['copies'] else visible
  return np.array([visible, infrared, copies], np.float32)


def law(kind: str, probability: float) -> tuple[float, ...]:
  """Returns the probabilities of the five outcomes, unchanged first.

  Args:
    kind: one of `KINDS`.
    probability: probability that the image changes.
  """
  shares = KINDS[kind]
  rest = (probability * share / sum(shares) for share in shares)
  return 1.0 - probability, *rest


def exchange(
  key: Key[Array, ''],
  image: Float[Array, 'H W 3'],
  chances: Float[Array, ' 5'],
) -> Float[Array, 'H W 3']:
  """Draws one of the five outcomes for an image.

  Args:
    key: PRNG key of the image.
    image: normalised image; a copied channel keeps its mean and deviation.
    chances: probabilities of the outcomes.
  """
  return _mixed(
    image, jnp.asarray(_MIXES)[jax.random.choice(key, 5, p=chances)]
  )


def luminance(image: Float[Array, '*B H W 3']) -> Float[Array, '*B H W 3']:
  """Writes the luminance of images to all three channels."""
  return _mixed(image, jnp.asarray(_MIXES[-1]))


def _mixed(
  image: Float[Array, '*B H W 3'], mix: Float[Array, '3 3']
) -> Float[Array, '*B H W 3']:
  # A matrix product would round a channel that this only copies.
  red, green, blue = (image[..., k, None] * mix[k] for k in range(3))
  return red + green + blue


def rotate_hue(
  image: Float[Array, 'H W 3'], turn: Number
) -> Float[Array, 'H W 3']:
  """Rotates the hue of an image and keeps saturation and value.

  Args:
    image: non-negative, of any scale.
    turn: fraction of the full circle of hues.
  """
  red, green, blue = (image[..., k] for k in range(3))
  value, lowest = image.max(axis=-1), image.min(axis=-1)
  chroma = value - lowest
  # Grey pixels have no chroma to divide by; their hue does not matter.
  width = jnp.where(chroma > 0, chroma, 1.0)
  hue = jnp.where(
    value == red,
    (green - blue) / width,
    jnp.where(
      value == green,
      (blue - red) / width + 2.0,
      (red - green) / width + 4.0,
    ),
  )

  def channel(offset):
    place = (offset + hue + 6.0 * turn) % 6.0
    return value - chroma * jnp.clip(jnp.minimum(place, 4.0 - place), 0.0, 1.0)

  return jnp.stack([channel(5.0), channel(3.0), channel(1.0)], axis=-1)
