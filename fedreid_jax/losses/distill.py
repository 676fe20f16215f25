"""Distillation losses between two networks."""

from typing import Literal

import jax
import optax

from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity, similarity

Normalise = Literal['teacher_only', 'both', 'none']


def feature_mse(
  student: Array, teacher: Array, valid: Array, normalise: str
) -> Array:
  """Returns the squared error, a mean over real rows and dimensions.

  FedReIDBench, journal version, Algorithm 3.

  Args:
    student: `[B, D]`.
    teacher: `[B, D]`, already normalised if that is wanted.
    valid: real rows, bool `[B]`.
    normalise: with 'both' the student's rows are scaled to unit length, too.
  """
  if normalise == 'both':
    student = similarity.unit(student)
  return identity.masked_mean(((student - teacher) ** 2).mean(axis=1), valid)


def divergence(
  student: Array, teacher: Array, valid: Array, temperature: float
) -> Array:
  """Returns `T^2 mean_n KL(softmax(t/T) || softmax(s/T))` (Hinton et al.).

  Args:
    student: scores `[B, C]`, padded identities with a large negative value.
    teacher: as `student`; has no gradient.
    valid: real rows, bool `[B]`.
    temperature: T.
  """
  log_p = jax.nn.log_softmax(student / temperature)
  log_q = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
  # A padded identity has probability 0 in both and adds nothing.
  each = optax.losses.kl_divergence_with_log_targets(log_p, log_q)
  return temperature**2 * identity.masked_mean(each, valid)
