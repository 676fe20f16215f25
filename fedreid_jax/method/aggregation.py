"""Server aggregation: valid uploads, their weights, and the weighted mean.

A row of weights that sums to one gives a weighted mean of the uploads. If the
weights of a rule sum to less or more (normalised averaging), the server's model
has the remaining weight, which is equivalent to an update by differences.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array, Flat

BatchStatsRule = Literal['average', 'first_client', 'keep_server']


def valid_uploads(uploads: types.Upload) -> Array:
  """Returns which of the stacked uploads are valid, bool `[K]`."""
  return jax.vmap(valid_upload)(uploads)


def valid_upload(upload: types.Upload) -> Array:
  """Returns whether an upload is not padding and all of it is finite, bool."""
  # `upload.finite` is about the state that the client keeps, which would not be
  # finite in any later round either.
  real = (upload.index >= 0) & upload.finite
  return real & trees.all_finite((upload.shared, upload.messages))


def normalise(raw: Array, members: Array) -> Array:
  """Scales the members' weights of each group to sum to one.

  Args:
    raw: non-negative weights `[K]`.
    members: which uploads each group has, bool `[G, K]`.

  Returns:
    float32 `[G, K]`; the row of an empty group is zero. The row of a group
    whose weights sum to zero is nan, and `usable` replaces it.
  """
  rows = jnp.where(members, raw, 0.0)
  scaled = rows / rows.sum(axis=1, keepdims=True)
  # 0 / 0 of an empty group is nan.
  return jnp.where(members, scaled, 0.0)


def uniform(members: Array) -> Array:
  """Returns equal weights for all uploads of a group, float32 `[G, K]`."""
  return normalise(jnp.ones(members.shape[1], jnp.float32), members)


def usable(
  weights: Array | dict[str, Array], members: Array, sizes: Array
) -> tuple[Array | dict[str, Array], Array]:
  """Replaces rows that are all zero or not finite by weights by size.

  Returns:
    (weights, whether any group's row was replaced).
  """

  def wrong(rows: Array) -> Array:
    finite = jnp.isfinite(rows).all(axis=1)
    return ~(finite & (rows != 0).any(axis=1)) & members.any(axis=1)

  # A group falls back for all parameters or for none.
  bad = functools.reduce(
    jnp.logical_or, [wrong(rows) for rows in jax.tree.leaves(weights)]
  )

  def replaced(rows: Array) -> Array:
    return jnp.where(bad[:, None], sizes, rows)

  return jax.tree.map(replaced, weights), bad.any()


def leaf_weights(
  weights: Array | dict[str, Array],
  sizes: Array,
  shared: Flat,
  first: Array,
  rule: str,
) -> dict[str, Array]:
  """Returns the weights of every shared parameter, `[G, K]`.

  Args:
    weights: one array for all parameters, or arrays by name (absent parameters
      are weighted by size).
    first: one-hot weights of the first client sampled in each group.
  """
  by_leaf = (
    weights if isinstance(weights, dict) else dict.fromkeys(shared, weights)
  )
  by_leaf = {name: by_leaf.get(name, sizes) for name in shared}
  # Weights of zero leave the running statistics of the server as they are.
  if rule != 'average':
    override = first if rule == 'first_client' else jnp.zeros_like(sizes)
    _, running = trees.trainable(shared)
    by_leaf |= dict.fromkeys(running, override)
  return by_leaf


def summarise(weights: Array | dict[str, Array]) -> dict[str, Array]:
  """Returns the log entry for weights: `weights [K]`, or their `entropy`.

  The entropy, in nats, is for weights by parameter. It is the mean over the
  parameters, and is 0 if one client has all the weight.
  """
  if not isinstance(weights, dict):
    return {'weights': weights.sum(axis=0)}

  def entropy(rows: Array) -> Array:
    share = jnp.abs(rows) / jnp.maximum(jnp.abs(rows).sum(), 1e-12)
    return -jnp.where(share > 0, share * jnp.log(share), 0.0).sum()

  every = jnp.stack([entropy(rows) for rows in weights.values()])
  return {'entropy': every.mean()}


def reduce(server: Flat, values: Flat, weights: dict[str, Array]) -> Flat:
  """Returns the new models of all groups, `[G, ...]`.

  Args:
    server: current values `[G, ...]`.
    values: uploaded values `[K, ...]`, in canonical order.
    weights: weights by name, `[G, K]`; rows of zeros do not change a group.
  """

  def one(name: str) -> Array:
    weight, old = weights[name], server[name]
    wide = (-1,) + (1,) * (old.ndim - 1)
    rest = 1.0 - weight.sum(axis=1)
    # Weights that sum to one up to rounding leave nothing for the server, so
    # that one client is copied bit for bit.
    rest = jnp.where(jnp.abs(rest) < 1e-6, 0.0, rest).reshape(wide)
    mean = _total(weight, values[name])
    # Not `mean + 0 * old`, which changes bits or is nan.
    return jnp.where(rest == 0.0, mean, mean + rest * old).astype(old.dtype)

  return {name: one(name) for name in server}


def _total(weight: Array, value: Array) -> Array:
  num_groups = weight.shape[0]
  wide = (num_groups,) + (1,) * (value.ndim - 1)

  def add(total: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
    w, v = row
    w = w.reshape(wide)
    # Uploads without weight may have values that are not finite.
    return total + jnp.where(w == 0.0, 0.0, w * v[None]), None

  zero = jnp.zeros((num_groups, *value.shape[1:]), jnp.float32)
  # A scan adds clients in their order, which fixes the bits of the sum.
  return jax.lax.scan(add, zero, (weight.T, value))[0]
