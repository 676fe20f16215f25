"""The model and the messages of a streamed round from its sums."""

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.round.server.fold import Fold
from fedreid_jax.round.server.totals import Streamed, Totals, of_leaf


def exceeds(fold: Fold, raw: Tree, valid: Array) -> Array:
  """Returns whether raw weights `[K]` exceed the rule's bound, bool."""
  if fold.rule is None or not fold.exact or fold.rule.bound is None:
    return jnp.bool_(False)
  highest = fold.by_rule().largest
  totals = [
    jnp.where(valid, jnp.abs(x), 0.0).sum() for x in jax.tree.leaves(raw)
  ]
  return (jnp.stack(totals) > highest).any()


def aggregate(
  fold: Fold,
  start: Flat,
  streamed: Streamed,
  valid: Array,
  weights: dict[str, Array],
  fell_back: Array,
) -> Flat:
  """Returns the new model.

  Args:
    fold: sums of the method.
    start: the server's model, `[1, ...]`.
    streamed: uploads in canonical order.
    valid: whether each upload is valid, bool `[K]`.
    weights: weights by parameter, `[1, K]`.
    fell_back: whether weights by size replaced those of the rule.
  """
  totals, images = streamed.totals, streamed.uploads.num_examples
  images = jnp.where(valid, images, 0.0).sum()

  def moved(name: str) -> Array:
    share, limit = weights[name].sum(), totals.limits[name]
    found = jnp.zeros(start[name].shape[1:], jnp.float32)
    if name in totals.by_size:
      found = fold.by_size().read(totals.by_size[name], limit)
      found = share / images * found
    if name in totals.own:
      mine = fold.by_rule().read(totals.own[name], limit)
      mine = share / _sum_of_raw(streamed, valid, name) * mine
      found = jnp.where(fell_back, found, mine)
    return start[name] + jnp.where(valid.any(), found, 0.0)[None]

  new = {name: moved(name) for name in totals.limits}
  first = {n: x[None] for n, x in totals.first.items()}
  models = start | trees.select(valid.any(), first, _like(start, first)) | new
  return {n: models[n].astype(x.dtype) for n, x in start.items()}


def message(fold: Fold, totals: Totals, name: str) -> Tree:
  """Returns the sums of a component's messages, float32."""
  limit = jnp.float32(fold.received[name].limit)
  return fold.of_message(name).read(totals.messages[name], limit)


def _sum_of_raw(streamed: Streamed, valid: Array, name: str) -> Array:
  raw = of_leaf(streamed.raw, name)
  if name in streamed.totals.peaks:
    raw = jnp.exp(raw - streamed.totals.peaks[name])
  return jnp.where(valid, raw, 0.0).sum()


def _like(tree: Flat, names: Flat) -> Flat:
  return {name: tree[name] for name in names}
