"""Trials of a protocol: random galleries and splits.

SYSU-MM01 and LLCM take a few images of every (identity, camera). Two published
samplings exist for SYSU-MM01. They give different galleries, so that results
should name the sampling:

  agw: the code of Ye et al. (TPAMI 2021) and its descendants, with Python's
    generator seeded by the trial;
  official: the code of Wu et al. (ICCV 2017), with permutations that are
    distributed with the data set.

VIPeR, GRID, i-LIDS, PRID, 3DPeS, CAVIAR and CUHK01 have no fixed test set. Half
of the identities are drawn for testing, with one query and one gallery image
each (Wu and Gong, AAAI 2021, section 5.1), and the mean over ten such splits is
reported.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64, Shaped

from fedreid_jax import errors

SYSU_QUERY_CAMERAS = (3, 6)
SYSU_GALLERY_CAMERAS = {'all': (1, 2, 4, 5), 'indoor': (1, 2)}
LLCM_CAMERAS = {
  'visible': (1, 2, 3, 4, 5, 6, 7, 8, 9),
  # Infrared images have no camera 3.
  'infrared': (1, 2, 4, 5, 6, 7, 8, 9),
}
Numbers = Sequence[int] | Int[np.ndarray, ' M']
Names = Sequence[str] | Shaped[np.ndarray, ' M']
NUM_REGDB_TRIALS = 10


def sample_per_camera(
  ids: Numbers,
  cameras: Numbers,
  names: Names,
  gallery_cameras: Sequence[int],
  trial: int,
  shots: int = 1,
) -> Int64[np.ndarray, ' drawn']:
  """Draws images of every (identity, camera) with Python's generator.

  One shot is `random.choice` after `random.seed(trial)`, bit for bit, and
  several are `random.sample`, or all images if there are fewer. The result has
  indices in the order of the draws.

  Args:
    gallery_cameras: cameras of the gallery, in order.
    trial: 0 to 9, the seed.
    shots: images per identity and camera.

  Raises:
    DataError: for arrays of different lengths.
  """
  # A separate generator, since users may use the global one.
  rng = random.Random(trial)
  drawn = []
  for _, _, images in _folders(ids, cameras, names, gallery_cameras):
    drawn += rng.sample(images.tolist(), min(shots, images.size))
  return np.asarray(drawn, np.int64)


def sysu_agw_gallery(
  ids: Numbers,
  cameras: Numbers,
  names: Names,
  trial: int,
  mode: str = 'all',
  shots: int = 1,
) -> Int64[np.ndarray, ' drawn']:
  """Draws the SYSU-MM01 gallery of a trial as in the AGW code.

  `mode` is 'all' (visible cameras 1, 2, 4, 5) or 'indoor' (1, 2).

  Raises:
    ConfigError: for an unknown mode.
    DataError: for arrays of different lengths.
  """
  gallery_cameras = _mode_cameras(SYSU_GALLERY_CAMERAS, mode, 'mode')
  return sample_per_camera(ids, cameras, names, gallery_cameras, trial, shots)


def sysu_official_gallery(
  ids: Numbers,
  cameras: Numbers,
  names: Names,
  permutations: Mapping[tuple[int, int], Int[np.ndarray, 'trials _']],
  trial: int,
  mode: str = 'all',
  shots: int = 1,
) -> Int64[np.ndarray, ' drawn']:
  """Takes the SYSU-MM01 gallery of a trial from the published permutations.

  `permutations` has, by (identity, camera), the permutation of its images
  sorted by name for each trial, counted from 1 as published.

  Raises:
    ConfigError: for an unknown mode.
    DataError: for arrays of different lengths, or permutations that do not fit.
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
  ids: Numbers,
  cameras: Numbers,
  names: Names,
  trial: int,
  modality: str = 'visible',
) -> Int64[np.ndarray, ' drawn']:
  """Draws the LLCM gallery of a trial: one image per (identity, camera).

  Camera numbers repeat across modalities, so the arrays contain one modality
  only, that of the gallery.

  Raises:
    ConfigError: for an unknown modality.
    DataError: for arrays of different lengths.
  """
  gallery_cameras = _mode_cameras(LLCM_CAMERAS, modality, 'modality')
  return sample_per_camera(ids, cameras, names, gallery_cameras, trial)


def _folders(ids: Numbers, cameras: Numbers, names: Names, gallery_cameras):
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


def check_regdb_trial(trial: int, trained_trial: Any) -> None:
  """Refuses to test a RegDB trial with a model of another trial.

  `trained_trial` is the one recorded with the model, None for a model that was
  not trained on RegDB.

  Raises:
    ConfigError: if there is no such trial, or the model is of another one.
    IntegrityError: if the recorded trial does not exist.
  """
  known = range(1, NUM_REGDB_TRIALS + 1)
  if trial not in known:
    raise errors.ConfigError(
      f'RegDB has no trial {trial!r}', 'trial', f'use 1 to {NUM_REGDB_TRIALS}'
    )
  if trained_trial is None:
    return
  if trained_trial not in known:
    raise errors.IntegrityError(
      f'the model records RegDB trial {trained_trial!r}, which does not exist',
      'checkpoint',
      'train the model again',
    )
  # The ten trials split the same 412 identities: a model of another trial was
  # trained on about half of the test identities.
  if trained_trial != trial:
    raise errors.ConfigError(
      f'the model was trained on RegDB trial {trained_trial}, not {trial}',
      'trial',
      'its training identities are in this test set; train one per trial',
    )


class Split(NamedTuple):
  """One split; indices into the images of the data set."""

  train: Int64[np.ndarray, ' train']  # images of identities not tested
  query: Int64[np.ndarray, ' Q']  # one per test identity, ascending
  gallery: Int64[np.ndarray, ' P']  # another image of each, then distractors


def draw_half_splits(
  ids: Numbers,
  cameras: Numbers,
  distractors: Sequence[int] | Int[np.ndarray, ' distractors'] = (),
  num_splits: int = 10,
  num_test: int | None = None,
  query_camera: int | None = None,
  seed: int = 0,
) -> list[Split]:
  """Draws random half splits with one query and one gallery image each.

  Args:
    distractors: images that are in every gallery and in no training set.
    num_test: test identities per split, by default half of them, rounded down.
    query_camera: camera of all queries (PRID, GRID), by default any.
    seed: random seed; split `i` depends on the seed and `i` only.

  Raises:
    ConfigError: for no test identities, or more than there are.
    DataError: for an identity with one image, or none of the query camera.
  """
  ids, cameras = np.asarray(ids), np.asarray(cameras)
  is_distractor = np.zeros(ids.size, bool)
  is_distractor[np.asarray(distractors, np.int64)] = True
  identities = np.unique(ids[~is_distractor])
  num_test = identities.size // 2 if num_test is None else num_test
  if not 1 <= num_test <= identities.size:
    raise errors.ConfigError(
      f'{num_test} test identities of {identities.size}',
      'num_test',
      'use at least 1 and at most all',
    )
  splits = []
  for index in range(num_splits):
    # A generator per split, so that more splits do not change the first ones.
    rng = np.random.default_rng([seed, index])
    test = np.sort(rng.permutation(identities)[:num_test])
    pairs = [
      _draw_pair(
        rng,
        np.flatnonzero((ids == identity) & ~is_distractor),
        cameras,
        query_camera,
      )
      for identity in test
    ]
    query, gallery = np.asarray(pairs).T
    splits.append(
      Split(
        train=np.flatnonzero(~is_distractor & ~np.isin(ids, test)),
        query=query,
        gallery=np.append(gallery, np.flatnonzero(is_distractor)),
      )
    )
  return splits


def _draw_pair(rng, images, cameras, query_camera):
  queries = images
  if query_camera is not None:
    queries = images[cameras[images] == query_camera]
  if not queries.size or images.size < 2:
    raise errors.DataError(
      f'{errors.counted(images.size, "image")}, {queries.size} of them '
      'for queries',
      f'the identity of image {images[0]}',
      'an identity needs a query and another image, or is a distractor',
    )
  query = rng.choice(queries)
  # The two images are of two cameras if the identity has two.
  elsewhere = images[cameras[images] != cameras[query]]
  others = elsewhere if elsewhere.size else images[images != query]
  return query, rng.choice(others)


def describe_splits(
  splits: Sequence[Split], names: Sequence[str], seed: int
) -> dict[str, Any]:
  """Splits and their seed as values for JSON, images by name."""
  named = [
    {part: [names[i] for i in images] for part, images in s._asdict().items()}
    for s in splits
  ]
  return {'seed': seed, 'splits': named}
