"""A memory of unit vectors, which takes the place of a client's classifier.

The memory V has one row for each identity or cluster of a client. The scores of
a feature x, of unit length, are V_c . x / T. A feature of row y moves it,

  V_y <- unit(m V_y + (1 - m) x).
"""

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import metric

KERNEL = 'classifier/kernel'  # `[D, C]`, with a column for each row


def empty(variables: Flat) -> Array:
  """Returns zeros `[C, D]`, as large as the classifier.

  Raises:
    ConfigError: for a network that has no classifier, or several.
  """
  kernels = [x for n, x in variables.items() if n.endswith(KERNEL)]
  if len(kernels) != 1:
    raise errors.ConfigError(
      f'{errors.counted(len(kernels), "classifier")} in the network',
      'model.name',
      'choose a network with one classifier',
    )
  width, num = kernels[0].shape
  return jnp.zeros((num, width), jnp.float32)


def scores(
  memory: Array, features: Array, used: Array, counts: Array, temperature: float
) -> Array:
  """Returns the scores `[B, C]` of features `[B, D]` of any length.

  Args:
    memory: `[C, D]`, without a gradient.
    used: rows of the memory that are candidates, bool `[C]`.
    counts: features with scores, bool `[B]`; the others have zeros.
  """
  # A unit vector of zeros would have an infinite gradient, and 1 / T multiplies
  # the rounding of the products.
  unit = metric.direction(features)
  products = jnp.matmul(unit, memory.T, precision=jax.lax.Precision.HIGHEST)
  found = jnp.where(used, products / temperature, -jnp.inf)
  # Rows that do not count must have a finite loss, whose gradient is then zero.
  return jnp.where(counts[:, None], found, 0.0)


def remember(
  memory: Array, features: Array, rows: Array, counts: Array, kept: float
) -> Array:
  """Moves rows of a memory by features, one after the other.

  Args:
    memory: `[C, D]`.
    features: `[B, D]` of any length.
    rows: row of each feature, int32 `[B]`.
    counts: features that move their row, bool `[B]`.
    kept: weight of the old row, m.
  """
  features = metric.unit(features)

  def one(i: Array, memory: Array) -> Array:
    old = memory[rows[i]]
    new = metric.unit(kept * old + (1 - kept) * features[i])
    return memory.at[rows[i]].set(jnp.where(counts[i], new, old))

  return jax.lax.fori_loop(0, len(rows), one, memory)
