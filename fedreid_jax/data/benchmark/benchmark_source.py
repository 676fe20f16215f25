"""Published data sets as domains for training and evaluation."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped

from fedreid_jax import errors
from fedreid_jax.data import federation, protocols, tracklets
from fedreid_jax.data.benchmark import prepared, trials
from fedreid_jax.data.benchmark.prepared import Prepared
from fedreid_jax.data.datasets import infrared, records, registry
from fedreid_jax.data.datasets.records import DIRECTIONS, INFRARED, JUNK
from fedreid_jax.data.federation import NOBODY, Images, Source, Target, Trial
from fedreid_jax.data.options import Data

LEARN = (*records.LEARN, 'public')
TEST = (*records.TEST, 'images', 'distractor')
# Data sets that show the same persons under different numbers.
OVERLAPS = ({'cuhk01', 'cuhk02'}, {'cuhk03', 'cuhk03-np'})
# Folder of the queries of data sets that are tested from one view to the other.
QUERY_FOLDER = {'prid2011': 'cam_a', 'viper': 'cam_a', 'grid': 'probe'}
# Number of test identities of a draw, where the protocol gives a number.
TESTED = {'prid2011': 100, 'grid': 125}


def load(config: Data, clients: bool = True) -> Source:
  """Opens the data sets of `config.data`.

  `clients=False` leaves the training domains out.

  Raises:
    ConfigError: for an unknown data set or option, or a wrong RegDB trial.
    DataError: for files that are not as published.
  """
  # A name that does not exist, before any folder that is missing.
  for spec in (*config.sources, *config.targets, config.public):
    if spec:
      registry.parse(spec)
  check_trials(config.sources, config.targets)
  if clients and not config.sources:
    raise errors.ConfigError(
      'no data set to learn from', 'data.sources', 'name at least one'
    )
  wanted = config.decoder()
  opened: dict[str, Prepared] = {}
  public = config.public if clients else ''
  specs = {*config.targets, *(config.sources if clients else ())}
  specs |= {public} - {''}
  for spec in sorted(specs):
    opened[spec] = prepared.open_prepared(config.root, spec, wanted)
  if clients and not config.allow_overlap:
    for source in config.sources:
      for target in config.targets:
        _check_disjoint(source, opened[source], target, opened[target])
    federation.check_no_copies(
      {s: opened[s].files_of(*LEARN) for s in config.sources},
      {t: opened[t].files_of(*TEST) for t in config.targets},
    )
  return Source(
    tuple(_source(spec, opened[spec]) for spec in config.sources)
    if clients
    else (),
    tuple(_target(spec, opened[spec], config) for spec in config.targets),
    ':'.join(opened[spec].digest[:16] for spec in sorted(opened)),
    _images(public, opened[public]) if public else None,
    _shown_twice(config) if clients else (),
  )


def _shown_twice(config: Data) -> tuple[str, ...]:
  """Notices of the training data sets that show test persons."""
  learned = dict.fromkeys(config.sources, 'trained on')
  learned |= dict.fromkeys([config.public] if config.public else [], 'public')
  return tuple(
    f'{source} ({role}) and {target} (tested on) show the same persons'
    for source, role in learned.items()
    for target in config.targets
    if {s.partition(':')[0] for s in (source, target)} in OVERLAPS
  )


def _check_disjoint(source: str, own: Prepared, target: str, other: Prepared):
  """Refuses a source and a target with common persons."""
  names = {own.dataset.name, other.dataset.name}
  common: set[int] = set()
  # Equal numbers are the same person only within one data set.
  if own.dataset.name == other.dataset.name:
    learned = set(own.people[own.rows(*LEARN)].tolist())
    common = learned & set(other.people[other.rows(*TEST)].tolist())
  if names in OVERLAPS or common - {*own.dataset.nobody}:
    raise errors.DataError(
      f'{source} and {target} show the same persons, who are trained on and '
      'tested on',
      'data.targets',
      'choose another split, or set data.allow_overlap',
    )


def check_trials(sources: Sequence[str], targets: Sequence[str]) -> None:
  """Raises ConfigError for a RegDB trial whose test persons were trained on."""
  trained = [registry.parse(s)[1] for s in sources if s.startswith('regdb')]
  for spec in targets:
    dataset, options = registry.parse(spec)
    for own in trained if dataset.name == 'regdb' else ():
      trials.check_regdb_trial(options['trial'], own['trial'])


def _images(
  spec: str, own: Prepared, rows: Int[np.ndarray, ' rows'] | None = None
) -> Images:
  if rows is None:
    rows = np.arange(len(own.people))
  distractors = np.isin(own.people, own.dataset.nobody) & (own.people != JUNK)
  return Images(
    spec.partition(':')[0],
    lambda: own.images[rows],
    np.where(distractors, NOBODY, own.people)[rows].astype(np.int32),
    own.cameras[rows],
    own.modalities[rows],
    None if own.tracklets is None else own.tracklets[rows],
  )


def _source(spec: str, own: Prepared) -> Images:
  rows = own.rows(*LEARN)
  if not len(rows):
    fix = 'make it a target'
    if 'split' in own.options:
      fix = f"give '{own.dataset.name}:split=half', or {fix}"
    raise errors.DataError(
      f'{spec} has no fixed training images', 'data.sources', fix
    )
  return _images(spec, own, rows)


def _target(spec: str, own: Prepared, config: Data) -> Target:
  name, protocol = spec.partition(':')[0], own.dataset.protocol
  ranked = config.task == 'retrieval'
  if ranked == (protocol == protocols.ACCURACY):
    raise errors.ConfigError(
      f'{name} is no {config.task} test', 'data.task', 'set it to the other'
    )
  if not ranked:
    images = _images(name, own, own.rows('test'))
    return federation.class_target(images, own.people[own.rows(*LEARN)])
  test = own.rows(*TEST)
  images = _images(name, own, test)
  splits = own.splits[test]
  is_query = np.isin(splits, ('query', 'query+gallery'))
  is_gallery = np.isin(splits, ('gallery', 'query+gallery'))
  if (splits == 'images').any():
    return _halves(name, own, images, splits, config.world_seed)
  if not is_query.any():
    raise errors.DataError(
      f'{spec} has no test images', 'data.targets', 'make it a source'
    )
  query, gallery = (
    tracklets.representatives(np.flatnonzero(side), images.tracklets)
    for side in (is_query, is_gallery)
  )
  if protocol not in ('sysu', 'llcm'):
    direction = own.options.get('direction', 'all')
    if direction not in ('all', config.direction):
      raise errors.ConfigError(
        f'{spec} is {direction}, data.direction is {config.direction}',
        'data.targets',
        f'give {name}:direction={config.direction}',
      )
    return Target(name, images, (Trial(query, gallery),), protocol, direction)
  names = np.asarray([own.names[row].rpartition('/')[2] for row in test])
  return _sampled(name, images, names, protocol, config)


def _halves(
  name: str,
  own: Prepared,
  images: Images,
  splits: Shaped[np.ndarray, ' M'],
  seed: int,
) -> Target:
  """Draws ten halves, with a query and a gallery image per identity."""
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


def _sampled(
  name: str,
  images: Images,
  names: Shaped[np.ndarray, ' M'],
  protocol: str,
  config: Data,
) -> Target:
  """Makes a test of one modality against sampled galleries of the other."""
  if config.search == 'indoor' and config.direction != DIRECTIONS[0]:
    raise errors.ConfigError(
      'indoor search ranks visible images', 'data.search', "set it to 'all'"
    )
  is_infrared = images.modalities == INFRARED
  ask = is_infrared if config.direction == DIRECTIONS[0] else ~is_infrared
  query, pool = np.flatnonzero(ask), np.flatnonzero(~ask)
  people, cameras, names = (
    column[pool] for column in (images.identities, images.cameras, names)
  )
  # The official protocol has visible galleries only.
  official = protocol == 'sysu' and config.gallery_sampling == 'official'
  permutations = {}
  if official and config.direction == DIRECTIONS[0]:
    root = registry.locate(infrared.SYSU_MM01, config.root)
    permutations = infrared.sysu_permutations(root)
  drawn = []
  for trial in range(config.trials):
    if protocol == 'llcm':
      side = config.direction.partition('-')[2]
      rows = trials.llcm_gallery(people, cameras, names, trial, side)
    elif config.direction != DIRECTIONS[0]:
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
