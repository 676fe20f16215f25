"""Trials or splits of a protocol: allowed models, and mean results."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors

NUM_REGDB_TRIALS = 10


def check_regdb_trial(trial: int, trained_trial: Any) -> None:
  """Refuses to test a RegDB trial with a model of another trial.

  Args:
    trial: the trial to be tested, 1 to 10.
    trained_trial: the trial recorded with the model, None for a model that
      was not trained on RegDB.

  Raises:
    ConfigError: if there is no such trial, or the model is of another one.
    IntegrityError: if the recorded trial does not exist.
  """
  known = range(1, NUM_REGDB_TRIALS + 1)
  if trial not in known:
    raise errors.ConfigError(
      f'RegDB has no trial {trial!r}', 'trial', f'use 1 to {NUM_REGDB_TRIALS}'
    )
  if trained_trial is None:
    return
  if trained_trial not in known:
    raise errors.IntegrityError(
      f'the model records RegDB trial {trained_trial!r}, which does not exist',
      'checkpoint',
      'train the model again',
    )
  # The ten trials split the same 412 identities: a model of another trial was
  # trained on about half of the test identities.
  if trained_trial != trial:
    raise errors.ConfigError(
      f'the model was trained on RegDB trial {trained_trial}, not {trial}',
      'trial',
      'its training identities are in this test set; train one per trial',
    )


def mean(
  results: Sequence[Mapping[str, float | int]],
) -> dict[str, float | int]:
  """Combines the results of the trials of one test.

  Args:
    results: metrics (float) and counts (int) of each trial.

  Returns:
    The mean of every metric, with several trials also the standard deviation
    `_std` (divided by their number), and the largest counts.

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
