"""Published data sets as domains for training and evaluation."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from fedreid_jax import errors
from fedreid_jax.data import decoder, federation
from fedreid_jax.data.benchmark import benchmark_targets, prepared
from fedreid_jax.data.benchmark.prepared import Prepared
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.federation import Images, Source, Target, Trial
from fedreid_jax.evaluation import protocols, trials

LEARN = ('train', 'val', 'public')
TEST = ('query', 'gallery', 'query+gallery', 'images', 'distractor')
# Data sets that show the same persons under different numbers.
OVERLAPS = ({'cuhk01', 'cuhk02'}, {'cuhk03', 'cuhk03-np'})


def load(config, clients: bool = True) -> Source:
  """Opens the data sets that a configuration names.

  Args:
    config: `config.data`: `root` (the folder of one data set, or of all of
      them), `sources`, `targets` and `public` (`NAME[:option=value,...]`).
    clients: whether to open the training domains, too.

  Raises:
    ConfigError: for an unknown data set or option, or a RegDB trial that the
      model was not trained for.
    DataError: for files that are not as published.
  """
  check_trials(config.sources, config.targets)
  if clients and not config.sources:
    raise errors.ConfigError(
      'no data set to learn from', 'data.sources', 'name at least one'
    )
  wanted = decoder.of(config)
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
      {s: _files(opened[s], LEARN) for s in config.sources},
      {t: _files(opened[t], TEST) for t in config.targets},
    )
  return Source(
    tuple(_source(spec, opened[spec]) for spec in config.sources)
    if clients
    else (),
    tuple(_target(spec, opened[spec], config) for spec in config.targets),
    ':'.join(opened[spec].digest[:16] for spec in sorted(opened)),
    _everything(public, opened[public]) if public else None,
    _shown_twice(config) if clients else (),
  )


def _shown_twice(config) -> tuple[str, ...]:
  """Returns a notice for each data set in training that shows test persons."""
  learned = dict.fromkeys(config.sources, 'trained on')
  learned |= dict.fromkeys([config.public] if config.public else [], 'public')
  return tuple(
    f'{source} ({role}) and {target} (tested on) show the same persons'
    for source, role in learned.items()
    for target in config.targets
    if {s.partition(':')[0] for s in (source, target)} in OVERLAPS
  )


def _everything(spec: str, own: Prepared) -> Images:
  """Returns the images of all splits of a data set."""
  return _images(spec.partition(':')[0], own, np.arange(len(own.people)))


def _files(own: Prepared, splits: Sequence[str]) -> list[str]:
  return own.files[own.rows(*splits)].tolist()


def _check_disjoint(source: str, own: Prepared, target: str, other: Prepared):
  """Refuses a source and a target with common persons.

  Numbers of persons are compared only within one data set.
  """
  names = {own.dataset.name, other.dataset.name}
  common: set[int] = set()
  if own.dataset.name == other.dataset.name:
    learned = set(own.people[own.rows(*LEARN)].tolist())
    common = learned & set(other.people[other.rows(*TEST)].tolist())
  # Junk and distractors have one number for many persons.
  if names in OVERLAPS or common - {-1, 0}:
    raise errors.DataError(
      f'{source} and {target} show the same persons, who are trained on and '
      'tested on',
      'data.targets',
      'choose another split, or set data.allow_overlap',
    )


def check_trials(sources: Sequence[str], targets: Sequence[str]) -> None:
  """Refuses a RegDB trial whose test identities were training identities.

  Args:
    sources: training data sets of the model, as in `data.sources`.
    targets: data sets to test it on.

  Raises:
    ConfigError: for a RegDB trial other than the trial of the training.
  """
  trained = [registry.parse(s)[1] for s in sources if s.startswith('regdb')]
  for spec in targets:
    dataset, options = registry.parse(spec)
    for own in trained if dataset.name == 'regdb' else ():
      trials.check_regdb_trial(options['trial'], own['trial'])


def _images(name: str, own: Prepared, rows: Int[np.ndarray, ' rows']) -> Images:
  return Images(
    name,
    lambda: own.images[rows],
    own.people[rows],
    own.cameras[rows],
    own.modalities[rows],
  )


def _source(spec: str, own: Prepared) -> Images:
  rows = own.rows(*LEARN)
  if not len(rows):
    raise errors.DataError(
      f'{spec} has no fixed training images', 'data.sources', _no_train(own)
    )
  return _images(spec.partition(':')[0], own, rows)


def _no_train(own: Prepared) -> str:
  if 'split' in own.options:
    return f"give '{own.dataset.name}:split=half', or make it a target"
  return 'make it a target'


def _target(spec: str, own: Prepared, config) -> Target:
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
    return benchmark_targets.halves(
      name, own, images, splits, config.world_seed
    )
  if not is_query.any():
    raise errors.DataError(
      f'{spec} has no test images', 'data.targets', 'make it a source'
    )
  query, gallery = np.flatnonzero(is_query), np.flatnonzero(is_gallery)
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
  return benchmark_targets.sampled(name, images, names, protocol, config)
