"""Transforms of images, run on the device inside the compiled step.

The input is uint8. The test transform normalises it. The training transform
enlarges, pads and crops, mirrors, changes colours (`data.colours`), normalises,
erases a rectangle and exchanges channels, with a key per image.

Channel exchange copies one channel of a normalised image, or its luminance, to
all three (Ye et al., "Channel augmented joint learning for visible-infrared
recognition"; channel augmentation of L2RW). A law gives the probabilities of
five outcomes: unchanged, or red, green, blue or luminance in all channels.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, Key, Num

from fedreid_jax import errors
from fedreid_jax.core.options import Natural, NonNegative, Range, Share
from fedreid_jax.core.types import Array
from fedreid_jax.data import colours

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
    np.repeat(np.array(colours.LUMINANCE)[:, None], 3, axis=1),
  ]
).astype(np.float32)
# The key after those that are split off for the other changes: `fold_in` with a
# smaller number is one of these.
JITTER = 6
# Smallest and largest height over width of an erased rectangle.
ERASE_ASPECT = (0.3, 1 / 0.3)


@dataclasses.dataclass(frozen=True)
class Augment:
  """Random augmentation of training images."""

  pad: Annotated[Natural, 'zero padding in pixels before a random crop'] = 4
  enlarge: Annotated[
    Share, 'probability of enlarging by an eighth before a random crop'
  ] = 0.0
  flip: Annotated[Share, 'probability of mirroring'] = 0.5
  erase: Annotated[Share, 'probability of erasing a rectangle'] = 0.0
  erase_fill: Annotated[
    tuple[float, ...],
    'fill value of the rectangle after normalisation, one per channel; empty '
    'means zeros',
  ] = ()
  erase_area: Annotated[
    tuple[float, ...],
    'smallest and largest area of the rectangle as a fraction of the image',
  ] = (0.02, 0.4)
  erase_tries: Annotated[
    int,
    Range(1, 1000),
    'maximum number of rectangles that are sampled until one fits',
  ] = 1
  grey: Annotated[
    Share, 'probability of conversion to grey, before normalisation'
  ] = 0.0
  jitter: Annotated[
    Share,
    'probability that brightness, contrast, saturation and hue are changed, in '
    'random order, before normalisation',
  ] = 0.0
  jitter_brightness: Annotated[
    NonNegative, 'jitter: largest difference of the factor of brightness from 1'
  ] = 0.15
  jitter_contrast: Annotated[
    NonNegative, 'jitter: largest difference of the factor of contrast from 1'
  ] = 0.15
  jitter_saturation: Annotated[
    NonNegative, 'jitter: largest difference of the factor of saturation from 1'
  ] = 0.1
  jitter_hue: Annotated[
    float, Range(0, 0.5), 'jitter: largest turn of the hue, of a circle of 1'
  ] = 0.1
  channel: Annotated[Share, 'probability that one channel replaces all'] = 0.0
  channel_kinds: Annotated[
    Kind, 'channels that can replace all channels, including luminance'
  ] = 'exchange'
  infrared: Annotated[
    Infrared,
    'colour augmentation of infrared images: same as visible images, of CAJ '
    '(adapt) or with rotated hues (hue)',
  ] = 'same'
  copies: Annotated[
    Literal['', Kind], 'pk_caj: colour change of the second third of a batch'
  ] = ''


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


def make(
  config: Augment, mean: tuple[float, ...], std: tuple[float, ...]
) -> Transforms:
  """Builds both transforms from `config.augment`.

  `mean` and `std` are per channel, of values in 0..1.

  Raises:
    ConfigError: for colour changes of images without RGB channels.
  """
  fill = jnp.asarray(config.erase_fill or 0.0, jnp.float32)
  changes = _colour_changes(config, len(mean))

  def test(
    images: Num[Array | np.ndarray, '*B H W ch'],
  ) -> Float32[Array, '*B H W ch']:
    scale = 1.0 / (255.0 * jnp.asarray(std, jnp.float32))
    shift = jnp.asarray(mean, jnp.float32) / jnp.asarray(std, jnp.float32)
    return jnp.asarray(images).astype(jnp.float32) * scale - shift

  def one(key, image, group):
    # The n-th key does not depend on the number of keys that are split off.
    keys = jax.random.split(key, 6)
    if config.enlarge:
      image = enlarge_and_crop(keys[5], image, config.enlarge)
    if config.pad:
      image = pad_and_crop(keys[0], image, config.pad)
    if config.flip:
      mirror = jax.random.bernoulli(keys[1], config.flip)
      image = jnp.where(mirror, image[:, ::-1], image)
    if config.jitter:
      own = jax.random.fold_in(key, JITTER)
      image = colours.jitter(own, image, _amounts(config), config.jitter)
    # Erasing fills after normalisation, as in the papers' code.
    image = test(changes.before(keys[3], image, group))
    if config.erase:
      smallest, largest = config.erase_area
      image = erase(
        keys[2],
        image,
        config.erase,
        fill,
        (smallest, largest),
        config.erase_tries,
      )
    return changes.after(keys[4], image, group)

  def train(
    key: Key[Array, ''],
    images: Num[Array | np.ndarray, 'B H W ch'],
    modalities: Int[Array | np.ndarray, ' B'] | None = None,
  ) -> Float32[Array, 'B H W ch']:
    size = images.shape[0]
    # The key of an image depends on its place, not on the size of the batch.
    own = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size))
    return jax.vmap(one)(own, images, changes.groups(size, modalities))

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


def _amounts(config: Augment) -> colours.Amounts:
  return colours.Amounts(
    config.jitter_brightness,
    config.jitter_contrast,
    config.jitter_saturation,
    config.jitter_hue,
  )


def _colour_changes(config: Augment, channels: int) -> Colours:
  # Changes that are off are left out when the step is traced, and cost nothing.
  grey, copies = config.grey, config.copies
  laws = _laws(config)
  turns, exchanges = config.infrared == 'hue', bool((laws[:, 0] < 1).any())
  if channels != 3 and (grey or turns or exchanges or config.jitter):
    raise errors.ConfigError(
      f'colour changes of images with {channels} channels',
      'augment',
      "turn them off, or set data.channels='rgb'",
    )

  def groups(size, modalities):
    if modalities is None:
      modalities = jnp.full(size, VISIBLE, jnp.int32)
    # The sampler 'pk_caj' puts its copies in the second third of a batch.
    copied = bool(copies) & (jnp.arange(size) * 3 // size == 1)
    return jnp.where(copied, COPY, modalities)

  def before(key, image, group):
    if not (turns or grey):
      return image
    hue_key, grey_key = jax.random.split(key)
    image = image.astype(jnp.float32)
    if turns:
      turned = colours.rotate_hue(image, jax.random.uniform(hue_key))
      image = jnp.where(group == OTHER, turned, image)
    if grey:
      happens = jax.random.bernoulli(grey_key, grey)
      image = jnp.where(happens, colours.luminance(image), image)
    return image

  def after(key, image, group):
    if not exchanges:
      return image
    return exchange(key, image, jnp.asarray(laws)[group])

  return Colours(groups, before, after)


def _laws(config: Augment) -> np.ndarray:
  """Law of visible images, of infrared images and of copies, `[3, 5]`."""
  visible = law(config.channel_kinds, config.channel)
  share = INFRARED[config.infrared]
  infrared = visible if share is None else law('adapt', share)
  copies = law(config.copies, 1.0) if config.copies else visible
  return np.array([visible, infrared, copies], np.float32)


def law(kind: str, probability: float) -> tuple[float, ...]:
  """Probabilities of the five outcomes of one of `KINDS`, unchanged first."""
  shares = KINDS[kind]
  rest = (probability * share / sum(shares) for share in shares)
  return 1.0 - probability, *rest


def exchange(
  key: Key[Array, ''], image: Float[Array, 'H W 3'], chances: Float[Array, ' 5']
) -> Float[Array, 'H W 3']:
  """Draws one of the five outcomes of a law for a normalised image."""
  return colours.mixed(
    image, jnp.asarray(_MIXES)[jax.random.choice(key, 5, p=chances)]
  )
