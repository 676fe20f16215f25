"""Bounds the norm of updates and gradients, and adds Gaussian noise."""

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Flat, Number
from fedreid_jax.method.contexts import AggregationCtx

# The norm stays finite in float32: 10^8 squares of this size add up to 1e38.
LARGEST = 1e15
NOTICE = (
  'noise is added without clipping: it gives no (epsilon, delta) guarantee '
  'of differential privacy'
)


def usable(changes: Flat) -> Array:
  """Returns whether all magnitudes are finite and at most `LARGEST`, bool."""
  largest = jnp.stack([jnp.abs(x).max() for x in changes.values()]).max()
  # A comparison with nan is false, so nan is refused as well.
  return largest <= LARGEST


def clipped(changes: Flat, bound: Array) -> tuple[Flat, Array]:
  """Scales changes down to a largest Euclidean norm over all of them.

  Changes that are not `usable` become zero. The second result is whether the
  norm was at most the bound.
  """
  within = usable(changes)
  # The norm of such changes overflows or is nan and would bound nothing.
  changes = {n: jnp.where(within, x, 0.0) for n, x in changes.items()}
  norm = jnp.sqrt(sum((x**2).sum() for x in changes.values()))
  factor = jnp.where(norm <= bound, 1.0, bound / norm)
  return {n: factor * x for n, x in changes.items()}, norm <= bound


def moved(start: Flat, changes: Flat) -> Flat:
  """Adds changes to values, none of which moves by more than its change.

  The rounding of a sum in float32 would add up to half a digit of the value to
  each change: a clipped update of a million weights could exceed a small clip
  by far. Such sums are rounded towards the start.
  """
  # Without the barrier XLA may replace `(start + x) - start` by x.
  sums = jax.lax.optimization_barrier(
    {n: start[n] + x for n, x in changes.items()}
  )
  return {
    n: jnp.where(
      jnp.abs(x - start[n]) > jnp.abs(changes[n]),
      jnp.nextafter(x, start[n]),
      x,
    )
    for n, x in sums.items()
  }


def normals(key: Array, leaves: Flat) -> Flat:
  """Draws an independent standard normal variable for every element."""
  # The places of sorted names do not depend on the order of the dict.
  return {
    name: jax.random.normal(jax.random.fold_in(key, place), leaves[name].shape)
    for place, name in enumerate(sorted(leaves))
  }


def gaussian(
  key: Array, leaves: Flat, scale: Number, batch_stats: bool = False
) -> Flat:
  """Adds independent N(0, scale^2) to every element of parameters.

  With `batch_stats` running statistics get noise as well, and a variance may
  then fall below zero.
  """
  params, _ = trees.trainable(leaves)
  chosen = leaves if batch_stats else params
  noise = normals(key, chosen)
  return {**leaves, **{n: leaves[n] + scale * x for n, x in noise.items()}}


def on_updated(
  models: Flat,
  ctx: AggregationCtx,
  scale: float,
  batch_stats: bool = False,
) -> Flat:
  """Adds noise to the models `[G, ...]` that aggregate at least one upload."""
  updated = ctx.members.any(axis=1)
  noisy = gaussian(ctx.key, models, scale, batch_stats)
  # A model without uploads is unchanged, so noise must not accumulate on it.
  return {
    name: jnp.where(
      updated.reshape((-1,) + (1,) * (old.ndim - 1)), noisy[name], old
    )
    for name, old in models.items()
  }
