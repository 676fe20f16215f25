"""Identity classification: cross-entropy over a client's own identities."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array

MASKED = -1e8  # logits at or below are columns of another client's identities


def masked_mean(
  values: Float[Array, ' B'], valid: Bool[Array, ' B']
) -> Float[Array, '']:
  """Returns the mean of the values over valid rows, 0 when there is none."""
  total = jnp.where(valid, values, 0.0).sum()
  return total / jnp.maximum(valid.sum(), 1)


def cross_entropy(
  logits: Float[Array, 'B C'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  smoothing: float = 0.0,
) -> Float[Array, '']:
  """Softmax cross-entropy, mean over the valid rows of a batch.

  Args:
    logits: scores; columns of absent identities hold a large negative.
    labels: identities.
    valid: real rows.
    smoothing: mass spread evenly over the real identities only.
  """
  log_p = jax.nn.log_softmax(logits)
  picked = jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]
  loss = -picked
  if smoothing:
    real = logits > MASKED
    even = jnp.where(real, log_p, 0.0).sum(axis=1) / real.sum(axis=1)
    loss = (1 - smoothing) * loss - smoothing * even
  return masked_mean(loss, valid)


def accuracy(
  logits: Float[Array, 'B C'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
) -> Float[Array, '']:
  """Fraction of valid rows whose own identity has the highest score."""
  right = (logits.argmax(axis=1) == labels).astype(jnp.float32)
  return masked_mean(right, valid)
