"""Discrepancy between the features and classifiers of domains.

Jiang et al., "Domain shifting: a generalized solution for heterogeneous
cross-modality person re-identification" (DNS), ECCV 2024.
"""

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity, metric, similarity

NUM_KERNELS = 5
INTER, INTRA, IDENTITY = 0.45, 0.05, 0.25
# Squared; smaller distances of unit vectors are rounding errors.
NEAREST = 1e-6


def mmd(
  x: Float[Array, 'B D'],
  y: Float[Array, 'B2 D'],
  valid_x: Bool[Array, ' B'],
  valid_y: Bool[Array, ' B2'],
) -> Float[Array, '']:
  """Returns the squared maximum mean discrepancy of two sets of vectors.

  `mean k(x, x') + mean k(y, y') - 2 mean k(x, y)` over all pairs, including a
  vector with itself (Gretton et al., "A kernel two-sample test"), k the sum of
  `exp(-|a - b|^2 / (2^i s))` for i of 0 to 4. The bandwidth s is a quarter of
  the mean squared distance of two different vectors of both sets, without
  gradient. Zero if a set is empty.

  Args:
    x: vectors of the first set, among others.
    y: vectors of the second set, among others.
    valid_x: mask of the vectors in the first set.
    valid_y: mask of the vectors in the second set.
  """
  squared = jnp.square(metric.pairwise_distance(jnp.concatenate([x, y])))
  valid = jnp.concatenate([valid_x, valid_y])
  count = valid.sum()
  pairs = valid[:, None] & valid[None]
  total = jnp.where(pairs, lax.stop_gradient(squared), 0.0).sum()
  mean = total / jnp.maximum(count * (count - 1), 1)
  bandwidth = jnp.maximum(mean / 2 ** (NUM_KERNELS // 2), NEAREST)
  kernel = sum(
    jnp.exp(-squared / (2**i * bandwidth)) for i in range(NUM_KERNELS)
  )
  # +1/n over x and -1/m over y: the quadratic form of these is the statistic.
  share = jnp.concatenate(
    [
      valid_x / jnp.maximum(valid_x.sum(), 1),
      -(valid_y / jnp.maximum(valid_y.sum(), 1)),
    ]
  )
  statistic = share @ jnp.where(pairs, kernel, 0.0) @ share
  return jnp.where(valid_x.any() & valid_y.any(), statistic, 0.0)


def alignment(
  feature: Float[Array, 'B D'],
  shifted: Float[Array, 'B D'],
  members: Bool[Array, 'domains B'],
) -> Float[Array, '']:
  """Returns L_da, the discrepancy of domains and of their two features.

  `0.45 [MMD(Z_v, Z_r) + MMD(Z^_v, Z^_r)] + 0.05 [MMD(Z_v, Z^_v) + MMD(Z_r,
  Z^_r)]` on vectors of length one (DNS). With one domain only `0.05 MMD(Z, Z^)`
  is left.

  Args:
    feature: `Z`, pooled features.
    shifted: `Z^`, features in the common space.
    members: real images of each domain, one or two.
  """
  both = similarity.unit(feature), similarity.unit(shifted)
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
  """Returns half of L_dd: the distillation of a domain's classifier.

  `mean_n KL(softmax a_n || softmax b_n)` over all real images, plus 0.25 times
  the cross-entropy of each domain's images (DNS). No gradient passes to b.

  Args:
    logits: `a`, of each image by its own domain's classifier.
    targets: `b`, by the moving average of the other domain's.
    labels: identities.
    members: real images of each domain.
  """
  log_p = jax.nn.log_softmax(logits)
  log_a = jax.nn.log_softmax(lax.stop_gradient(targets))
  divergence = optax.losses.kl_divergence_with_log_targets(log_a, log_p)
  entropies = [identity.cross_entropy(logits, labels, own) for own in members]
  return identity.masked_mean(divergence, members.any(axis=0)) + (
    IDENTITY * jnp.stack(entropies).sum()
  )
