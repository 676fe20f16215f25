"""Distances and cosines between the images of a batch, and losses on them."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Float32, Int

from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity

# Above any distance, and finite so that differences with it are not nan.
FAR = 1e9
# Rows of at most this squared length have no direction.
SHORT = 1e-12
# Finite, because the gradient of a logsumexp of -inf values alone is nan.
NOTHING = -1e9
# The exponential of a larger number overflows in float32.
LARGEST = 88.0
Kind = Literal['cos', 'edu', 'mixed']
Normalise = Literal['teacher_only', 'both', 'none']


def unit(x: Float[Array, '*rows D']) -> Float32[Array, '*rows D']:
  """Scales rows to unit length, in float32; zeros stay zeros."""
  x = x.astype(jnp.float32)
  # A division by `optax.safe_norm` would round differently from `rsqrt`.
  square = (x * x).sum(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def direction(x: Float[Array, '*rows D']) -> Float[Array, '*rows D']:
  """Scales rows to unit length; short ones are zero and have no gradient."""
  square = (x * x).sum(axis=-1, keepdims=True)
  long = square > SHORT
  # The inner selection keeps an infinite derivative out of the gradient.
  return jnp.where(long, x * jax.lax.rsqrt(jnp.where(long, square, 1)), 0)


def cosine(
  x: Float[Array, 'B D'], y: Float[Array, 'B D']
) -> Float[Array, ' B']:
  """Returns cosines of pairs of rows; the cosine with a row of zeros is 0."""
  # The quotient of sums, unlike a sum of products of unit vectors, is 1 exactly
  # for equal rows.
  x, y = _near_one(x), _near_one(y)
  # The floor keeps the gradient at zero finite.
  size = jnp.sqrt(jnp.maximum((x * x).sum(-1) * (y * y).sum(-1), 1e-16))
  return (x * y).sum(-1) / size


def _near_one(x: Float[Array, 'B D']) -> Float[Array, 'B D']:
  # Squares of squares overflow above 1e9 and vanish below 1e-9. A power of two
  # changes no digit, and the cosine does not depend on it.
  _, exponent = jnp.frexp(jnp.abs(x).max(axis=-1, keepdims=True))
  return x * jnp.ldexp(jnp.ones((), x.dtype), -jnp.clip(exponent, -126, 126))


def pairwise_cosine(x: Float[Array, 'B D']) -> Float32[Array, 'B B']:
  """The cosines between all rows."""
  x = unit(x)
  # With a scale of 64 in an exponent, the short floats that some accelerators
  # use by default leave no digits.
  return jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)


def pairwise_distance(x: Float[Array, 'B D']) -> Float[Array, 'B B']:
  """Returns Euclidean distances between rows, with finite gradients at zero."""
  # Distances do not depend on a common mean, but in float32 the squares of a
  # large one leave no digits for them. The first row is subtracted, because
  # padded rows would enter the mean of all rows.
  x = x - jax.lax.stop_gradient(x[:1])
  square = (x * x).sum(axis=1)
  # Squares of nearly equal size cancel, so the product must not be rounded to
  # the short floats that some accelerators use by default.
  products = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
  squared = square[:, None] + square[None] - 2.0 * products
  # `optax.safe_norm` would need all differences, `[B, B, D]`.
  distance = jnp.sqrt(jnp.maximum(squared, 1e-12))
  return jnp.where(jnp.eye(len(x), dtype=bool), 0.0, distance)


def hard_triplet(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  margin: Number,
) -> Float[Array, '']:
  """The batch-hard triplet loss (Hermans et al.; DFH, section 3.2).

  `mean_n [max_{p: y_p = y_n} |f_n - f_p| - min_{q: y_q != y_n} |f_n - f_q|
  + m]_+` with Euclidean distances, neither squared nor normalised. An anchor
  may be its own positive. An anchor without a negative does not count.
  """
  distance = pairwise_distance(features)
  same = labels[:, None] == labels[None]
  real = valid[None] & valid[:, None]
  positive = jnp.where(same & real, distance, 0.0).max(axis=1)
  negative = jnp.where(~same & real, distance, FAR).min(axis=1)
  counts = valid & (~same & real).any(axis=1)
  hinge = jnp.maximum(positive - jnp.where(counts, negative, 0.0) + margin, 0.0)
  return identity.masked_mean(hinge, counts)


def weighted_triplet(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  squared: bool = False,
) -> Float[Array, '']:
  """The weighted regularisation triplet loss.

  `mean_i log(1 + exp(d+ - d-))` (Ye et al., "Deep learning for person
  re-identification: a survey and outlook", AGW). `d+` is the mean distance to
  the images of the anchor's identity, the anchor included, with weights
  softmax(d); `d-` is the mean distance to the others with weights softmax(-d).
  Distances are Euclidean, neither squared nor normalised. An anchor without a
  negative in the batch does not count.

  With `squared` and `g = d+ - d-`, it is `log(1 + exp(sign(g) min(g^2, 88)))`
  (Ye et al., "Channel augmented joint learning for visible-infrared
  recognition").
  """
  distance = pairwise_distance(features)
  real = valid[:, None] & valid[None]
  same = labels[:, None] == labels[None]
  negative = ~same & real
  gap = _soft_mean(distance, same & real, 1.0)
  gap = gap - _soft_mean(distance, negative, -1.0)
  if squared:
    sign = jnp.where(gap > 0, 1.0, -1.0)
    gap = sign * jnp.minimum(gap * gap, LARGEST)
  return identity.masked_mean(jax.nn.softplus(gap), negative.any(axis=1))


def _soft_mean(
  distance: Float[Array, 'B B'], chosen: Bool[Array, 'B B'], sign: float
) -> Float[Array, ' B']:
  """Returns means of distances with the weights `softmax(sign * distance)`."""
  # The public code adds 1e-6 to a sum of exponentials that are not shifted, so
  # that the weights of negatives vanish at distances above some 15.
  weights = quotients.softmax(jnp.where(chosen, sign * distance, -FAR))
  return jnp.where(chosen, weights * distance, 0.0).sum(axis=1)


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
  """
  s = pairwise_cosine(features)
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


def _logsumexp(
  values: Float[Array, 'B B'], chosen: Bool[Array, 'B B']
) -> Float[Array, ' B']:
  return jax.nn.logsumexp(jnp.where(chosen, values, NOTHING), axis=1)


def rectification(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  centres: Float[Array, 'C D'],
  present: Bool[Array, ' C'],
  kind: Kind,
) -> Float[Array, '']:
  """The mean distance of features z from the centres of their identities.

  Jiang et al., L2RW, eq. 6. `cos` is `1 - cos(z_i, c_{y_i})`, `edu` is
  `|z_i - c_{y_i}|^2 / D`, `mixed` is half of each (table 3). Images whose
  identity has no centre are left out; the loss is 0 if none is left. A centre
  of zeros has `cos = 0` to all images.
  """
  target = jax.lax.stop_gradient(centres)[labels]
  angle = 1.0 - (unit(features) * unit(target)).sum(axis=1)
  square = jnp.square(features - target).mean(axis=1)
  each = {'cos': angle, 'edu': square, 'mixed': 0.5 * (angle + square)}[kind]
  return identity.masked_mean(each, valid & present[labels])


def feature_mse(
  student: Float[Array, 'B D'],
  teacher: Float[Array, 'B D'],
  valid: Bool[Array, ' B'],
  normalise: str,
) -> Float[Array, '']:
  """The squared error of features, averaged over rows and dimensions.

  FedReIDBench, journal version, Algorithm 3. The caller normalises the rows of
  the teacher; with 'both' the student's are scaled to unit length as well.
  """
  if normalise == 'both':
    student = unit(student)
  return identity.masked_mean(((student - teacher) ** 2).mean(axis=1), valid)
