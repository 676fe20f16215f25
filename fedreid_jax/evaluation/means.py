"""Means of results: over the trials of a test, and over queries."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from fedreid_jax import errors

LEVEL = 95.0  # percent
DRAWS = 2000


def over_trials(
  results: Sequence[Mapping[str, float | int]],
) -> dict[str, float | int]:
  """Means of metrics (float) over the trials of a test, largest counts (int).

  Several trials also have the standard deviation `_std` of each metric.

  Raises:
    DataError: for no results, or results with different entries.
  """
  if not results or any(set(r) != set(results[0]) for r in results):
    raise errors.DataError(
      f'{len(results)} results without common entries',
      'trials',
      'evaluate every trial with the same protocol and ranks',
    )
  if len(results) == 1:
    return dict(results[0])
  found: dict[str, float | int] = {}
  for name, first in results[0].items():
    values = np.asarray([result[name] for result in results])
    if isinstance(first, int):
      found[name] = int(values.max())
    else:
      found[name] = float(values.mean())
      # Divided by the number of trials: not an estimate for a population.
      found[f'{name}_std'] = float(values.std())
  return found


def bootstrap_interval(
  values: Sequence[Float[np.ndarray, ' Q']], draws: int = DRAWS
) -> tuple[float, float]:
  """95 % bootstrap interval of the mean over queries.

  Queries without a match in the gallery, NaN, do not count; a ValueError is
  raised if all are. There is one array for each run with these queries, and the
  mean over runs is sampled.
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
