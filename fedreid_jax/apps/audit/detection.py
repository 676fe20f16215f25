"""How well scores tell members from non-members, with intervals.

AUC is the probability that a random member has a higher score than a random
non-member. TPR is the fraction of members above the score that at most 1 % of
the non-members exceed (Carlini et al., "Membership inference attacks from first
principles", S&P 2022).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

LEVEL = 0.95  # of intervals
CONTROL = 0.99  # of the interval that decides about a negative control
# An attack that is certain about a few persons has a high TPR at this low rate
# even if its AUC is near 0.5.
FALSE_POSITIVES = 0.01
FEWEST = 1000  # non-members that a false positive rate of 1 % needs
CHANCE = 0.5

Members = Float[np.ndarray, ' P']
Others = Float[np.ndarray, ' Q']


class Detection(NamedTuple):
  """Success of an attack."""

  auc: float  # area under the ROC curve
  # 95 % interval; `measure` uses DeLong's variance.
  auc_interval: tuple[float, float]
  # True positive rate at a false positive rate of 1 %; None with fewer than
  # 1000 non-members.
  tpr: float | None
  # 95 % interval; `measure` uses Clopper and Pearson's.
  tpr_interval: tuple[float, float] | None
  members: int  # number of members
  non_members: int  # number of non-members

  def text(self) -> str:
    """Returns one line for users, with the TPR in percent."""
    low, high = self.auc_interval
    shown = f'AUC {self.auc:.3f} [{low:.3f}, {high:.3f}]'
    if self.tpr is None or self.tpr_interval is None:
      return f'{shown}, too few non-members for a TPR'
    low, high = self.tpr_interval
    return (
      f'{shown}, TPR at 1 % FPR {100 * self.tpr:.1f} % '
      f'[{100 * low:.1f}, {100 * high:.1f}]'
    )


def measure(members: Members, others: Others) -> Detection:
  """How well the scores of members and of others differ, two each."""
  found = hits(members, others)
  return Detection(
    auc=auc(members, others),
    auc_interval=auc_interval(members, others, LEVEL),
    tpr=None if found is None else found / len(members),
    tpr_interval=None if found is None else proportion(found, len(members)),
    members=len(members),
    non_members=len(others),
  )


def hits(members: Members, others: Others) -> int | None:
  """Number of hits at 1 % false positives, None below 1000 non-members."""
  if len(others) < FEWEST:
    return None
  # The threshold is the largest score that at most 1 % of the non-members
  # exceed, so members with an equal score do not count.
  allowed = int(FALSE_POSITIVES * len(others))
  return int((members > np.sort(others)[-allowed - 1]).sum())


def auc(members: Members, others: Others) -> float:
  """The area under the ROC curve; equal scores count half."""
  return float(_below(members, others).mean())


def auc_interval(
  members: Members, others: Others, level: float
) -> tuple[float, float]:
  """The interval of the area by DeLong's variance (1988)."""
  below, above = _below(members, others), _below(others, members)
  variance = below.var(ddof=1) / len(below) + above.var(ddof=1) / len(above)
  # The normal interval can leave [0, 1], which an area cannot.
  width = float(stats.norm.ppf(0.5 + level / 2) * np.sqrt(variance))
  middle = float(below.mean())
  return max(middle - width, 0.0), min(middle + width, 1.0)


def at_chance(members: Members, others: Others) -> bool:
  """Whether the 99 % interval of the area contains 0.5."""
  low, high = auc_interval(members, others, CONTROL)
  return low <= CHANCE <= high


def proportion(hits: int, number: int) -> tuple[float, float]:
  """The 95 % interval of a proportion (Clopper and Pearson, 1934)."""
  found = stats.binomtest(hits, number).proportion_ci(LEVEL, 'exact')
  return float(found.low), float(found.high)


def _below(of: Members, among: Others) -> Members:
  """Share of `among` below each score; equal ones count half."""
  # The mean of both sides counts equal scores half, without the product of
  # members and non-members that a comparison of all pairs would need.
  ranked = np.sort(among)
  left = np.searchsorted(ranked, of, 'left')
  right = np.searchsorted(ranked, of, 'right')
  return (left + right) / (2 * len(ranked))
