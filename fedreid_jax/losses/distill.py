"""Distillation losses between two networks."""

from typing import Literal

import jax
import optax
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity, similarity

Normalise = Literal['teacher_only', 'both', 'none']


def feature_mse(
  student: Float[Array, 'B D'],
  teacher: Float[Array, 'B D'],
  valid: Bool[Array, ' B'],
  normalise: str,
) -> Float[Array, '']:
  """Returns the squared error of features, averaged over rows and dimensions.

  FedReIDBench, journal version, Algorithm 3.

  Args:
    student: features of the trained network.
    teacher: features of the other network, which the caller normalises.
    valid: real rows.
    normalise: a `Normalise`; 'both' scales the student's rows to unit length.
  """
  if normalise == 'both':
    student = similarity.unit(student)
  return identity.masked_mean(((student - teacher) ** 2).mean(axis=1), valid)


def divergence(
  student: Float[Array, 'B C'],
  teacher: Float[Array, 'B C'],
  valid: Bool[Array, ' B'],
  temperature: Number,
) -> Float[Array, '']:
  """Returns `T^2 mean_n KL(softmax(t/T) || softmax(s/T))` (Hinton et al.).

  Args:
    student: scores, padded identities with a large negative value.
    teacher: scores like those of the student, without gradient.
    valid: real rows.
    temperature: T.
  """
  log_p = jax.nn.log_softmax(student / temperature)
  log_q = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
  # A padded identity has probability 0 in both and adds nothing.
  each = optax.losses.kl_divergence_with_log_targets(log_p, log_q)
  return temperature**2 * identity.masked_mean(each, valid)
