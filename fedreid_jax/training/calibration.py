"""A file of the distances of strangers under the models of a run.

`fedreid evaluate --strangers=FILE` writes it, and `fedreid search` and `serve`
read it to say what a match is worth (`evaluation.strangers`). The strangers are
held-out persons of the training domains (`evaluation.validation`) if there are
any, and otherwise persons of the targets.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import types
from fedreid_jax.data import validation
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import strangers
from fedreid_jax.evaluation.strangers import Calibration
from fedreid_jax.training import snapshot
from fedreid_jax.training.files import atomic, recorder
from fedreid_jax.version import __version__

AGAIN = 'write the file again with `fedreid evaluate --strangers=FILE`'
FIELDS = {'metric', 'models'}
# Fields of `data` that only targets depend on.
TESTED = {'targets', 'query', 'direction', 'target_identities', 'target_shots'}
OF_MODEL = {'digest', 'distances', 'persons', 'domains'}


def check(config: Config, path: Path) -> None:
  """Refuses features other than those that a search compares.

  Raises:
    ConfigError: for a test of classes, moments other than the running ones,
      features by camera or re-ranking.
    ResourceError: when the file cannot be written.
  """
  given = config.evaluation
  for wrong, field, fix in (
    (config.data.task != 'retrieval', 'data.task', 'give a run of persons'),
    (
      given.batch_stats != 'running',
      'evaluation.batch_stats',
      'add --set=evaluation.batch_stats=running, which embeddings have',
    ),
    (
      given.camera_norm,
      'evaluation.camera_norm',
      "add --set=evaluation.camera_norm=''",
    ),
  ):
    if wrong:
      raise errors.ConfigError(
        '--strangers needs the features that a search compares', field, fix
      )
  atomic.check_writable(path)


def held_out(config: Config, saved: Config) -> float:
  """Share of the persons of the clients whom the run has not trained on.

  It is 0 if the images of `config` are not those of the `saved` configuration:
  other draws would hold out persons who were trained on.
  """
  now, before = (vars(x.data) for x in (config, saved))
  changed = {name for name in now if now[name] != before[name]}
  return 0.0 if changed - TESTED else saved.evaluation.validation


class Collector:
  """Collects the features of the tests of each model."""

  def __init__(self):
    self._tests: dict[str, list[tuple[Target, Float[np.ndarray, 'M D']]]] = {}

  def __call__(
    self, model: str, target: Target, features: Float[np.ndarray, 'M D']
  ) -> None:
    """Keeps the ranked features of a target, as `seen` of an evaluation."""
    self._tests.setdefault(model, []).append((target, features))

  def write(
    self, path: Path, config: Config, models: Mapping[str, types.Flat]
  ) -> str:
    """Writes the distances of the models of a checkpoint.

    `models` has the leaves of the checkpoint by name; ensembles are left out.
    The result describes the file in a line.

    Raises:
      DataError: when a model has no test with two persons.
    """
    metric, found, texts = config.evaluation.metric, {}, {}
    for name, leaves in models.items():
      tests = self._tests[name]
      own = [x for x in tests if validation.is_validation(x[0].name)]
      one = strangers.calibrate(own or tests, metric)
      texts[name] = describe(one)
      found[name] = {
        'digest': snapshot.digest_of(config, leaves),
        'distances': one.distances.tolist(),
        'persons': one.persons,
        'domains': list(one.domains),
      }
    version = __version__
    content = {'metric': metric, 'models': found, 'fedreid_jax': version}
    recorder.write_json(path, content)
    return '; '.join(dict.fromkeys(texts.values()))


def describe(found: Calibration) -> str:
  """Describes strangers in a line."""
  pairs, persons = (
    errors.counted(len(found.distances), 'pair'),
    errors.counted(found.persons, 'person'),
  )
  return (
    f'{pairs} of {persons} of {", ".join(found.domains)}; a share below 1 of '
    f'{1 + len(found.distances):,} cannot be told'
  )


def read(path: Path, digest: str, metric: str) -> Calibration:
  """Reads the distances of strangers under the model of a digest.

  Raises:
    DataError: when there is no such file.
    IntegrityError: for a file of other models or another distance, or one that
      is damaged.
  """
  if not path.is_file():
    raise errors.DataError('no such file', str(path), AGAIN)
  try:
    content = json.loads(path.read_text())
    missing = FIELDS - content.keys()
    every = [] if missing else [*content['models'].values()]
    missing |= {name for one in every for name in OF_MODEL - one.keys()}
  except (OSError, ValueError, RecursionError, AttributeError) as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), AGAIN
    ) from error
  if missing:
    raise errors.IntegrityError(f'has no {min(missing)}', str(path), AGAIN)
  if content['metric'] != metric:
    raise errors.IntegrityError(
      f'has {content["metric"]} distances, and the vectors {metric} ones',
      str(path),
      AGAIN,
    )
  for one in every:
    if one['digest'] == digest:
      return _calibration(one, path)
  raise errors.IntegrityError(
    f'is of other models than the work directory has ({digest[:8]})',
    str(path),
    AGAIN,
  )


def _calibration(one: Mapping[str, Any], path: Path) -> Calibration:
  try:
    values = np.asarray(one['distances'], np.float32)
    persons, domains = int(one['persons']), tuple(map(str, one['domains']))
  except (TypeError, ValueError) as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), AGAIN
    ) from error
  if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
    raise errors.IntegrityError('has no distances', str(path), AGAIN)
  return Calibration(np.sort(values), persons, domains)
