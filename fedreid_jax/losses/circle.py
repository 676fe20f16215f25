"""Circle loss between the images of a batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import similarity

# Finite, because the gradient of a logsumexp of -inf values alone is nan.
NOTHING = -1e9


def _logsumexp(
  values: Float[Array, 'B B'], chosen: Bool[Array, 'B B']
) -> Float[Array, ' B']:
  return jax.nn.logsumexp(jnp.where(chosen, values, NOTHING), axis=1)


def circle(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  margin: Number,
  gamma: Number,
) -> Float[Array, '']:
  """Circle loss over pairs, divided by the batch once more.

  Sun et al., "Circle loss: a unified perspective of pair similarity
  optimization", in the form of L2RW's training. With s_ij the cosine of two
  images, m the margin, and the other images of the anchor's identity positives,

    1/B mean_i softplus(lse_p[gamma [1+m-s]_+ (1-m-s)]
                        + lse_n[gamma [s+m]_+ (s-m)]),

  where the factors in `[.]_+` have no gradient, and `B` is the number of valid
  rows. An anchor without a positive or without a negative adds 0.

  Args:
    features: rows of any length above zero.
    labels: identities.
    valid: real rows.
    margin: `m`.
    gamma: scale of the similarities.
  """
  s = similarity.pairwise_cosine(features)
  constant = jax.lax.stop_gradient(s)
  real = valid[:, None] & valid[None]
  same = labels[:, None] == labels[None]
  positive = same & real & ~jnp.eye(len(labels), dtype=bool)
  negative = ~same & real
  pull = gamma * jnp.maximum(1 + margin - constant, 0.0) * (1 - margin - s)
  push = gamma * jnp.maximum(constant + margin, 0.0) * (s - margin)
  total = _logsumexp(pull, positive) + _logsumexp(push, negative)
  counts = positive.any(axis=1) & negative.any(axis=1)
  num = jnp.maximum(valid.sum(), 1).astype(jnp.float32)
  # The second 1/B is in the published code and not in the papers. An anchor
  # without a positive or a negative has the limit 0, and counts in B.
  return jnp.where(counts, jax.nn.softplus(total), 0.0).sum() / (num * num)
