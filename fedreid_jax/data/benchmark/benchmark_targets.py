"""Test trials of published data sets that are drawn at random."""

import numpy as np
from jaxtyping import Shaped

from fedreid_jax import errors
from fedreid_jax.data.benchmark.prepared import Prepared
from fedreid_jax.data.datasets import regdb, registry, sysu_mm01
from fedreid_jax.data.federation import Images, Target, Trial
from fedreid_jax.evaluation import trials

# Folder of the queries of data sets that are tested from one view to the other.
QUERY_FOLDER = {'prid2011': 'cam_a', 'viper': 'cam_a', 'grid': 'probe'}
# Number of test identities of a draw, where the protocol gives a number.
TESTED = {'prid2011': 100, 'grid': 125}


def halves(
  name: str,
  own: Prepared,
  images: Images,
  splits: Shaped[np.ndarray, ' M'],
  seed: int,
) -> Target:
  """Makes a test of ten random halves of the identities.

  Each trial has one query and one gallery image per identity.

  Args:
    name: name of the data set.
    own: images and labels of the data set.
    images: its test images.
    splits: split of each of these images, as in `Record.split`.
    seed: seed of the draw.
  """
  people, counts = np.unique(images.identities, return_counts=True)
  # A person with one image has no pair of query and gallery.
  single = np.isin(images.identities, people[counts < 2])
  rows = np.flatnonzero(~single | (splits == 'distractor'))
  kept = images.take(rows)
  test = own.rows('images', 'distractor')[rows]
  names = [own.names[k] for k in test]
  folder = QUERY_FOLDER.get(name)
  views = kept.cameras
  if folder:
    views = np.asarray([1 if f'{folder}/' in path else 2 for path in names])
  # A miniature has too few persons for the number of the protocol, and is
  # divided in halves.
  drawn = trials.draw_half_splits(
    kept.identities,
    views,
    np.flatnonzero(splits[rows] == 'distractor'),
    num_test=TESTED.get(name)
    if len(people) > 2 * TESTED.get(name, 0)
    else None,
    query_camera=1 if folder else None,
    seed=seed,
  )
  return Target(
    name,
    kept,
    tuple(Trial(split.query, split.gallery) for split in drawn),
    own.dataset.protocol,
    splits=trials.describe_splits(drawn, names, seed),
  )


def sampled(
  name: str,
  images: Images,
  names: Shaped[np.ndarray, ' M'],
  protocol: str,
  config,
) -> Target:
  """Makes a test of one modality against sampled galleries of the other.

  Args:
    name: name of the data set.
    images: its test images.
    names: file names of these images.
    protocol: 'sysu' or 'llcm'.
    config: `config.data`.

  Raises:
    ConfigError: for indoor search with an infrared gallery.
  """
  if config.search == 'indoor' and config.direction != regdb.DIRECTIONS[0]:
    raise errors.ConfigError(
      'indoor search ranks visible images', 'data.search', "set it to 'all'"
    )
  infrared = images.modalities == 1
  ask = infrared if config.direction == regdb.DIRECTIONS[0] else ~infrared
  query, pool = np.flatnonzero(ask), np.flatnonzero(~ask)
  people, cameras, names = (
    column[pool] for column in (images.identities, images.cameras, names)
  )
  # The official protocol has visible galleries only.
  official = protocol == 'sysu' and config.gallery_sampling == 'official'
  permutations = {}
  if official and config.direction == regdb.DIRECTIONS[0]:
    root = registry.locate(sysu_mm01.DATASET, config.root)
    permutations = sysu_mm01.permutations(root)
  drawn = []
  for trial in range(config.trials):
    if protocol == 'llcm':
      side = config.direction.partition('-')[2]
      rows = trials.llcm_gallery(people, cameras, names, trial, side)
    elif config.direction != regdb.DIRECTIONS[0]:
      rows = trials.sample_per_camera(
        people,
        cameras,
        names,
        trials.SYSU_QUERY_CAMERAS,
        trial,
        config.shots_per_camera,
      )
    elif official:
      rows = trials.sysu_official_gallery(
        people,
        cameras,
        names,
        permutations,
        trial,
        config.search,
        config.shots_per_camera,
      )
    else:
      rows = trials.sysu_agw_gallery(
        people, cameras, names, trial, config.search, config.shots_per_camera
      )
    drawn.append(Trial(query, pool[rows]))
  return Target(name, images, tuple(drawn), protocol, config.direction)
