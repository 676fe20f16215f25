"""Gaussian noise on parameters.

Noise that is added without clipping what it is added to carries no
(epsilon, delta) guarantee of differential privacy.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Array, Flat

NOTICE = (
  'noise is added without clipping: it carries no (epsilon, delta) guarantee '
  'of differential privacy'
)


def gaussian(
  key: Array, leaves: Flat, scale: float, batch_stats: bool = False
) -> Flat:
  """Adds independent N(0, scale^2) to every element.

  Args:
    key: PRNG key.
    leaves: by name; a leaf's noise depends on the key and its name's place in
      sorted order.
    scale: standard deviation.
    batch_stats: running statistics too; a variance may then fall below zero.
  """
  params, _ = param_filter.trainable(leaves)
  chosen = leaves if batch_stats else params
  noisy = {
    name: leaves[name]
    + scale
    * jax.random.normal(jax.random.fold_in(key, place), leaves[name].shape)
    for place, name in enumerate(sorted(chosen))
  }
  return {**leaves, **noisy}


def on_updated(server: Any, ctx: Any, scale: float, batch_stats: bool = False):
  """Adds noise to the models that some client's upload went into.

  Args:
    server: `ServerState` after the reduction.
    ctx: `ServerCtx`.
    scale: standard deviation.
    batch_stats: running statistics too.

  Returns:
    ServerState.
  """
  groups = server.groups[jnp.maximum(ctx.uploads.index, 0)]
  num_groups = next(iter(server.shared.values())).shape[0]
  own = groups[None] == jnp.arange(num_groups)[:, None]
  updated = (own & ctx.arrived[None]).any(axis=1)
  noisy = gaussian(ctx.key, server.shared, scale, batch_stats)
  return server.replace(
    shared={
      name: jnp.where(
        updated.reshape((-1,) + (1,) * (old.ndim - 1)), noisy[name], old
      )
      for name, old in server.shared.items()
    }
  )
