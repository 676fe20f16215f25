"""Cross-entropy and accuracy of the classification of a client's identities."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array, Number

# Logits at or below belong to padded columns, whose value is -1e9
# (`models.reid.PADDED_LOGIT`).
MASKED = -1e8


def masked_mean(
  values: Float[Array, ' B'], valid: Bool[Array, ' B']
) -> Float[Array, '']:
  """The mean of the values over valid rows, 0 when there is none."""
  # Padded values may not be finite, and 0 * nan is nan.
  total = jnp.where(valid, values, 0.0).sum()
  return total / jnp.maximum(valid.sum(), 1)


def cross_entropy(
  logits: Float[Array, 'B C'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  smoothing: float = 0.0,
) -> Float[Array, '']:
  """The softmax cross-entropy, averaged over the valid rows.

  `smoothing` is a probability that is spread evenly over the real identities.
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
  """The fraction of valid rows whose label has the highest score."""
  right = (logits.argmax(axis=1) == labels).astype(jnp.float32)
  return masked_mean(right, valid)


def divergence(
  student: Float[Array, 'B C'],
  teacher: Float[Array, 'B C'],
  valid: Bool[Array, ' B'],
  temperature: Number,
) -> Float[Array, '']:
  """Returns `T^2 mean_n KL(softmax(t/T) || softmax(s/T))` (Hinton et al.)."""
  log_p = jax.nn.log_softmax(student / temperature)
  log_q = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
  # A padded identity has probability 0 in both and adds nothing.
  each = optax.losses.kl_divergence_with_log_targets(log_p, log_q)
  return temperature**2 * masked_mean(each, valid)
