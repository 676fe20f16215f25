"""Intervals of a mean over queries, by the bootstrap."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

LEVEL = 95.0  # percent
DRAWS = 2000


def of_queries(
  values: Sequence[Float[np.ndarray, ' Q']], draws: int = DRAWS
) -> tuple[float, float]:
  """Returns the 95 % bootstrap interval of the mean over queries.

  Queries without a match in the gallery, NaN, do not count.

  Args:
    values: values of the queries, one array for each run with these queries.
    draws: number of bootstrap samples.

  Raises:
    ValueError: if no query has a match.
  """
  # A drawn query is drawn for all runs: their mean by query is sampled.
  found = np.stack(values)
  found = found[:, ~np.isnan(found).any(axis=0)].mean(axis=0)
  if not found.size:
    raise ValueError('no query has a match')
  rng = np.random.default_rng(0)
  size = len(found)
  means = [found[rng.integers(size, size=size)].mean() for _ in range(draws)]
  tail = (100.0 - LEVEL) / 2
  low, high = np.percentile(means, [tail, 100.0 - tail])
  return float(low), float(high)
