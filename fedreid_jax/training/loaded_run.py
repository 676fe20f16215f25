"""One model of a saved run, with its training and test images.

The clients of some methods send domain feature statistics (DFS) to the server
(`Component.statistics`). For a run of another method they are measured on the
clients' images with the model of the run.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import moments
from fedreid_jax.config import validation
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import types
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.augment import Transforms
from fedreid_jax.data.federation import Federation, Target
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import features
from fedreid_jax.losses import hallucination
from fedreid_jax.method.component import Component, DomainStatistics
from fedreid_jax.training import build, named_models, whole_network
from fedreid_jax.training.files import run_files

# The statistics of a run whose clients send none, as they are measured.
MEASURED = DomainStatistics(
  'feature',
  functools.partial(hallucination.draw, negative_variance='clamp'),
)


class LoadedRun(NamedTuple):
  """One model of a run with its training and test images.

  Parameters that were never shared have initial values, on which identity
  scores depend and features do not. `extractor` is `(feature=, flip=)`, of
  `features.make_extractor`. A state that is a tree has an entry for each leaf,
  named by its path.
  """

  config: Config
  step: int  # rounds of training
  name: str  # 'global', 'cluster:GROUP' or 'client:NAME'
  model: types.Model
  variables: types.Flat
  federation: Federation
  transforms: Transforms
  extractor: Callable[..., Callable[..., np.ndarray]]
  states: dict[str, np.ndarray]

  def features(
    self, images: np.ndarray, which: str, modalities: np.ndarray | None = None
  ) -> np.ndarray:
    """Features, float32 `[M, D]`, of images, uint8 `[M, H, W, ch]`.

    `which` is 'feature' before the neck or 'embedding' after it. Modalities,
    `[M]`, are 0 visible and 1 infrared; None: all are visible.
    """
    extract = self.extractor(feature=which, flip=False)
    return extract(self.variables, images, modalities)

  def ranked(
    self, images: np.ndarray, modalities: np.ndarray | None = None
  ) -> np.ndarray:
    """Returns the features that the run's evaluation ranks, `[M, D]`."""
    config = self.config.evaluation
    extract = self.extractor(feature=config.feature, flip=config.flip)
    return extract(self.variables, images, modalities)

  def distances(self, queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """The distances that rank a gallery, `[Q, P]`.

    Raises:
      DataError: when a feature is not a number.
    """
    blocks = distance_lib.squared_blocks(
      queries, gallery, self.config.evaluation.metric
    )
    found = np.concatenate(list(blocks))
    if np.isnan(found).any():
      raise errors.DataError(
        'NaN distance', f'features of {self.config.name}', 'give another run'
      )
    return found

  def moments(
    self, client: ClientData, which: str = 'feature'
  ) -> moments.Moments:
    """Moments of a client's features by identity, before or after the neck."""
    found = self.features(client.images(), which, client.modalities)
    none = moments.zeros(client.num_identities, found.shape[1])
    real = np.ones(len(found), bool)
    return jax.jit(moments.merge)(none, found, client.labels, real)

  def client(self, name: str) -> ClientData:
    """Returns a client, the first if the name is ''.

    Raises:
      ConfigError: for an unknown name.
    """
    return _named(self.federation.clients, name, 'client', '--source')

  def target(self, name: str) -> Target:
    """Returns a retrieval test, the first if the name is ''.

    Raises:
      ConfigError: for an unknown name, or a target of classification.
    """
    target = _named(self.federation.targets, name, 'target', '--target')
    if target.task == 'classification':
      raise errors.ConfigError(
        f'{target.name} is a classification target, nothing is ranked',
        '--target',
        'give a run with retrieval tests',
      )
    return target


def _named(found: Sequence[Any], name: str, kind: str, flag: str) -> Any:
  for one in found:
    if name in ('', one.name):
      return one
  names = ', '.join(one.name for one in found) or 'none'
  raise errors.ConfigError(f'no {kind} {name!r}', flag, f'there are {names}')


def same_images(run: LoadedRun, other: LoadedRun, flag: str) -> None:
  """Refuses a second run on images of another size."""
  ours, theirs = run.federation.image_shape, other.federation.image_shape
  if ours != theirs:
    raise errors.ConfigError(
      f'{other.config.name} has images of {list(theirs)}, {run.config.name} of '
      f'{list(ours)}',
      flag,
      'give a run on images of the same size',
    )


def load(
  config: Config,
  workdir: Path,
  which: str = 'latest',
  name: str = '',
  federation: Federation | None = None,
) -> LoadedRun:
  """Loads a model of a checkpoint: 'latest', 'best' or a step.

  Without a name it is the server's model, or the first of several. Without a
  federation, the images of `config` are loaded.

  Raises:
    IntegrityError: no such checkpoint, or it does not verify or fit the model.
    ConfigError: for a model the run does not have.
  """
  saved = run_files.checkpoints_of(workdir)
  step, models, _, _ = named_models.restore(saved, which)
  states = saved.restore_states(step)
  name = named_models.choose(models, name)
  if federation is None:
    held_out = config.evaluation.validation
    options = validation.arguments(config, config.data.source)
    federation = data_lib.load(config.data, held_out=held_out, options=options)
  model, variables, transforms, mesh = named_models.network(
    whole_network.pinned(config, workdir), federation, models[name]
  )
  make, batch = features.make_extractor, config.evaluation.batch
  return LoadedRun(
    config=config,
    step=step,
    name=name,
    model=model,
    variables={**variables, **models[name]},
    federation=federation,
    transforms=transforms,
    # Each extractor has a jitted function, which compiles once.
    extractor=functools.cache(
      functools.partial(make, model, transforms.test, mesh, batch=batch)
    ),
    states=states,
  )


def statistics_sender(run: LoadedRun) -> Component | None:
  """Returns the component whose clients send DFS, None without one."""
  components = build.load_components(run.config)
  return next((c for c in components if c.statistics), None)


def statistics_of(run: LoadedRun) -> DomainStatistics:
  """Returns what the DFS of a run describe; by default it is `MEASURED`."""
  found = statistics_sender(run)
  return (found and found.statistics) or MEASURED


def statistics_sent(run: LoadedRun) -> jax.Array | None:
  """The DFS that the server stored, `[N, 4, D]`.

  None if it stored none, or if the configuration has another number of clients.
  """
  found = statistics_sender(run)
  kept = run.states.get(found.name) if found else None
  if kept is None or len(kept) != len(run.federation.clients):
    return None
  return jnp.asarray(kept)


def domain_statistics(run: LoadedRun) -> jax.Array:
  """The DFS of every client, `[N, 4, D]`, rows m, v, p and q.

  They are measured on the images unless the server stored them.
  """
  kept = statistics_sent(run)
  if kept is not None:
    return kept
  which, statistics = statistics_of(run).space, jax.jit(moments.statistics)
  every = [statistics(run.moments(c, which)) for c in run.federation.clients]
  return jnp.stack(every)
