"""Losses on DEEN's expanded embeddings.

Zhang and Wang, DEEN, section 3.3: centre-guided pair mining (CPM) and the
orthogonality of the branches.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity, metric


def orthogonality(
  first: Float[Array, 'B D'],
  second: Float[Array, 'B D'],
  valid: Bool[Array, ' B'],
) -> Float[Array, '']:
  """Returns a third of the mean inner product of the two branches (eq. 6)."""
  # The released code divides by the batch of the images and both expansions.
  return identity.masked_mean((first * second).sum(axis=1), valid) / 3


def centre_pair_mining(
  original: Float[Array, 'B D'],
  branch: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  modalities: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  margin: Number = 0.2,
) -> Float[Array, '']:
  """Returns the loss of centre-guided pair mining for one expansion (eq. 3-5).

  With `v, r` the mean features of an identity's visible and infrared images,
  `v', r'` the means of their expansions, and `d` the Euclidean distance, it is
  `(l(r, v; v') + l(v, r; r')) / 2`, where

    l(x, y; y') = mean_id { [d(x, y') - sg d(y, y') + m]_+
      + [d(x, y') - min_other d(y', y'_other) + m]_+ / 2
      + [d(x, y') - min_other d(y, y_other) + m]_+ / 2 }.

  The mean and the minima are over identities with images of both modalities.

  Args:
    original: features of the images.
    branch: features of an expansion of the images.
    labels: identities.
    modalities: 0 visible, 1 infrared.
    valid: real rows.
    margin: `m`.
  """
  same = (labels[:, None] == labels[None]) & valid[:, None] & valid[None]
  visible = same & (modalities[None] == 0)
  infrared = same & (modalities[None] == 1)
  both = visible.any(axis=1) & infrared.any(axis=1)
  # Every row has its identity's means; only the first row of each counts.
  first = both & (same.argmax(axis=1) == jnp.arange(labels.size))
  others = ~same & first[None]
  stacked = jnp.concatenate([original, branch], axis=1)
  # A matrix product multiplies padded rows by zero, and 0 * nan is nan.
  stacked = jnp.where(valid[:, None], stacked, 0.0)
  v, v_branch = jnp.split(_means(visible, stacked), 2, axis=1)
  r, r_branch = jnp.split(_means(infrared, stacked), 2, axis=1)

  def mined(x, y, y_branch):
    across = _distance(x, y_branch)
    # Constant in the released code, see the deviations of `algorithms.deen`.
    within = jax.lax.stop_gradient(_distance(y, y_branch))
    loss = identity.masked_mean(_hinge(across - within + margin), first)
    for centres in (y_branch, y):
      # Without another identity the minimum is FAR and the hinge 0.
      far = jnp.where(others, metric.pairwise_distance(centres), metric.FAR)
      hinge = _hinge(across - far.min(axis=1) + margin)
      loss = loss + identity.masked_mean(hinge, first) / 2
    return loss

  return (mined(r, v, v_branch) + mined(v, r, r_branch)) / 2


def _means(members: Array, features: Array) -> Array:
  share = members / jnp.maximum(members.sum(axis=1, keepdims=True), 1)
  return jnp.matmul(share, features, precision=jax.lax.Precision.HIGHEST)


def _distance(x: Array, y: Array) -> Array:
  # The gradient of a root at zero is infinite.
  return jnp.sqrt(jnp.maximum(jnp.square(x - y).sum(axis=1), 1e-12))


def _hinge(x: Array) -> Array:
  return jnp.maximum(x, 0.0)
