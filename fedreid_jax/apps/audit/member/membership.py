"""Membership of a person in the training of a model, from shadow models.

The score of a person in a model is how compact the person's features are: the
mean cosine between them, minus the mean cosine to the features of the nearest
other person. Training makes it larger. Several models are trained, each on a
random part of the persons, and each of them is attacked with the scores in the
others (LiRA of Carlini et al., "Membership inference attacks from first
principles", S&P 2022, section 5): for person i, s_i is normal with mean
mu_in,i over the models with the person and mu_out,i over those without, and

  Lambda_i = log N(s_i; mu_in,i, v_in) - log N(s_i; mu_out,i, v_out).
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection
from fedreid_jax.apps.audit.detection import Detection

DRAWS = 1000  # of the bootstrap

Scores = Float[np.ndarray, 'R P']
Included = Bool[np.ndarray, 'R P']
Sides = tuple[Float[np.ndarray, ' M'], Float[np.ndarray, ' N']]


def compactness(
  features: Float[np.ndarray, 'M D'], persons: Int[np.ndarray, ' M']
) -> Float[np.ndarray, ' P']:
  """Returns the score of each person in one model.

  Args:
    features: of images.
    persons: of the images, from 0 to P - 1, each with two images or more.
  """
  norms = np.linalg.norm(features, axis=1, keepdims=True)
  directions = features / np.maximum(norms, 1e-12)
  counts = np.bincount(persons)
  sums = np.zeros((len(counts), features.shape[1]))
  np.add.at(sums, persons, directions)
  products = sums @ sums.T
  # The cosine of an image with itself is no evidence: it is subtracted.
  own = np.bincount(persons, (directions**2).sum(1))
  within = (np.diag(products) - own) / (counts * (counts - 1))
  between = products / np.outer(counts, counts)
  # A person is not the nearest other person of itself.
  np.fill_diagonal(between, -np.inf)
  return within - between.max(1)


def log_ratios(scores: Scores, included: Included) -> Scores:
  """Returns Lambda of every person in every model, by the other models.

  It is NaN where no other model has the person, or all have.

  Args:
    scores: of the persons in `R` models.
    included: whether the model was trained with the person.
  """
  found = np.full(scores.shape, np.nan)
  for run in range(len(scores)):
    # The attacked model is left out, so its score does not describe itself.
    others = np.delete(scores, run, axis=0)
    member = np.delete(included, run, axis=0)
    with np.errstate(invalid='ignore'):
      found[run] = _log_normal(scores[run], others, member) - _log_normal(
        scores[run], others, ~member
      )
  return found


def _log_normal(
  score: Float[np.ndarray, ' P'], scores: Scores, which: Included
) -> Float[np.ndarray, ' P']:
  """Returns the log density of scores up to a constant, `[P]`.

  Args:
    score: of the persons in the attacked model.
    scores: of the persons in the other models.
    which: models and persons from which the density is estimated.
  """
  number = which.sum(0)
  mean = np.where(which, scores, 0).sum(0) / np.where(number, number, np.nan)
  # A variance of each person would be too uncertain: the paper advises a common
  # one for few models. A person costs a degree of freedom by its mean.
  gaps = np.where(which, scores - mean, 0)[:, number > 0]
  variance = (gaps**2).sum() / max(int((number[number > 0] - 1).sum()), 1)
  # The inverted comparison is also true of NaN.
  if not variance > 0:
    return np.full(len(score), np.nan)
  return -((score - mean) ** 2) / (2 * variance) - np.log(variance) / 2


def measure(ratios: Scores, included: Included, seed: int = 0) -> Detection:
  """Returns how well the ratios tell members from non-members.

  The intervals are percentiles of a bootstrap over persons. The interval of the
  TPR is None if a sample has fewer than 1000 non-members.

  Args:
    ratios: Lambda; NaN is left out.
    included: whether the model was trained with the person.
    seed: of the bootstrap.

  Raises:
    DataError: if no ratio is a number.
  """
  members, others = _sides(ratios, included)
  found = detection.measure(members, others)
  areas, rates = [], []
  for members, others in _drawn(ratios, included, seed):
    areas.append(detection.auc(members, others))
    hits = detection.hits(members, others)
    if hits is not None:
      rates.append(hits / len(members))
  whole = found.tpr is not None and len(rates) == len(areas)
  return found._replace(
    auc_interval=_percentiles(areas, detection.LEVEL),
    tpr_interval=_percentiles(rates, detection.LEVEL) if whole else None,
  )


def at_chance(ratios: Scores, included: Included, seed: int = 0) -> bool:
  """Returns whether the 99 % interval of the area contains 0.5.

  Args:
    ratios: as for `measure`.
    included: as for `measure`.
    seed: as for `measure`.
  """
  sides = _drawn(ratios, included, seed)
  areas = [detection.auc(members, others) for members, others in sides]
  low, high = _percentiles(areas, detection.CONTROL)
  return low <= detection.CHANCE <= high


def _sides(ratios: Scores, included: Included) -> Sides:
  """Returns the ratios of members, and of the others."""
  real = ~np.isnan(ratios)
  members, others = ratios[included & real], ratios[~included & real]
  if min(len(members), len(others)) < 2:
    raise errors.DataError(
      'the scores of the persons cannot be compared',
      'the audit of membership',
      'train with more models or more persons',
    )
  return members, others


def _drawn(ratios: Scores, included: Included, seed: int) -> Iterator[Sides]:
  """Yields the sides of samples of persons with replacement."""
  # Ratios of one person in several models are not independent, so persons are
  # drawn with all their models.
  rng, size = np.random.default_rng(seed), ratios.shape[1]
  for _ in range(DRAWS):
    persons = rng.integers(size, size=size)
    yield _sides(ratios[:, persons], included[:, persons])


def _percentiles(values: list[float], level: float) -> tuple[float, float]:
  tails = 50 * (1 - level), 50 * (1 + level)
  low, high = np.percentile(values, tails)
  return float(low), float(high)
