"""Cross-entropy and accuracy of the classification of a client's identities."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array

# Logits at or below belong to padded columns, whose value is -1e9
# (`models.layers.head.PADDED_LOGIT`).
MASKED = -1e8


def masked_mean(
  values: Float[Array, ' B'], valid: Bool[Array, ' B']
) -> Float[Array, '']:
  """Returns the mean of the values over valid rows, 0 when there is none."""
  # Padded values may not be finite, and 0 * nan is nan.
  total = jnp.where(valid, values, 0.0).sum()
  return total / jnp.maximum(valid.sum(), 1)


def cross_entropy(
  logits: Float[Array, 'B C'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  smoothing: float = 0.0,
) -> Float[Array, '']:
  """Returns the softmax cross-entropy, averaged over the valid rows.

  Args:
    logits: scores, `PADDED_LOGIT` in columns of padded identities.
    labels: identities.
    valid: real rows.
    smoothing: probability that is spread evenly over the real identities.
  """
  log_p = jax.nn.log_softmax(logits)
  picked = jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]
  loss = -picked
  if smoothing:
    # A padded column has log p of about -1e9 and would dominate the mean.
    real = logits > MASKED
    even = jnp.where(real, log_p, 0.0).sum(axis=1) / real.sum(axis=1)
    loss = (1 - smoothing) * loss - smoothing * even
  return masked_mean(loss, valid)


def accuracy(
  logits: Float[Array, 'B C'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
) -> Float[Array, '']:
  """Returns the fraction of valid rows whose label has the highest score."""
  right = (logits.argmax(axis=1) == labels).astype(jnp.float32)
  return masked_mean(right, valid)
