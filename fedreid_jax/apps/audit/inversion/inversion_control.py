"""Controls of reconstructed images, and intervals of their figures.

A judge names the person or the domain that each query shows. A permutation test
decides whether the judge is right more often than by chance. Real images, which
test the judge, and images from their features, which test the attack, must pass
this test; the initial noise and images from permuted values must not.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fedreid_jax.apps.audit import detection

PERMUTATIONS = 9999
POSITIVE = {'real': 0.05, 'real feature': 0.05}  # the largest p that passes
NEGATIVE = {'noise': 0.01, 'permuted DFS': 0.01}  # the smallest one


class Asked(NamedTuple):
  """Answers of a judge to some queries.

  Attributes:
    wanted: right answer of each query.
    found: answer of the judge.
  """

  wanted: Int[np.ndarray, ' B']
  found: Int[np.ndarray, ' B']

  def rank1(self) -> float:
    """Returns the percentage of right answers."""
    return 100.0 * float(np.mean(self.wanted == self.found))

  def interval(self) -> tuple[float, float]:
    """Returns the 95 % interval of `rank1` (Clopper-Pearson), in percent."""
    hits = int((self.wanted == self.found).sum())
    low, high = detection.proportion(hits, len(self.wanted))
    return 100.0 * low, 100.0 * high

  def p_value(self) -> float:
    """Returns the p-value of a permutation test of the right answers."""
    rng = np.random.default_rng(0)
    hits = (self.wanted == self.found).sum()
    # Permuted right answers keep their frequencies, so that a judge with a
    # preference for some answers, or with one answer to all, gains nothing.
    as_many = sum(
      (rng.permutation(self.wanted) == self.found).sum() >= hits
      for _ in range(PERMUTATIONS)
    )
    # The identity is one of the permutations, so the p-value is never 0.
    return float((1 + as_many) / (1 + PERMUTATIONS))


def failed(asked: Mapping[str, Mapping[str, Asked]]) -> tuple[str, ...]:
  """Returns the controls that failed.

  Args:
    asked: answers by question, 'person' or 'domain', and by query. The features
      of real images must lead to the domain if there are several domains, else
      to the person.
  """
  # With one right answer for all queries every permutation is as good.
  several = {
    (question, name): one
    for question, of in asked.items()
    for name, one in of.items()
    if len(np.unique(one.wanted)) > 1
  }
  if ('domain', 'real feature') in several:
    several.pop(('person', 'real feature'), None)
  broken = []
  for (question, name), one in several.items():
    if name not in POSITIVE | NEGATIVE:
      continue
    p = one.p_value()
    counts = f'{one.rank1():.1f} % of {len(one.wanted)}, p = {p:.2g}'
    if p < NEGATIVE.get(name, 0.0):
      broken.append(f'{name} leads to the {question} ({counts})')
    if p > POSITIVE.get(name, 1.0):
      broken.append(f'{name} does not lead to the {question} ({counts})')
  if all(name != 'real' for _, name in several):
    broken.append('real images of two persons cannot be asked')
  return tuple(broken)
