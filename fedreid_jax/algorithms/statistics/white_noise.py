"""Adds Gaussian noise to parameters.

Noise on values that are not clipped before gives no (epsilon, delta) guarantee
of differential privacy.
"""

import jax
import jax.numpy as jnp

from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Array, Flat, Number
from fedreid_jax.method.contexts import AggregationCtx

NOTICE = (
  'noise is added without clipping: it gives no (epsilon, delta) guarantee '
  'of differential privacy'
)


def gaussian(
  key: Array, leaves: Flat, scale: Number, batch_stats: bool = False
) -> Flat:
  """Adds independent N(0, scale^2) to every element.

  Args:
    key: PRNG key.
    leaves: arrays by name; the noise of an array depends on the key and on the
      position of its name in sorted order.
    scale: standard deviation.
    batch_stats: whether running statistics get noise as well; a variance may
      then fall below zero.
  """
  params, _ = param_filter.trainable(leaves)
  chosen = leaves if batch_stats else params
  # The places of sorted names do not depend on the order of the dict.
  noisy = {
    name: leaves[name]
    + scale
    * jax.random.normal(jax.random.fold_in(key, place), leaves[name].shape)
    for place, name in enumerate(sorted(chosen))
  }
  return {**leaves, **noisy}


def on_updated(
  models: Flat,
  ctx: AggregationCtx,
  scale: float,
  batch_stats: bool = False,
) -> Flat:
  """Adds noise to the models that aggregate at least one upload.

  Args:
    models: models after the aggregation, `[G, ...]`.
    ctx: context of the server's update.
    scale: standard deviation.
    batch_stats: whether running statistics get noise as well.

  Returns:
    The models, `[G, ...]`.
  """
  updated = ctx.members.any(axis=1)
  noisy = gaussian(ctx.key, models, scale, batch_stats)
  # A model without uploads is unchanged, so noise must not accumulate on it.
  return {
    name: jnp.where(
      updated.reshape((-1,) + (1,) * (old.ndim - 1)), noisy[name], old
    )
    for name, old in models.items()
  }
