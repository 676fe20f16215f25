"""Updates of a bounded norm."""

import jax.numpy as jnp

from fedreid_jax.core.types import Array, Flat

# The sum of 10^8 squares of such numbers is finite in float32.
LARGEST = 1e15


def usable(changes: Flat) -> Array:
  """Returns whether no number is above `LARGEST` or not a number, bool."""
  largest = jnp.stack([jnp.abs(x).max() for x in changes.values()]).max()
  return largest <= LARGEST  # not of nan


def clipped(changes: Flat, bound: Array) -> tuple[Flat, Array]:
  """Returns (changes of at most a norm, whether their norm was below it).

  Changes with a number above `LARGEST`, or one that is not finite, become zero:
  their norm cannot be computed, and a wrong norm would not bound them.

  Args:
    changes: arrays by name.
    bound: largest Euclidean norm over all of them.
  """
  within = usable(changes)
  changes = {n: jnp.where(within, x, 0.0) for n, x in changes.items()}
  norm = jnp.sqrt(sum((x**2).sum() for x in changes.values()))
  factor = jnp.where(norm <= bound, 1.0, bound / norm)
  return {n: factor * x for n, x in changes.items()}, norm <= bound
