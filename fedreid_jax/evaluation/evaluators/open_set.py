"""Open-set identification: rank-1 at a false alarm rate.

A fraction of the persons of a target, drawn with a seed, are strangers: their
images leave the gallery, and their queries should be rejected. A query is
accepted if the distance to its nearest image is at most a threshold t:

  FAR(t)  accepted share of the queries of strangers
  DIR(t)  share of the queries of known persons that are accepted and whose
          nearest image is of the right person

  DIR_at_FAR_r  the largest DIR(t) of all t with FAR(t) <= r

(Grother and Ngan, "Face recognition vendor test", NIST 8009, 2014; DIR at
FAR = 1 is rank-1 of the smaller gallery.) With fewer than 1 / r queries of
strangers, DIR_at_FAR_r is the DIR without any false alarm. Queries are compared
with the images that the protocol does not hide from them. The distances are
those of the features also with `evaluation.rerank`.
"""

import dataclasses
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float

from fedreid_jax import errors
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.data.federation import Target, Trial
from fedreid_jax.evaluation import distances, gallery, means
from fedreid_jax.evaluation.features import Model
from fedreid_jax.evaluation.options import Evaluation, Every, protocol_of

RATES = {'1e-1': 1e-1, '1e-2': 1e-2}


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of open-set identification."""

  strangers: Annotated[
    float, Range(0.01, 0.99), 'fraction of the persons that are strangers'
  ] = 0.5
  seed: Annotated[int, Range(0), 'random seed of the strangers'] = 0
  every: Every = 1


def evaluate(
  model: Model, target: Target, options: Options = Options()
) -> dict[str, float | int]:
  """Metrics above in percent, means over the trials of a target."""
  found = model.features(target)
  return means.over_trials(
    [
      _of_trial(model.config, target, found, own, options)
      for own in target.trials
    ]
  )


def _of_trial(
  config: Evaluation,
  target: Target,
  found: Float[np.ndarray, 'M D'],
  trial: Trial,
  options: Options,
) -> dict[str, float | int]:
  labels = gallery.labels_of(target.images, trial)
  _, rules = protocol_of(config, target.protocol)
  persons = np.unique(labels.query_ids)
  order = np.random.default_rng(options.seed).permutation(persons)
  strangers = order[: max(1, round(options.strangers * len(order)))]
  known_image = ~np.isin(labels.gallery_ids, strangers)
  indexed = gallery.Gallery(labels, rules)
  nearest, right = [], []
  blocks = distances.squared_blocks(
    found[trial.query], found[trial.gallery], config.metric
  )
  query = 0
  for block in blocks:
    for row in block:
      same, dropped = indexed.split(
        labels.query_ids[query], labels.query_cameras[query]
      )
      visible = known_image.copy()
      visible[dropped] = False
      at = np.where(visible, row, np.inf)
      nearest.append(at.min())
      right.append(np.argmin(at) in same)
      query += 1
  return rates(
    np.array(nearest),
    np.array(right),
    np.isin(labels.query_ids, strangers),
  )


def rates(
  nearest: Float[np.ndarray, ' Q'],
  right: Bool[np.ndarray, ' Q'],
  stranger: Bool[np.ndarray, ' Q'],
) -> dict[str, float | int]:
  """`DIR_at_FAR_r` of `RATES` and of 1, in percent.

  `nearest` has the distance of each query to its nearest image, and `right`
  whether this image is of its person. A `stranger` is not in the gallery.

  Raises:
    DataError: without a query of a known person, or of a stranger.
  """
  if stranger.all() or not stranger.any():
    raise errors.DataError(
      f'{stranger.sum()} of {stranger.size} queries are of strangers',
      'evaluation.extra',
      'a target needs two persons or more',
    )
  alarms = np.sort(nearest[stranger])
  accepted_right = np.sort(nearest[~stranger][right[~stranger]])
  known = (~stranger).sum()
  result: dict[str, float | int] = {}
  for name, rate in {'1': 1.0, **RATES}.items():
    # At most floor(r S) alarms: the threshold is below the next alarm, so that
    # queries at its distance are rejected together with it. A query that sees
    # no image has an infinite distance and is never accepted.
    allowed = int(np.floor(rate * len(alarms)))
    below = alarms[allowed] if allowed < len(alarms) else np.inf
    count = np.searchsorted(accepted_right, below, 'left')
    result[f'DIR_at_FAR_{name}'] = 100.0 * float(count / known)
  return result
