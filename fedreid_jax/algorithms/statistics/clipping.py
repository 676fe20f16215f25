"""Bounds the Euclidean norm of updates and gradients."""

import jax.numpy as jnp

from fedreid_jax.core.types import Array, Flat

# The norm stays finite in float32: 10^8 squares of this size add up to 1e38.
LARGEST = 1e15


def usable(changes: Flat) -> Array:
  """Returns whether all magnitudes are finite and at most `LARGEST`, bool."""
  largest = jnp.stack([jnp.abs(x).max() for x in changes.values()]).max()
  # A comparison with nan is false, so nan is refused as well.
  return largest <= LARGEST


def clipped(changes: Flat, bound: Array) -> tuple[Flat, Array]:
  """Scales changes down to a largest norm.

  Changes that are not `usable` become zero.

  Args:
    changes: arrays by name.
    bound: largest Euclidean norm over all of them.

  Returns:
    The changes, and whether their norm was at most the bound.
  """
  within = usable(changes)
  # The norm of such changes overflows or is nan and would bound nothing.
  changes = {n: jnp.where(within, x, 0.0) for n, x in changes.items()}
  norm = jnp.sqrt(sum((x**2).sum() for x in changes.values()))
  factor = jnp.where(norm <= bound, 1.0, bound / norm)
  return {n: factor * x for n, x in changes.items()}, norm <= bound
