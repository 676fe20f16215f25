"""Random half splits of the small data sets, drawn from a seed.

VIPeR, GRID, i-LIDS, PRID, 3DPeS, CAVIAR and CUHK01 have no fixed test set. Half
of the identities are drawn for testing, with one query and one gallery image
each (Wu and Gong, AAAI 2021, section 5.1), and the mean over ten such splits is
reported.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from fedreid_jax import errors


class Split(NamedTuple):
  """One split; indices into the images of the data set.

  Attributes:
    train: images of the identities that are not tested.
    query: one image per test identity, identities ascending.
    gallery: another image of each of them in the same order, then the
      distractors.
  """

  train: Int64[np.ndarray, ' train']
  query: Int64[np.ndarray, ' Q']
  gallery: Int64[np.ndarray, ' P']


def draw(
  ids: Sequence[int] | Int[np.ndarray, ' M'],
  cameras: Sequence[int] | Int[np.ndarray, ' M'],
  distractors: Sequence[int] | Int[np.ndarray, ' distractors'] = (),
  num_splits: int = 10,
  num_test: int | None = None,
  query_camera: int | None = None,
  seed: int = 0,
) -> list[Split]:
  """Draws random half splits with one query and one gallery image each.

  Args:
    ids: identity of each image.
    cameras: camera of each image.
    distractors: images that are in every gallery and in no training set.
    num_splits: number of splits.
    num_test: test identities per split, by default half of them, rounded down.
    query_camera: camera of all queries (PRID, GRID), by default any.
    seed: random seed; split `i` depends on the seed and `i` only.

  Raises:
    ConfigError: for no test identities, or more than there are.
    DataError: for an identity with one image, or without one of the query
      camera.
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


def described(
  splits: Sequence[Split], names: Sequence[str], seed: int
) -> dict[str, Any]:
  """Returns splits and their seed as values for JSON, images by name.

  Args:
    splits: the splits.
    names: name of each image, unique, `[M]`.
    seed: seed of the draws.
  """
  named = [
    {part: [names[i] for i in images] for part, images in s._asdict().items()}
    for s in splits
  ]
  return {'seed': seed, 'splits': named}
