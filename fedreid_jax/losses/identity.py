"""Identity classification: cross-entropy over a client's own identities."""

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array

MASKED = -1e8  # logits at or below are columns of another client's identities


def masked_mean(values: Array, valid: Array) -> Array:
  """Returns the mean of `values [B]` over valid rows, 0 when there is none."""
  total = jnp.where(valid, values, 0.0).sum()
  return total / jnp.maximum(valid.sum(), 1)


def cross_entropy(
  logits: Array, labels: Array, valid: Array, smoothing: float = 0.0
) -> Array:
  """Softmax cross-entropy, mean over the valid rows of a batch.

  Args:
    logits: `[B, C]`; columns of absent identities hold a large negative.
    labels: int32 `[B]`.
    valid: bool `[B]`.
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


def accuracy(logits: Array, labels: Array, valid: Array) -> Array:
  """Fraction of valid rows whose own identity has the highest score."""
  right = (logits.argmax(axis=1) == labels).astype(jnp.float32)
  return masked_mean(right, valid)
