"""A lower bound of epsilon from guesses about canaries, in one run.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run"
(NeurIPS 2023), theorem 5.2. Each of m canaries takes part with probability 1/2,
and the auditor guesses for r of them whether they did. Of a mechanism that is
(epsilon, delta)-private, the probability of v right guesses or more is at most

  p(epsilon) = beta + 2 m delta max_{1 <= i <= v} (P[B >= v - i] - beta) / i,
  beta = P[B >= v],  B ~ Bin(r, e^epsilon / (1 + e^epsilon)).

The bound is the largest epsilon with p <= 0.05, so that it exceeds the true
epsilon with a probability of at most 5 %. The auditor guesses that the r / 2
canaries with the highest scores took part and the r / 2 with the lowest did
not. The number r must be fixed before the scores are seen.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import optimize, stats

CONFIDENCE = 0.95
LARGEST = 50.0  # epsilon above which no search is needed


class Bound(NamedTuple):
  """A lower bound of epsilon.

  Attributes:
    epsilon: the bound, at 95 % confidence.
    canaries: their number, `m`.
    guesses: number of canaries that were guessed, `r`.
    right: number of right guesses, `v`.
  """

  epsilon: float
  canaries: int
  guesses: int
  right: int


def p_value(
  epsilon: float, delta: float, canaries: int, guesses: int, right: int
) -> float:
  """Returns the largest probability of `right` or more right guesses.

  Args:
    epsilon: of the mechanism.
    delta: of the mechanism.
    canaries: their number, `m`.
    guesses: number of canaries that were guessed, `r`.
    right: number of right guesses, `v`.
  """
  # This form of e^epsilon / (1 + e^epsilon) does not overflow.
  rate = 1 / (1 + np.exp(-epsilon))
  beta = float(stats.binom.sf(right - 1, guesses, rate))
  if not right or not delta:
    return min(beta, 1.0)
  steps = np.arange(1, right + 1)
  more = stats.binom.sf(right - steps - 1, guesses, rate) - beta
  worst = float((more / steps).max())
  return min(beta + 2 * canaries * delta * worst, 1.0)


def lower_bound(delta: float, canaries: int, guesses: int, right: int) -> float:
  """Returns the largest epsilon that `right` right guesses exclude.

  Args:
    delta: of the mechanism.
    canaries: their number, `m`.
    guesses: number of canaries that were guessed, `r`.
    right: number of right guesses, `v`.
  """

  def excess(epsilon: float) -> float:
    found = p_value(epsilon, delta, canaries, guesses, right)
    return found - (1 - CONFIDENCE)

  # root_scalar needs a change of sign in the bracket.
  if excess(0.0) >= 0:
    return 0.0
  if excess(LARGEST) <= 0:
    return LARGEST
  bracket = 0.0, LARGEST
  return float(optimize.root_scalar(excess, bracket=bracket, xtol=1e-6).root)


def guess(
  scores: Float[np.ndarray, ' m'],
  included: Bool[np.ndarray, ' m'],
  guesses: int,
  delta: float,
) -> Bound:
  """Returns the bound that follows from scores.

  Args:
    scores: of the canaries, higher for those that took part.
    included: whether each took part.
    guesses: number of canaries to guess, even and at most `m`.
    delta: of the mechanism.
  """
  half = guesses // 2
  # A stable sort breaks ties by the position, which is independent of whether a
  # canary takes part.
  order = np.argsort(scores, kind='stable')
  right = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
  number = len(scores)
  bound = lower_bound(delta, number, 2 * half, right)
  return Bound(bound, number, 2 * half, right)


def of_permuted(
  scores: Float[np.ndarray, ' m'],
  included: Bool[np.ndarray, ' m'],
  guesses: int,
  delta: float,
  seed: int,
  draws: int = 21,
) -> float:
  """Returns the median bound of permuted scores, the negative control.

  Args:
    scores: of the canaries.
    included: whether each took part.
    guesses: number of canaries to guess.
    delta: of the mechanism.
    seed: of the permutations.
    draws: number of permutations.
  """
  rng = np.random.default_rng(seed)
  # Up to 5 % of the permutations have a bound above 0 by chance, hence the
  # median.
  found = [
    guess(rng.permutation(scores), included, guesses, delta).epsilon
    for _ in range(draws)
  ]
  return float(np.median(found))
