"""A lower bound of epsilon from guesses about canaries, in one run.

Canaries are artificial units whose presence a mechanism should hide. Steinke,
Nasr and Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023),
theorem 5.2: each of m canaries takes part with probability 1/2, and the auditor
guesses for r of them whether they did. Of a mechanism that is
(epsilon, delta)-private, the probability of v right guesses or more is at most

  p(epsilon) = beta + 2 m delta max_{1 <= i <= v} (P[B >= v - i] - beta) / i,
  beta = P[B >= v],  B ~ Bin(r, e^epsilon / (1 + e^epsilon)).

The bound is the largest epsilon with p <= 0.05, so that it exceeds the true
epsilon with a probability of at most 5 %. The auditor guesses that the r / 2
canaries with the highest scores took part and the r / 2 with the lowest did
not. The number r must be fixed before the scores are seen.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import optimize, stats

from fedreid_jax.method import accounting

CONFIDENCE = 0.95
LARGEST = 50.0  # epsilon above which no search is needed
PERMUTATIONS = 21  # of the negative control

Scores = Callable[[Bool[np.ndarray, ' m'], int], Float[np.ndarray, ' m']]


class Canaries(NamedTuple):
  """The canaries of a component and their scores for the attacker."""

  number: int  # of canaries, `m`
  guesses: int  # number of canaries that are guessed, `r`, even
  delta: float  # of the guarantee
  # `(included, seed) -> scores` of the mechanism as it is in the run.
  scores: Scores
  # The same function of the mechanism without noise and with all canaries in
  # every sum, for which all guesses must be right.
  silent: Scores


class Bound(NamedTuple):
  """A lower bound of epsilon, at 95 % confidence."""

  epsilon: float  # the bound
  canaries: int  # their number, `m`
  guesses: int  # number of canaries that were guessed, `r`
  right: int  # number of right guesses, `v`


class Audited(NamedTuple):
  """Results of the audit."""

  claimed: float  # epsilon of the run
  delta: float  # of the guarantee
  bound: Bound  # lower bound of epsilon
  positive: Bound  # lower bound without noise
  largest: float  # lower bound if all guesses are right
  negative: float  # median bound of permuted scores
  failed: tuple[str, ...]  # controls that failed
  refuted: str  # how the guarantee is refuted, '' if it is not


def audit(canaries: Canaries, claimed: float, seed: int = 0) -> Audited:
  """Bounds the epsilon of a mechanism that claims `claimed` from below."""
  number, guesses, delta = canaries.number, canaries.guesses, canaries.delta
  included = np.random.default_rng(seed).random(number) < 0.5
  scores = canaries.scores(included, seed)
  bound = guess(scores, included, guesses, delta)
  positive = guess(canaries.silent(included, seed), included, guesses, delta)
  negative = of_permuted(scores, included, guesses, delta, seed)
  failed: list[str] = []
  if positive.right < positive.guesses:
    failed.append(
      f'without noise only {positive.right} of {guesses} guesses are right'
    )
  if negative > 0:
    failed.append(f'permuted scores have the bound {negative:.3f}')
  refuted = ''
  # The bound is rounded down and the claim up, so that neither is overstated.
  if bound.epsilon > claimed:
    refuted = (
      f'epsilon is at least {accounting.below(bound.epsilon)}, the run claims '
      f'{accounting.above(claimed)}'
    )
  largest = lower_bound(delta, number, guesses, guesses)
  return Audited(
    claimed, delta, bound, positive, largest, negative, tuple(failed), refuted
  )


def p_value(
  epsilon: float, delta: float, canaries: int, guesses: int, right: int
) -> float:
  """Returns p: the largest probability of `right` or more right guesses."""
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
  """The largest epsilon that `right` right guesses exclude."""

  def excess(epsilon: float) -> float:
    p = p_value(epsilon, delta, canaries, guesses, right)
    return p - (1 - CONFIDENCE)

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
  """The bound from scores, which are higher for canaries that took part."""
  half = guesses // 2
  # A stable sort breaks ties by the position, which is independent of whether a
  # canary takes part.
  order = np.argsort(scores, kind='stable')
  right = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
  bound = lower_bound(delta, len(scores), 2 * half, right)
  return Bound(bound, len(scores), 2 * half, right)


def of_permuted(
  scores: Float[np.ndarray, ' m'],
  included: Bool[np.ndarray, ' m'],
  guesses: int,
  delta: float,
  seed: int,
) -> float:
  """The median bound of permuted scores, see `guess`."""
  rng = np.random.default_rng(seed)
  bounds = [
    guess(rng.permutation(scores), included, guesses, delta).epsilon
    for _ in range(PERMUTATIONS)
  ]
  # Up to 5 % of the permutations have a bound above 0 by chance, hence the
  # median.
  return float(np.median(bounds))
