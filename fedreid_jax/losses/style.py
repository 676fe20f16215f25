"""Dual causality losses of style normalisation and restitution (SNR).

Jin et al., "Style normalization and restitution for generalizable person
re-identification", CVPR 2020: the part added back to style-normalised features
must make them more discriminative, and the part left out less discriminative.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Key

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity, metric


def draw_triplets(
  key: Key[Array, ''], labels: Int[Array, ' B'], valid: Bool[Array, ' B']
) -> tuple[Int[Array, ' B'], Int[Array, ' B'], Bool[Array, ' B']]:
  """Draws a positive and a negative at random for every anchor.

  The results are the rows of positives, which differ from the anchors, the rows
  of negatives, and a mask of the anchors that have both.
  """
  size = labels.shape[0]
  same = labels[:, None] == labels[None]
  real = valid[:, None] & valid[None]
  positive = same & real & ~jnp.eye(size, dtype=bool)
  negative = ~same & real
  # The largest of independent draws is uniform among the candidates.
  lots = jax.random.uniform(key, (2, size, size))
  return (
    jnp.where(positive, lots[0], -1.0).argmax(axis=1),
    jnp.where(negative, lots[1], -1.0).argmax(axis=1),
    positive.any(axis=1) & negative.any(axis=1),
  )


def distance(
  key: Key[Array, ''],
  normalised: Float[Array, 'B D'],
  enhanced: Float[Array, 'B D'],
  contaminated: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  scale: Number = 0.5,
) -> Float[Array, '']:
  """Compares distances within triplets before and after restitution.

  The loss is the mean of

    s(d+(a,p) - d(a,p)) + s(d(a,n) - d+(a,n))
    + s(d(a,p) - d-(a,p)) + s(d-(a,n) - d(a,n))

  over the anchors a that have a positive p and a negative n, with s = softplus
  and d = 1/2 - scale cos, which is between 0 and 1 for a scale of 1/2. The
  features of d are the normalised ones, of d+ the enhanced and of d- the
  contaminated ones. The cosine with a vector of length zero is 0 and has no
  gradient.
  """
  positive, negative, counts = draw_triplets(key, labels, valid)

  def apart(features):
    unit = metric.direction(features)
    p, n = ((unit * unit[rows]).sum(axis=1) for rows in (positive, negative))
    return 0.5 - scale * p, 0.5 - scale * n

  p, n = apart(normalised)
  enhanced_p, enhanced_n = apart(enhanced)
  contaminated_p, contaminated_n = apart(contaminated)
  losses = (
    jax.nn.softplus(enhanced_p - p)
    + jax.nn.softplus(n - enhanced_n)
    + jax.nn.softplus(p - contaminated_p)
    + jax.nn.softplus(contaminated_n - n)
  )
  return identity.masked_mean(losses, counts)


def mean_entropy(
  logits: Float[Array, 'B C'], valid: Bool[Array, ' B']
) -> Float[Array, '']:
  """The mean entropy, in nats, of the softmax of scores."""
  log_p = jax.nn.log_softmax(logits)
  return identity.masked_mean(-(jnp.exp(log_p) * log_p).sum(axis=1), valid)


def entropy(
  logits: Float[Array, '3 B C'], valid: Bool[Array, ' B']
) -> Float[Array, '']:
  """Compares a classifier's uncertainty before and after restitution.

  The loss is `softplus(H+ - H) + softplus(H - H-)` with the mean entropy H of
  the batch (Jin et al., "Style normalization and restitution for domain
  generalization and adaptation", IEEE Transactions on Multimedia 2021). Scores
  are those of normalised, enhanced and contaminated features.
  """
  normalised, enhanced, contaminated = (mean_entropy(x, valid) for x in logits)
  return jax.nn.softplus(enhanced - normalised) + jax.nn.softplus(
    normalised - contaminated
  )
