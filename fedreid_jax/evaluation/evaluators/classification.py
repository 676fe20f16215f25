"""Accuracy of class scores, for clients with common classes."""

from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation.features import Model

TASK = 'classification'


def evaluate(model: Model, target: Target) -> dict[str, float | int]:
  """Result of `evaluate_classification` for a target."""
  own = target.images
  logits = model.logits(own.images(), own.modalities)
  return evaluate_classification(logits, own.identities)


def evaluate_classification(logits: Any, labels: Any) -> dict[str, float | int]:
  """Computes the accuracy: the share of images with the highest score right.

  The logits are `[M, C]`, without padding, and the labels `[M]`. The result has
  `accuracy` in percent; `queries`, which is M; `gallery` and `invalid_queries`,
  which are 0; and `ties`, the number of images with several highest scores, of
  which the first column is the answer.

  Raises:
    DataError: for no images, labels that do not fit the logits, or NaN logits.
  """
  logits, labels = np.asarray(logits), np.asarray(labels)
  if logits.ndim != 2 or labels.shape != logits.shape[:1] or not labels.size:
    raise errors.DataError(
      f'logits of shape {logits.shape} for labels of shape {labels.shape}',
      'evaluation',
      'give one row of logits per label',
    )
  if labels.min() < 0 or labels.max() >= logits.shape[1]:
    raise errors.DataError(
      f'classes {labels.min()} to {labels.max()} of {logits.shape[1]}',
      'evaluation',
      'test a model of these classes',
    )
  # argmax would return the column of the first NaN.
  if np.isnan(logits).any():
    raise errors.DataError(
      'NaN logits', 'evaluation', 'the model has diverged; lower optim.lr'
    )
  highest = logits == logits.max(axis=1, keepdims=True)
  right = logits.argmax(axis=1) == labels
  return {
    'accuracy': 100.0 * float(right.mean()),
    'queries': len(labels),
    'gallery': 0,
    'invalid_queries': 0,
    'ties': int((highest.sum(axis=1) > 1).sum()),
  }
