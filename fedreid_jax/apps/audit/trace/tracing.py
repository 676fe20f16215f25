"""Tracing: whether a person is among those whose mean was published.

Homer et al., "Resolving individuals contributing trace amounts of DNA to highly
complex mixtures" (PLoS Genetics 2008); Dwork et al., "Robust traceability from
trace amounts" (FOCS 2015). The attacker has the mean m of the features of J
persons, the feature y of one person, and a reference population. With features
whitened by the mean and the standard deviation of the reference in each of D
dimensions, the score of the person is

  T(y) = <y - ref, m - ref>.

If the whitened features are isotropic and m has noise of variance s^2 in each
dimension, members and non-members differ by

  d' = (D / J) / sqrt(D (1 / J + s^2)),  AUC = Phi(d' / sqrt(2)),
  TPR at 1 % FPR = Phi(d' - Phi^-1(0.99)).

A reference of R persons acts as noise of variance 1 / R. Real features are not
isotropic. Their effective number of dimensions is (sum l)^2 / sum l^2, where l
are the eigenvalues of their covariance.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from fedreid_jax.apps.audit import detection

SIMULATED = 4000  # least number of members of the positive control
STRANGERS = 200  # non-members who are scored in one repetition of it
CLOSE = 0.03  # largest gap between simulation and theory
_SMALLEST = 1e-6  # standard deviation of a dimension that is not dead


class Theory(NamedTuple):
  """Expected success for isotropic features.

  Attributes:
    auc: area under the ROC curve.
    tpr: true positive rate at a false positive rate of 1 %.
  """

  auc: float
  tpr: float


def theory(dimensions: float, persons: int, variance: float = 0.0) -> Theory:
  """Returns the expected success for isotropic features.

  Args:
    dimensions: number of dimensions, `D`.
    persons: number of members, `J`.
    variance: of the noise on the mean, in units of the features' variance.
  """
  gap = dimensions / persons
  gap /= np.sqrt(dimensions * (1 / persons + variance))
  rate = stats.norm.cdf(gap - stats.norm.ppf(1 - detection.FALSE_POSITIVES))
  return Theory(float(stats.norm.cdf(gap / np.sqrt(2))), float(rate))


def scores(
  persons: Float[np.ndarray, 'P D'],
  published: Float[np.ndarray, ' D'],
  reference: Float[np.ndarray, 'R D'],
) -> Float[np.ndarray, ' P']:
  """Returns T of each person, standardised by the scores of the reference.

  Args:
    persons: mean feature of each person.
    published: the published mean.
    reference: mean features of persons who are not members.
  """
  centre, spread = reference.mean(0), reference.std(0)
  # Dead dimensions get the weight 0. The maximum keeps the division, which
  # np.where evaluates everywhere, from a division by zero.
  alive = spread > _SMALLEST
  scale = np.where(alive, 1 / np.maximum(spread, _SMALLEST), 0.0)

  def whitened(features: np.ndarray) -> np.ndarray:
    return ((features - centre) * scale).astype(np.float64)

  towards = whitened(published)
  # Standardised scores of several clients can be pooled.
  found, usual = whitened(persons) @ towards, whitened(reference) @ towards
  return (found - usual.mean()) / max(float(usual.std()), 1e-12)


def effective_dimensions(reference: Float[np.ndarray, 'R D']) -> float:
  """Returns the effective number of dimensions of whitened features."""
  spread = reference.std(0)
  alive = reference[:, spread > _SMALLEST].astype(np.float64)
  rows = (alive - alive.mean(0)) / alive.std(0)
  # The sum of the eigenvalues is the number of dimensions, since whitened ones
  # have variance 1. The sum of the squared eigenvalues of a covariance of R
  # persons is too large by (sum l)^2 / R, which is subtracted.
  total = rows.shape[1]
  squared = np.square(rows.T @ rows / len(rows)).sum() - total**2 / len(rows)
  return float(np.clip(total**2 / max(squared, total), 1.0, total))


def simulate(dimensions: int, persons: int, reference: int, seed: int) -> float:
  """Returns the mean AUC for isotropic features, the positive control."""
  rng = np.random.default_rng(seed)
  found = []
  for _ in range(-(-SIMULATED // persons)):
    members = rng.standard_normal((persons, dimensions))
    known = rng.standard_normal((reference, dimensions))
    strangers = rng.standard_normal((STRANGERS, dimensions))
    mean = members.mean(0)
    found.append(
      detection.auc(
        scores(members, mean, known), scores(strangers, mean, known)
      )
    )
  return float(np.mean(found))
