"""Measures of a backdoor in retrieval: the effect of a trigger on queries.

  collision  share of the queries with the trigger whose nearest image is the
             one of their accomplice: an image of another person with the
             trigger, in addition to a clean gallery. Each query has a random
             accomplice, so that the share of a clean model is not zero
  evasion    mAP of queries with the trigger on the clean gallery
  stealth    mAP without any trigger

Compare each with the same measure of a model without an attack.
"""

import dataclasses
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from fedreid_jax import errors
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.data import poison, protocols
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import distances
from fedreid_jax.evaluation import gallery as gallery_lib
from fedreid_jax.evaluation.evaluators.retrieval import evaluate_retrieval
from fedreid_jax.evaluation.options import Every, protocol_of


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the measures of a backdoor."""

  seed: Annotated[int, Range(0), 'random seed of the accomplices'] = 0
  every: Every = 1


def evaluate(
  model: Any, target: Target, options: Options = Options()
) -> dict[str, float | int]:
  """Measures above on the first trial of a target, in percent.

  Metric, protocol and average precision are those of the configuration. A model
  without `config`, such as the result of `fedreid_jax.load`, needs only
  `embed(images, modalities)`; the Euclidean distance and the target's protocol
  are used. A DataError is raised for a target of one person.
  """
  trial, own = target.trials[0], target.images
  persons = np.unique(own.identities[trial.gallery])
  if np.count_nonzero(persons >= 0) < 2:
    raise errors.DataError(
      'one person has no accomplice', target.name, 'use a larger target'
    )
  config = getattr(model, 'config', None)
  # A loaded model has the configuration of its whole run.
  config = getattr(config, 'evaluation', config)
  if config is None:
    metric, rules = 'euclidean', protocols.get(target.protocol or 'market')
  else:
    metric = config.metric
    _, rules = protocol_of(config, target.protocol)
  pixels = own.images()
  clean = model.embed(pixels, own.modalities)
  stamped = model.embed(poison.stamp(pixels), own.modalities)
  if metric == 'cosine':
    # Euclidean distances of unit vectors rank as cosine distances do.
    clean, stamped = (
      np.asarray(distances.normalise(x)) for x in (clean, stamped)
    )
  gallery, labels = clean[trial.gallery], gallery_lib.labels_of(own, trial)
  attacked, honest = (
    evaluate_retrieval(rows[trial.query], gallery, *labels, protocol=rules)
    for rows in (stamped, clean)
  )
  indexed = gallery_lib.Gallery(labels, rules)
  hits = _collisions(stamped, gallery, target, indexed, options.seed)
  return {
    'collision': 100 * float(np.mean(hits)),
    'evasion': attacked['mAP'],
    'stealth': honest['mAP'],
  }


def _collisions(
  stamped: Float[np.ndarray, 'M D'],
  gallery: Float[np.ndarray, 'P D'],
  target: Target,
  indexed: gallery_lib.Gallery,
  seed: int,
) -> list[bool]:
  """Whether each query is nearest to its accomplice's image."""
  trial, own = target.trials[0], target.images
  people = own.identities[trial.gallery]
  rng = np.random.default_rng(seed)
  found: list[bool] = []
  for row in trial.query:
    # Junk and distractors, below 0, are no accomplices.
    others = trial.gallery[(people != own.identities[row]) & (people >= 0)]
    accomplice = stamped[rng.choice(others)]
    _, hidden = indexed.split(int(own.identities[row]), int(own.cameras[row]))
    seen = np.delete(gallery, hidden, axis=0)
    nearest = np.linalg.norm(seen - stamped[row], axis=1).min(initial=np.inf)
    found.append(bool(np.linalg.norm(accomplice - stamped[row]) < nearest))
  return found
