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
# A squared distance; smaller ones of unit vectors are rounding errors, and a
# bandwidth of them would turn the kernels into noise.
NEAREST = 1e-6


def mmd(
  x: Float[Array, 'B D'],
  y: Float[Array, 'B2 D'],
  valid_x: Bool[Array, ' B'],
  valid_y: Bool[Array, ' B2'],
) -> Float[Array, '']:
  """Returns the squared maximum mean discrepancy of two sets of vectors.

  `mean k(x, x') + mean k(y, y') - 2 mean k(x, y)` over all pairs, including a
  vector with itself (Gretton et al., "A kernel two-sample test"), where k is
  the sum of `exp(-|a - b|^2 / (2^i s))` for i from 0 to 4. The bandwidth s is a
  quarter of the mean squared distance of two different vectors of both sets,
  and has no gradient. The result is 0 if a set is empty.

  Args:
    x: rows, some of which are the first set.
    y: rows, some of which are the second set.
    valid_x: mask of the rows in the first set.
    valid_y: mask of the rows in the second set.
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
    jnp.exp(-squared / (2**i * bandwidth)) for i in range(NUM_KERNELS)
  )
  # With +1/n over x and -1/m over y, the quadratic form of the kernel matrix is
  # the sum of the three means.
  share = jnp.concatenate(
    [
      valid_x / jnp.maximum(valid_x.sum(), 1),
      -(valid_y / jnp.maximum(valid_y.sum(), 1)),
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
  """Returns one half of L_dd, for one of the two features.

  `mean_n KL(softmax a_n || softmax b_n)` over all real images, plus 0.25 times
  the cross-entropy of each domain's images (DNS). `b` has no gradient.

  Args:
    logits: `a`, scores of each image by the classifier of its domain.
    targets: `b`, scores by the moving average of the other domain's classifier.
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
