"""Coordinate-wise median: the server's model resists some wrong uploads.

Yin et al., Byzantine-robust distributed learning: towards optimal statistical
rates, ICML 2018, algorithm 1 with the option of the median. For every group g
and every coordinate j of the shared leaves

  w_g[j] = median { w_k[j] : client k is a member of group g }

The median of an even number of values is the mean of the two in the middle.

No weights of a mean give a median, so the rule is `Gather.combine`: it
receives the weighted means, which a group without members keeps, and a context
with all uploads and the members of each group. The engine applies
`batch_stats_rule` to running statistics as it does for every other rule, and
refuses a second rule beside this one.

Deviations from the paper: the median is of the models after local training, not
of gradients, and clients count once whatever their number of images. Deviations
from released code: the authors released none.
"""

import jax.numpy as jnp

from fedreid_jax.method import AggregationCtx, Component, Gather


def median(values, members):
  """Returns the median of the members of each group.

  Args:
    values: of the uploads, `[K, ...]`; those of no member have no effect.
    members: which uploads make up each group, bool `[G, K]`.

  Returns:
    `[G, ...]`, infinite for a group without members.
  """
  wide = (*members.shape, *(1,) * (values.ndim - 1))
  ordered = jnp.where(members.reshape(wide), values[None], jnp.inf)
  ordered = jnp.sort(ordered, axis=1)
  count = members.sum(axis=1).reshape(wide[0], *(1,) * values.ndim)
  low = jnp.take_along_axis(ordered, jnp.maximum(count - 1, 0) // 2, axis=1)
  high = jnp.take_along_axis(ordered, count // 2, axis=1)
  return (0.5 * low + 0.5 * high)[:, 0]


def make() -> Component:
  """Builds the component."""

  def combine(models, ctx: AggregationCtx):
    some = ctx.members.any(axis=1)
    changed = {}
    for name, model in models.items():
      own = some.reshape(-1, *(1,) * (model.ndim - 1))
      found = median(ctx.uploaded[name].astype(jnp.float32), ctx.members)
      changed[name] = jnp.where(own, found.astype(model.dtype), model)
    return changed

  return Component('median', aggregation=Gather(combine=combine))
