"""Synthetic images of pedestrians for training and evaluation without data.

`image = render(key, domain, identity, camera, shot)` is a pure function. A
person has a build, skin, hair, garments, textures, shoes, bag and hat; a camera
has a viewpoint, colour cast, exposure, sharpness, noise and scenery; a shot has
a pose, a crop error, light and perhaps an occluder; a domain has one fashion
and one kind of place. An infrared image shows the same shapes and textures
without colour: the infrared reflectances of garments are independent of it, or
partly given by its brightness. `docs/synthetic.png` shows examples.

The world has versions, see `worlds`. `python -m benchmarks.world` measures
their difficulty, and docs/results/world.md has the figures. The first version
was also measured with these settings: 2026-11-21, seed 0, 64x32, 48 identities
x 4 cameras x 3 shots per training domain; 60 other identities of the mall, 4
cameras, 2 shots, one for the query and one for the gallery, without images of
the camera of the query. Four 3x3 conv-BN-ReLU-pool blocks (32, 64, 128, 128),
BN neck, cross-entropy, crop and flip, 15 epochs of SGD at a constant 0.05; mean
of 3 seeds (range):

  on the unseen mall                 rank-1              mAP
  chance                              1.3
  raw pixels                          5.0                5.9
  mean colour of 8 stripes           15.4               13.2
  trained on station                 28.2 (22.1-33.3)   24.3 (20.6-27.0)
  trained on campus                  29.0 (28.3-29.6)   27.4 (26.1-29.2)
  trained on plaza                   41.4 (38.8-46.7)   30.7 (26.0-37.7)
  trained on all three               53.8 (49.6-59.2)   46.5 (43.7-49.6)

The domain shift is substantial: on other identities of its training domain, a
network trained on one domain has a rank-1 of 75 to 82 (each of 3 domains, 3
seeds).

Rendering must take at most 30 s for 10,000 images of 128x64 on two cores. It
took 11.9 s and, while other programs used both cores, 22.1 s, after 6 to 9 s of
compilation.

Writes a sheet of examples of the synthetic images.
"""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, Int32, Key, UInt8
from PIL import Image, ImageDraw, ImageFont

from fedreid_jax import errors
from fedreid_jax.core.types import Array, Number
from fedreid_jax.data.synthetic import appearance, imaging, versions, worlds

DOMAIN_NAMES = appearance.DOMAIN_NAMES
MODALITIES = ('visible', 'infrared')
_WHERE = 'synthetic.generate'
_BATCH = 64  # images rendered at once, few enough to stay in cache


class Sample(NamedTuple):
  """Rendered images and their labels.

  Attributes:
    images: pixels of each image.
    identities: person in each image.
    cameras: camera of each image.
  """

  images: UInt8[np.ndarray, 'M H W 3']
  identities: Int32[np.ndarray, ' M']
  cameras: Int32[np.ndarray, ' M']


def render(
  key: Key[Array, ''],
  domain: Int[Array, ''],
  identity: Int[Array, ''],
  camera: Int[Array, ''],
  shot: Int[Array, ''],
  *,
  height: int,
  width: int,
  modality: Int[Array, ''],
  brightness_correlation: Number = 0.0,
  source: str = versions.UNVERSIONED,
) -> UInt8[Array, '{height} {width} 3']:
  """Renders one image.

  Args:
    key: PRNG key of all synthetic images.
    domain: number of a domain.
    identity: number of a person of the domain.
    camera: number of a camera of the domain.
    shot: number of an image of this person by this camera.
    height: H, pixels.
    width: W, pixels.
    modality: 0 visible, 1 infrared.
    brightness_correlation: as in `generate`.
    source: as in `generate`.

  Raises:
    ConfigError: for an unknown source.
  """
  world = worlds.find(source)
  scene = world.sample(
    key,
    domain,
    identity,
    camera,
    shot,
    modality=modality,
    brightness_correlation=brightness_correlation,
  )
  return imaging.photograph(world.view, *scene, height=height, width=width)


# Sampling and rendering are two programs. In one program the compiler would
# fuse the draws into the pixels and draw the random numbers for each of them.
@functools.partial(jax.jit, static_argnames='world')
def _sample_batch(seed, modality, brightness_correlation, *ids, world):
  sample = functools.partial(
    world.sample,
    jax.random.key(seed),
    modality=modality,
    brightness_correlation=brightness_correlation,
  )
  return jax.vmap(sample)(*ids)


@jax.jit
def _spread_batch(scenes, factor):
  person, camera, shot, infrared = scenes
  return person, appearance.spread(camera, factor), shot, infrared


@functools.partial(jax.jit, static_argnames=('view', 'height', 'width'))
def _photograph_batch(scenes, *, view, height, width):
  def photograph(scene):
    return imaging.photograph(view, *scene, height=height, width=width)

  return jax.vmap(photograph)(scenes)


def generate(
  domain: int,
  identities: int,
  cameras: int,
  shots: int,
  *,
  height: int = 64,
  width: int = 32,
  seed: int = 0,
  modality: str = 'visible',
  first_identity: int = 0,
  brightness_correlation: float = 0.0,
  camera_spread: float = 1.0,
  source: str = versions.UNVERSIONED,
) -> Sample:
  """Renders `shots` images of every identity by every camera.

  The order is identity, then camera, then shot. Larger counts do not change the
  images of smaller counts.

  Args:
    domain: number of the domain, from 0; `DOMAIN_NAMES` names the first ones.
    identities: number of identities.
    cameras: number of cameras.
    shots: number of shots of an identity by a camera.
    height: H, pixels.
    width: W, pixels.
    seed: seed of all synthetic images.
    modality: 'visible' or 'infrared'; an infrared camera is another device than
      the visible camera with the same number, and its shots are other moments.
    first_identity: number of the first identity.
    brightness_correlation: weight of the brightness in the infrared
      reflectance of garments, 0 (independent) to 1.
    camera_spread: factor of the differences between cameras, at least 1.
    source: `data.source` of the world, one of `versions.NAMES`.

  Returns:
    The images and their labels.

  Raises:
    ConfigError: for a count below one, a negative number, another modality or
      source, a correlation outside 0 to 1 or a spread below 1.
  """
  _check(
    1,
    identities=identities,
    cameras=cameras,
    shots=shots,
    height=height,
    width=width,
  )
  _check(0, domain=domain, seed=seed, first_identity=first_identity)
  if not 0 <= brightness_correlation <= 1:
    raise errors.ConfigError(
      f'brightness_correlation={brightness_correlation!r}',
      _WHERE,
      'from 0 to 1',
    )
  if not camera_spread >= 1:
    raise errors.ConfigError(
      f'camera_spread={camera_spread!r}', _WHERE, 'from 1 up'
    )
  if modality not in MODALITIES:
    raise errors.ConfigError(
      f'modality={modality!r}', _WHERE, f'one of {", ".join(MODALITIES)}'
    )
  person, camera, shot = (
    axis.reshape(-1).astype(np.int32)
    for axis in np.indices((identities, cameras, shots))
  )
  person = person + np.int32(first_identity)
  ids = np.stack([np.full_like(person, domain), person, camera, shot])
  kind = np.int32(MODALITIES.index(modality))
  which = np.uint32(seed), kind, np.float32(brightness_correlation)
  world = worlds.find(source)
  images = _rendered(world, which, ids, height, width, camera_spread)
  return Sample(images, person, camera)


def _rendered(
  world: worlds.World,
  which: tuple,
  ids: np.ndarray,
  height: int,
  width: int,
  camera_spread: float,
) -> np.ndarray:
  """Renders images in batches, uint8 `[M, H, W, 3]`.

  Args:
    world: version of the world.
    which: seed, modality and brightness correlation.
    ids: domain, identity, camera and shot of each image, int32 `[4, M]`.
    height: H, pixels.
    width: W, pixels.
    camera_spread: as in `generate`; the default 1 runs no further program.
  """
  num = ids.shape[1]
  images = np.empty((num, height, width, 3), np.uint8)
  for start in range(0, num, _BATCH):
    rows = ids[:, start : start + _BATCH]
    num_rows = rows.shape[1]
    # The last batch is padded, so that all counts need one compilation.
    rows = np.pad(rows, ((0, 0), (0, _BATCH - num_rows)), mode='edge')
    scenes = _sample_batch(*jax.device_put((*which, *rows)), world=world)
    if camera_spread > 1:
      scenes = _spread_batch(scenes, np.float32(camera_spread))
    batch = _photograph_batch(
      scenes, view=world.view, height=height, width=width
    )
    images[start : start + num_rows] = jax.device_get(batch)[:num_rows]
  return images


def _check(floor: int, **arguments: int) -> None:
  for name, value in arguments.items():
    if not isinstance(value, int | np.integer) or not floor <= value < 2**31:
      raise errors.ConfigError(
        f'{name}={value!r}', _WHERE, f'a whole number from {floor} up'
      )


DOMAINS = 'plaza', 'campus', 'station', 'mall'  # of the preset `synthetic`
_GAP, _MARGIN, _HEAD, _SIZE = 10, 104, 48, 18  # pixels


def write(
  path: str | os.PathLike,
  *,
  domains: Sequence[str] = DOMAINS,
  identities: int = 4,
  cameras: int = 4,
  height: int = 160,
  width: int = 80,
  seed: int = 0,
  source: str = versions.UNVERSIONED,
) -> None:
  """Writes a sheet of examples: one row per domain, and a row in infrared.

  The infrared row shows the persons of the first domain. The names of persons
  and cameras stand above their columns.

  Args:
    path: PNG file to write.
    domains: names of the rows of visible images, some of
      `photographs.DOMAIN_NAMES`.
    identities: number of groups in a row, each of one person by all cameras.
    cameras: number of images in a group.
    height: H of an image, pixels.
    width: W of an image, pixels.
    seed: seed of all synthetic images.
    source: `data.source` of the world, one of `versions.NAMES`.

  Raises:
    ResourceError: if the file cannot be written.
  """
  group = cameras * width + _GAP
  rows = [(d, 'visible') for d in domains] + [(domains[0], 'infrared')]
  sheet = Image.new(
    'RGB',
    (_MARGIN + identities * group, _HEAD + len(rows) * (height + _GAP)),
    'white',
  )
  pen = ImageDraw.Draw(sheet)
  font = ImageFont.load_default(_SIZE)
  for person in range(identities):
    x = _MARGIN + person * group
    pen.text((x, 2), f'person {person + 1}', fill='black', font=font)
    for camera in range(cameras):
      label = f'cam {camera + 1}'
      pen.text((x + camera * width, 24), label, fill='black', font=font)
  for row, (name, modality) in enumerate(rows):
    sample = generate(
      DOMAIN_NAMES.index(name),
      identities,
      cameras,
      1,
      height=height,
      width=width,
      seed=seed,
      modality=modality,
      source=source,
    )
    y = _HEAD + row * (height + _GAP)
    pen.text((4, y + 4), f'{name}\n{modality}', fill='black', font=font)
    for image, person, camera in zip(*sample, strict=True):
      x = _MARGIN + person * group + camera * width
      sheet.paste(Image.fromarray(image), (int(x), y))
  try:
    # The grain of the sensors makes a true-colour file three times the size.
    sheet.quantize(256, kmeans=5).save(path, format='PNG', optimize=True)
  except OSError as error:
    raise errors.ResourceError(
      f'cannot write {path}', 'synthetic.contact_sheet', str(error)
    ) from error
