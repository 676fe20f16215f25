"""Synthetic images of pedestrians for training and evaluation without data.

An image is a pure function of (seed, domain, identity, camera, shot). A person
has a build, skin, hair, garments, textures, shoes, bag and hat; a camera
has a viewpoint, colour cast, exposure, sharpness, noise and scenery; a shot has
a pose, a crop error, light and perhaps an occluder; a domain has one fashion
and one kind of place. An infrared image shows the same shapes and textures
without colour. `docs/synthetic.png` shows examples.

The world has versions, see `worlds`. Rendering must take at most 30 s for
10,000 images of 128x64 on two cores. It took 11.9 s and, while other programs
used both cores, 22.1 s, after 6 to 9 s of compilation.
"""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image, ImageDraw, ImageFont

from fedreid_jax import errors
from fedreid_jax.data.synthetic import (
  appearance,
  imaging,
  shifts,
  versions,
  worlds,
)

DOMAIN_NAMES = appearance.DOMAIN_NAMES
MODALITIES = ('visible', 'infrared')
_WHERE = 'synthetic.generate'
_BATCH = 64  # images rendered at once, few enough to stay in cache
# Domains of the contact sheet, those of the preset `synthetic`.
SHEET_DOMAINS = ('plaza', 'campus', 'station', 'mall')
_GAP, _MARGIN, _HEAD, _SIZE = 10, 104, 48, 18  # of the sheet, pixels


class Sample(NamedTuple):
  """Rendered images and their labels."""

  images: UInt8[np.ndarray, 'M H W 3']
  identities: Int32[np.ndarray, ' M']
  cameras: Int32[np.ndarray, ' M']


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
  shift: str = '',
) -> Sample:
  """Renders `shots` images of every identity by every camera.

  The order is identity, then camera, then shot. Larger counts do not change the
  images of smaller counts.

  Args:
    domain: number of the domain, from 0; `DOMAIN_NAMES` names the first ones.
    height: H, pixels; so is `width`.
    modality: 'visible' or 'infrared'; an infrared camera is another device than
      the visible camera with the same number, and its shots are other moments.
    brightness_correlation: weight of the brightness in the infrared
      reflectance of garments, 0 (independent) to 1.
    camera_spread: factor of the differences between cameras, at least 1.
    source: `data.source` of the world, one of `versions.NAMES`.
    shift: kind of shift, one of `shifts.SHIFTS`, or empty.

  Raises:
    ConfigError: for a value out of range, or an unknown modality or source.
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
  if shift and shift not in shifts.SHIFTS:
    raise errors.ConfigError(
      f'shift={shift!r}', _WHERE, f'one of {", ".join(shifts.SHIFTS)}'
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
  images = _rendered(world, which, ids, height, width, camera_spread, shift)
  return Sample(images, person, camera)


def _rendered(
  world: worlds.World,
  which: tuple,
  ids: np.ndarray,
  height: int,
  width: int,
  camera_spread: float,
  shift: str,
) -> np.ndarray:
  """Renders in batches, `[M, H, W, 3]`; `ids` `[4, M]` as in `World.sample`."""
  num = ids.shape[1]
  images = np.empty((num, height, width, 3), np.uint8)
  for start in range(0, num, _BATCH):
    rows = ids[:, start : start + _BATCH]
    num_rows = rows.shape[1]
    # The last batch is padded, so that all counts need one compilation.
    rows = np.pad(rows, ((0, 0), (0, _BATCH - num_rows)), mode='edge')
    scenes = _sample_batch(
      *jax.device_put((*which, *rows)), world=world, shift=shift
    )
    if camera_spread > 1:  # the default runs no further program
      scenes = _spread_batch(scenes, np.float32(camera_spread))
    batch = _photograph_batch(
      scenes, view=world.view, height=height, width=width
    )
    images[start : start + num_rows] = jax.device_get(batch)[:num_rows]
  return images


# Sampling and rendering are two programs. In one program the compiler would
# fuse the draws into the pixels and draw the random numbers for each of them.
@functools.partial(jax.jit, static_argnames=('world', 'shift'))
def _sample_batch(
  seed, modality, brightness_correlation, *ids, world, shift=''
):
  sample = functools.partial(
    world.sample,
    jax.random.key(seed),
    modality=modality,
    brightness_correlation=brightness_correlation,
    shift=shift,
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


def _check(floor: int, **arguments: int) -> None:
  for name, value in arguments.items():
    if not isinstance(value, int | np.integer) or not floor <= value < 2**31:
      raise errors.ConfigError(
        f'{name}={value!r}', _WHERE, f'a whole number from {floor} up'
      )


def write_contact_sheet(
  path: str | os.PathLike,
  *,
  domains: Sequence[str] = SHEET_DOMAINS,
  identities: int = 4,
  cameras: int = 4,
  height: int = 160,
  width: int = 80,
  seed: int = 0,
  source: str = versions.UNVERSIONED,
) -> None:
  """Writes a sheet of examples: one row per domain, and a row in infrared.

  The infrared row shows the persons of the first domain. A row has a group of
  images for each person, one by each camera, `height` times `width` pixels. The
  names of persons and cameras stand above their columns.

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
