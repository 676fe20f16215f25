"""Paired effects with intervals, and verdicts about claims.

An effect is the mean of differences of average precision, in mAP: query by
query between two runs with the same seed and targets, then over the queries of
a target, the targets, and the seeds. Its interval is computed by a bootstrap
that draws seeds, targets and queries, each with replacement, with the sizes of
Rao and Wu (JASA 1988).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

Verdict = Literal['supported', 'not supported', 'not resolved', 'no runs yet']
Claimed = Literal['greater', 'equal']
LEVEL = 95.0  # coverage of the interval in percent
DRAWS = 2000  # bootstrap samples
# Number of standard errors of the smallest effect that 80 % of repetitions of
# the design find: quantiles 0.975 and 0.8 of the normal distribution.
DETECTABLE = 1.96 + 0.84


class Effect(NamedTuple):
  """A difference in mAP."""

  mean: float  # of the differences
  low: float  # lower end of the interval
  high: float  # upper end of the interval
  detectable: float  # smallest effect found in 80 % of repetitions
  seeds: int
  targets: int  # one in several routes counts for each

  def texts(self) -> tuple[str, str]:
    """The mean with its interval, and the smallest effect found."""
    interval = f'[{self.low:+.1f}, {self.high:+.1f}]'
    return f'{self.mean:+.1f} {interval}', f'{self.detectable:.1f}'


def effect(
  differences: Sequence[Mapping[str, np.ndarray]],
  minus: Collection[str] = (),
  draws: int = DRAWS,
) -> Effect:
  """The mean effect and its interval.

  Args:
    differences: for every seed, differences of average precision in [-1, 1] by
      target, `[Q]`, with the same targets and queries; NaN without a match.
    minus: targets whose mean effect is subtracted from the mean of the others.

  Raises:
    ValueError: for no seed, or seeds with different targets.
  """
  if not differences or not differences[0]:
    raise ValueError('no differences')
  # Sorted, so that the random draws do not depend on the order of the targets.
  names = sorted(differences[0])
  if any(sorted(own) != names for own in differences):
    raise ValueError('the seeds have different targets')
  # `[S, Q]` of each target, without queries that have no match for some seed.
  values = [np.stack([own[name] for own in differences]) for name in names]
  values = [100.0 * x[:, ~np.isnan(x).any(axis=0)] for x in values]
  pairs = [*zip(names, values, strict=True)]
  sides = [
    side
    for own in (False, True)
    if (side := [x for name, x in pairs if (name in minus) == own])
  ]
  # A fixed seed: the same runs give the same interval.
  rng = np.random.default_rng(0)
  means = np.array([_drawn(sides, len(differences), rng) for _ in range(draws)])
  tail = (100.0 - LEVEL) / 2
  low, high = np.percentile(means, [tail, 100.0 - tail])
  plain = [float(np.mean([x.mean() for x in side])) for side in sides]
  return Effect(
    mean=plain[0] - sum(plain[1:]),
    low=float(low),
    high=float(high),
    detectable=float(DETECTABLE * means.std()),
    seeds=len(differences),
    targets=len(names),
  )


def _drawn(
  sides: Sequence[Sequence[np.ndarray]],
  num_seeds: int,
  rng: np.random.Generator,
) -> float:
  # One seed and one target fewer: the variance is then unbiased; with three
  # seeds it would otherwise be two thirds of that.
  seeds = rng.integers(num_seeds, size=max(num_seeds - 1, 1))
  means: list[float] = []
  for side in sides:
    own: list[float] = []
    for k in rng.integers(len(side), size=max(len(side) - 1, 1)):
      # The same queries for every drawn seed, because all seeds have the same
      # queries.
      queries = rng.integers(side[k].shape[1], size=side[k].shape[1])
      own.append(side[k][seeds].mean(axis=0)[queries].mean())
    means.append(float(np.mean(own)))
  return means[0] - sum(means[1:])


def verdict(found: Effect | None, claimed: Claimed, margin: float) -> Verdict:
  """Judges a claim; `found` is None without finished runs.

  'greater': supported if the interval is above zero, not supported if it is
  below `margin`, the smallest gain in mAP that would matter. 'equal': supported
  if the interval is within `margin` of zero, not supported if it is outside.
  """
  if found is None:
    return 'no runs yet'
  if claimed == 'greater':
    yes, no = found.low > 0, found.high < margin
  else:
    yes = -margin < found.low and found.high < margin
    no = found.low > margin or found.high < -margin
  if yes:
    return 'supported'
  return 'not supported' if no else 'not resolved'
