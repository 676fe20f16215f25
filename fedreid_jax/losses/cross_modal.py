"""Losses between the modalities of a batch.

DNS: Jiang et al., "Domain shifting: a generalized solution for heterogeneous
cross-modality person re-identification", ECCV 2024 (`mmd`, `alignment`,
`distillation`). DEEN: Zhang and Wang, "Diverse embedding expansion network and
low-light cross-modality benchmark for visible-infrared person re-
identification", CVPR 2023, section 3.3 (`orthogonality`, `centre_pair_mining`).
LbA: Park et al., "Learning by aligning: visible-infrared person re-
identification using cross-modal correspondences", ICCV 2021 (`dense_triplet`).
"""

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Bool, Float, Int

from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity, metric

NUM_KERNELS = 5
INTER, INTRA, IDENTITY = 0.45, 0.05, 0.25
# A squared distance; smaller ones of unit vectors are rounding errors, and a
# bandwidth of them would turn the kernels into noise.
NEAREST = 1e-6


def mmd(
  x: Float[Array, 'B D'],
  y: Float[Array, 'B2 D'],
  valid_x: Bool[Array, ' B'],
  valid_y: Bool[Array, ' B2'],
) -> Float[Array, '']:
  """The squared maximum mean discrepancy of two sets of vectors.

  `mean k(x, x') + mean k(y, y') - 2 mean k(x, y)` over all pairs, including a
  vector with itself (Gretton et al., "A kernel two-sample test"), where k is
  the sum of `exp(-|a - b|^2 / (2^i s))` for i from 0 to 4. The bandwidth s is a
  quarter of the mean squared distance of two different vectors of both sets,
  and has no gradient. The result is 0 if a set is empty.
  """
  squared = jnp.square(metric.pairwise_distance(jnp.concatenate([x, y])))
  valid = jnp.concatenate([valid_x, valid_y])
  count = valid.sum()
  pairs = valid[:, None] & valid[None]
  total = jnp.where(pairs, lax.stop_gradient(squared), 0.0).sum()
  # A vector has the distance 0 to itself, so the sum is over different ones.
  mean = total / jnp.maximum(count * (count - 1), 1)
  # Divided by 4, so that the mean distance is the scale of the middle kernel.
  bandwidth = jnp.maximum(mean / 2 ** (NUM_KERNELS // 2), NEAREST)
  kernel = sum(
    jnp.exp(quotients.divide(-squared, 2**i * bandwidth))
    for i in range(NUM_KERNELS)
  )
  # With +1/n over x and -1/m over y, the quadratic form of the kernel matrix is
  # the sum of the three means.
  share = jnp.concatenate(
    [
      quotients.divide(valid_x, jnp.maximum(valid_x.sum(), 1)),
      -quotients.divide(valid_y, jnp.maximum(valid_y.sum(), 1)),
    ]
  )
  # Three means of nearly equal size cancel.
  within = jnp.where(pairs, kernel, 0.0)
  exact = jax.lax.Precision.HIGHEST
  statistic = jnp.einsum('i,ij,j->', share, within, share, precision=exact)
  return jnp.where(valid_x.any() & valid_y.any(), statistic, 0.0)


def alignment(
  feature: Float[Array, 'B D'],
  shifted: Float[Array, 'B D'],
  members: Bool[Array, 'domains B'],
) -> Float[Array, '']:
  """Returns L_da, the discrepancy between domains and between their features.

  `0.45 [MMD(Z_v, Z_r) + MMD(Z^_v, Z^_r)] + 0.05 [MMD(Z_v, Z^_v) + MMD(Z_r,
  Z^_r)]` on vectors of unit length (DNS); with one domain, `0.05 MMD(Z, Z^)`.
  """
  both = metric.unit(feature), metric.unit(shifted)
  loss = INTRA * sum(mmd(*both, own, own) for own in members)
  if len(members) > 1:
    visible, infrared = members
    loss += INTER * sum(mmd(z, z, visible, infrared) for z in both)
  return jnp.asarray(loss)


def distillation(
  logits: Float[Array, 'B C'],
  targets: Float[Array, 'B C'],
  labels: Int[Array, ' B'],
  members: Bool[Array, 'domains B'],
) -> Float[Array, '']:
  """Returns one half of L_dd, for one of the two features (DNS).

  `mean_n KL(softmax a_n || softmax b_n)` over all real images, plus 0.25 times
  the cross-entropy of each domain's images. The logits `a` are scores by the
  classifier of the image's domain; the targets `b`, without gradient, are by
  the moving average of the other one.
  """
  log_p = jax.nn.log_softmax(logits)
  log_a = jax.nn.log_softmax(lax.stop_gradient(targets))
  divergence = optax.losses.kl_divergence_with_log_targets(log_a, log_p)
  entropies = [identity.cross_entropy(logits, labels, own) for own in members]
  return identity.masked_mean(divergence, members.any(axis=0)) + (
    IDENTITY * jnp.stack(entropies).sum()
  )


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
  """The loss of centre-guided pair mining for one expansion (eq. 3-5).

  With `v, r` the mean features of an identity's visible and infrared images,
  `v', r'` the means of their expansions, and `d` the Euclidean distance, it is
  `(l(r, v; v') + l(v, r; r')) / 2`, where

    l(x, y; y') = mean_id { [d(x, y') - sg d(y, y') + m]_+
      + [d(x, y') - min_other d(y', y'_other) + m]_+ / 2
      + [d(x, y') - min_other d(y, y_other) + m]_+ / 2 }.

  The mean and the minima are over identities with images of both modalities.
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
  num = jnp.maximum(members.sum(axis=1, keepdims=True), 1)
  share = quotients.divide(members, num)
  return jnp.matmul(share, features, precision=jax.lax.Precision.HIGHEST)


def _distance(x: Array, y: Array) -> Array:
  # The gradient of a root at zero is infinite.
  return jnp.sqrt(jnp.maximum(jnp.square(x - y).sum(axis=1), 1e-12))


def _hinge(x: Array) -> Array:
  return jnp.maximum(x, 0.0)


def dense_triplet(
  comask: Float[Array, 'B P'],
  positive: Float[Array, 'B P'],
  negative: Float[Array, 'B P'],
  valid: Bool[Array, ' B'],
  margin: Number = 0.3,
) -> Float[Array, '']:
  """The hinge loss of the two distances, times `comask`, over all positions.

  The inputs are those of a `models.alignment.Alignment`.
  """
  hinge = jnp.maximum(positive - negative + margin, 0.0)
  return identity.masked_mean((comask * hinge).mean(axis=1), valid)
