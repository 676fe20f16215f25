"""Weights of a rule from the raw weights of single uploads."""

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import aggregation, contexts, sums
from fedreid_jax.method.component import Aggregation
from fedreid_jax.round.server.server_contexts import Groups


def _one(message: Tree, ctx: contexts.UploadCtx) -> Array:
  del message, ctx
  return jnp.float32(1.0)


# The same weight for every upload.
UNIFORM = Aggregation(raw=_one, bound=sums.by_count, fallback=False)


def stacked(
  rule: Aggregation, messages: Tree, uploads: types.Upload, groups: Groups
) -> Tree:
  """Returns the raw weights of stacked uploads, `()` if the rule has none.

  Args:
    rule: aggregation of a component.
    messages: of this component, `[K, ...]`.
    uploads: `[K, ...]`.
    groups: groups of the uploads.
  """
  raw = rule.raw
  if raw is None:
    return ()

  def one(message: Tree, upload: types.Upload, start: Flat) -> Tree:
    return raw(message, contexts.UploadCtx.of(upload, start))

  if groups.members.shape[0] == 1:
    start, axis = trees.rows(groups.start, 0), None
  else:
    start, axis = trees.rows(groups.start, groups.of_uploads), 0
  found = jax.vmap(one, in_axes=(0, 0, axis))(messages, uploads, start)
  return found


def weigh(
  rule: Aggregation, messages: Tree, ctx: contexts.AggregationCtx
) -> Array | dict[str, Array]:
  """Returns the weights of a rule, `[G, K]` or a dict of these.

  Args:
    rule: aggregation of a component.
    messages: of this component, `[K, ...]`.
    ctx: of this component.
  """
  if rule.weights is not None:
    return rule.weights(messages, ctx)
  if rule.raw is None:
    return aggregation.normalise(ctx.num_examples, ctx.members)

  def normalised(raw: Array) -> Array:
    return aggregation.normalise(raw, ctx.members)

  return jax.tree.map(normalised, ctx.raw)
