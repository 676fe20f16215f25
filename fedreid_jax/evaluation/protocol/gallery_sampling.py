"""Galleries that a protocol samples anew for every trial.

SYSU-MM01 and LLCM take a few images of every (identity, camera). Two published
samplings exist for SYSU-MM01. They give different galleries, so that results
should name the sampling:

  agw: the code of Ye et al. (TPAMI 2021) and its descendants, with Python's
    generator seeded by the trial;
  official: the code of Wu et al. (ICCV 2017), with permutations that are
    distributed with the data set.
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int64, Shaped

from fedreid_jax import errors

SYSU_QUERY_CAMERAS = (3, 6)
SYSU_GALLERY_CAMERAS = {'all': (1, 2, 4, 5), 'indoor': (1, 2)}
LLCM_CAMERAS = {
  'visible': (1, 2, 3, 4, 5, 6, 7, 8, 9),
  'infrared': (1, 2, 4, 5, 6, 7, 8, 9),
}


def _folders(ids, cameras, names, gallery_cameras):
  """Yields (identity, camera, images by name) in the order of the folders."""
  ids, cameras, names = np.asarray(ids), np.asarray(cameras), np.asarray(names)
  if not ids.shape == cameras.shape == names.shape:
    raise errors.DataError(
      f'{ids.size} identities, {cameras.size} cameras, {names.size} names',
      'gallery sampling',
      'give one of each per image',
    )
  # The order of the draws determines the gallery: identities ascend, cameras
  # have the given order, and a camera without images uses no random number.
  for identity in np.unique(ids):
    for camera in gallery_cameras:
      images = np.flatnonzero((ids == identity) & (cameras == camera))
      if images.size:
        order = np.argsort(names[images], kind='stable')
        yield int(identity), camera, images[order]


def _mode_cameras(choices, mode, what):
  if mode not in choices:
    raise errors.ConfigError(
      f'unknown {what} {mode!r}', what, f'choose one of {", ".join(choices)}'
    )
  return choices[mode]


def sample_per_camera(
  ids: Sequence[int] | Int[np.ndarray, ' M'],
  cameras: Sequence[int] | Int[np.ndarray, ' M'],
  names: Sequence[str] | Shaped[np.ndarray, ' M'],
  gallery_cameras: Sequence[int],
  trial: int,
  shots: int = 1,
) -> Int64[np.ndarray, ' drawn']:
  """Draws images of every (identity, camera) with Python's generator.

  One shot is `random.choice` after `random.seed(trial)`, bit for bit, and
  several are `random.sample`, or all images if there are fewer.

  Args:
    ids: identity of each test image.
    cameras: camera of each test image.
    names: file name of each test image.
    gallery_cameras: cameras of the gallery, in order.
    trial: the trial, which is the seed.
    shots: images per identity and camera.

  Returns:
    Indices of the drawn images, in the order of the draws.

  Raises:
    DataError: arrays of different lengths.
  """
  # A separate generator, since users may use the global one.
  rng = random.Random(trial)
  drawn = []
  for _, _, images in _folders(ids, cameras, names, gallery_cameras):
    drawn += rng.sample(images.tolist(), min(shots, images.size))
  return np.asarray(drawn, np.int64)


def sysu_agw_gallery(
  ids: Sequence[int] | Int[np.ndarray, ' M'],
  cameras: Sequence[int] | Int[np.ndarray, ' M'],
  names: Sequence[str] | Shaped[np.ndarray, ' M'],
  trial: int,
  mode: str = 'all',
  shots: int = 1,
) -> Int64[np.ndarray, ' drawn']:
  """Draws the SYSU-MM01 gallery of a trial as in the AGW code.

  Args:
    ids: identity of each test image.
    cameras: camera of each test image, 1 to 6.
    names: file name of each test image.
    trial: 0 to 9.
    mode: 'all' (visible cameras 1, 2, 4, 5) or 'indoor' (1, 2).
    shots: 1 or 10 images per identity and camera.

  Returns:
    Indices of the gallery images.

  Raises:
    ConfigError: an unknown mode.
    DataError: arrays of different lengths.
  """
  gallery_cameras = _mode_cameras(SYSU_GALLERY_CAMERAS, mode, 'mode')
  return sample_per_camera(ids, cameras, names, gallery_cameras, trial, shots)


def sysu_official_gallery(
  ids: Sequence[int] | Int[np.ndarray, ' M'],
  cameras: Sequence[int] | Int[np.ndarray, ' M'],
  names: Sequence[str] | Shaped[np.ndarray, ' M'],
  permutations: Mapping[tuple[int, int], Int[np.ndarray, 'trials _']],
  trial: int,
  mode: str = 'all',
  shots: int = 1,
) -> Int64[np.ndarray, ' drawn']:
  """Takes the SYSU-MM01 gallery of a trial from the published permutations.

  Args:
    ids: identity of each test image.
    cameras: camera of each test image, 1 to 6.
    names: file name of each test image.
    permutations: by (identity, camera), the permutation of its images sorted
      by name for each trial, counted from 1 as published.
    trial: 0 to 9.
    mode: 'all' (visible cameras 1, 2, 4, 5) or 'indoor' (1, 2).
    shots: 1 or 10 images per identity and camera.

  Returns:
    Indices of the gallery images.

  Raises:
    ConfigError: an unknown mode.
    DataError: arrays of different lengths, or permutations that are missing
      or do not fit the images.
  """
  gallery_cameras = _mode_cameras(SYSU_GALLERY_CAMERAS, mode, 'mode')
  drawn = []
  for identity, camera, images in _folders(
    ids, cameras, names, gallery_cameras
  ):
    table = np.asarray(permutations.get((identity, camera), ()), np.int64)
    order = table[trial : trial + 1].ravel() - 1
    if not np.array_equal(np.sort(order), np.arange(images.size)):
      raise errors.DataError(
        f'no permutation of {errors.counted(images.size, "image")} for trial '
        f'{trial}',
        f'identity {identity}, camera {camera}',
        'use the permutations that came with these images',
      )
    drawn += images[order[:shots]].tolist()
  return np.asarray(drawn, np.int64)


def llcm_gallery(
  ids: Sequence[int] | Int[np.ndarray, ' M'],
  cameras: Sequence[int] | Int[np.ndarray, ' M'],
  names: Sequence[str] | Shaped[np.ndarray, ' M'],
  trial: int,
  modality: str = 'visible',
) -> Int64[np.ndarray, ' drawn']:
  """Draws the LLCM gallery of a trial: one image per (identity, camera).

  Args:
    ids: identity of each test image of the gallery modality.
    cameras: camera of each of them.
    names: file name of each of them.
    trial: 0 to 9.
    modality: modality of the gallery, 'visible' (cameras 1 to 9) or 'infrared'
      (without camera 3). Camera numbers repeat across modalities, so the arrays
      contain one modality only.

  Returns:
    Indices of the gallery images.

  Raises:
    ConfigError: an unknown modality.
    DataError: arrays of different lengths.
  """
  # Infrared images have no camera 3.
  gallery_cameras = _mode_cameras(LLCM_CAMERAS, modality, 'modality')
  return sample_per_camera(ids, cameras, names, gallery_cameras, trial)
