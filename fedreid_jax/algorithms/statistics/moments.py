"""Moments of the features of each identity, and the statistics of DFH.

`data_pass` measures them, exactly or with a bound for each identity, and
`statistics` and `release` compute the statistics, without or with noise. With
noise, features are clipped to a ball around a public centre o,

  f <- (f - o) min(1, c / |f - o|).

Identity j with the mean mu_j and the biased variance s_j of these features adds
one record r_j = (mu_j / c, mu_j^2 / c^2, s_j / c^2, s_j^2 / c^4), with squares
of every element, for any number of its images. With S, the sum of the J records
and N(0, (z sensitivity)^2 I), and the public J,

  m = o + c S_1 / J,               v = [c^2 S_2 / J - (m - o)^2]_+,
  p = [c^2 S_3 / J]_+,             q = [c^4 S_4 / J - p^2]_+.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array, Batch, Outputs
from fedreid_jax.method.component import DataPass
from fedreid_jax.method.contexts import RoundCtx


@struct.dataclass
class Moments:
  """Moments of the features of each identity, merged batch by batch."""

  count: Array  # images of each identity, `[C]`
  mean: Array  # `[C, D]`
  m2: Array  # sum of squared differences from the mean, `[C, D]`


@struct.dataclass
class Centred:
  """Per-identity moments of features that are clipped around a centre."""

  centre: Array  # o, `[D]`
  moments: Moments  # of the clipped differences from the centre


def data_pass(represent: Callable[[Outputs], Array], clip: float) -> DataPass:
  """The data pass, whose result is `Moments`, or `Centred` with a clip.

  `represent` computes features `[B, D]`. `clip` is their largest distance from
  the mean that the client sent before, which is zero before round 0; 0 for no
  clip.
  """

  def nothing(outputs: Outputs, ctx: RoundCtx) -> Moments:
    del ctx
    num_features = represent(outputs).shape[1]
    return zeros(outputs.logits.shape[1], num_features)

  def add(seen: Moments, outputs: Outputs, batch: Batch) -> Moments:
    return merge(seen, represent(outputs), batch.labels, batch.valid)

  def none_near(outputs: Outputs, ctx: RoundCtx) -> Centred:
    # The centre is row m of the statistics that this client sent before.
    return centred_zeros(
      outputs.logits.shape[1], ctx.message[ctx.task.index, 0]
    )

  def add_near(seen: Centred, outputs: Outputs, batch: Batch) -> Centred:
    return merge_centred(
      seen, represent(outputs), batch.labels, batch.valid, clip
    )

  # Before the first round as well, whose loss needs the statistics of all.
  if clip:
    return DataPass(none_near, add_near)
  return DataPass(nothing, add)


def zeros(num_identities: int, num_features: int) -> Moments:
  """The moments of no images."""
  mean = jnp.zeros((num_identities, num_features), jnp.float32)
  return Moments(jnp.zeros(num_identities, jnp.float32), mean, mean)


def merge(
  moments: Moments, features: Array, labels: Array, valid: Array
) -> Moments:
  """Adds features `[B, D]` to the moments (pairwise update of Chan et al.)."""
  num = moments.count.shape[0]
  # Segment `num` is out of range, so `segment_sum` drops padded rows without
  # reading their values, which may not be finite.
  owners = jnp.where(valid, labels, num)

  def total(values: Array) -> Array:
    return jax.ops.segment_sum(values, owners, num)

  ones = total(valid.astype(jnp.float32))
  each = jnp.maximum(ones, 1.0)[:, None]
  mean = quotients.divide(total(features), each)
  # Squares of differences: in float32 a mean of squares minus a squared mean
  # loses its digits where the mean is large.
  gap = features - mean[jnp.minimum(owners, num - 1)]
  m2 = total(gap * gap)
  count = moments.count + ones
  share = (ones / jnp.maximum(count, 1.0))[:, None]
  shift = mean - moments.mean
  between = shift * shift * share * moments.count[:, None]
  return Moments(count, moments.mean + share * shift, moments.m2 + m2 + between)


def statistics(moments: Moments) -> Array:
  """The DFS `[4, D]`: rows m, v, p, q (DFH eq. 3.1)."""
  # Padded identities of the label space have no images.
  seen = (moments.count > 0)[:, None]

  def mean(values: Array) -> Array:
    total = jnp.where(seen, values, 0.0).sum(axis=0)
    return quotients.divide(total, jnp.maximum(seen.sum(), 1))

  images = jnp.maximum(moments.count, 1.0)[:, None]
  spread = quotients.divide(moments.m2, images)
  m, p = mean(moments.mean), mean(spread)
  v, q = mean((moments.mean - m) ** 2), mean((spread - p) ** 2)
  return jnp.stack([m, v, p, q])


def centred_zeros(num_identities: int, centre: Array) -> Centred:
  """The moments of no images around a public centre `[D]`."""
  return Centred(centre, zeros(num_identities, centre.shape[0]))


def merge_centred(
  seen: Centred, features: Array, labels: Array, valid: Array, clip: float
) -> Centred:
  """Adds features `[B, D]` to the moments, clipped to the distance c.

  A feature that is not finite becomes the centre.
  """
  near = _bounded(features - seen.centre, clip)
  added = merge(seen.moments, near, labels, valid)
  return Centred(seen.centre, added)


def sensitivity(squares: bool) -> float:
  """The largest norm |r_j| of a record, with or without its squares."""
  # |mu|^2 + |s|_1 is the mean of |f|^2, at most c^2, so that |r|^2 <= 2. One
  # image at distance c along one axis attains it. Without squares |r| <= 1.
  return math.sqrt(2.0) if squares else 1.0


def records(found: Moments, clip: float, squares: bool) -> Array:
  """The records of identities, `[C, 4, D]`, or `[C, 2, D]` without squares."""
  images = jnp.maximum(found.count, 1.0)[:, None]
  mean, spread = found.mean / clip, quotients.divide(found.m2, images) / clip**2
  rows = [mean, mean**2, spread, spread**2] if squares else [mean, spread]
  seen = (found.count > 0)[:, None, None]
  return jnp.where(seen, jnp.stack(rows, axis=1), 0.0)


def release(
  key: Array, seen: Centred, clip: float, noise: float, squares: bool
) -> Array:
  """The statistics `[4, D]`, rows m, v, p, q, of sums with noise.

  `clip` is c and `noise` is z; without squares v and q are zero.
  """
  found, bound = records(seen.moments, clip, squares), sensitivity(squares)
  # In float32 a record can be a little above its bound, which the guarantee
  # assumes.
  flat = _bounded(found.reshape(len(found), -1), bound)
  total = flat.reshape(found.shape).sum(axis=0)
  total = total + noise * bound * jax.random.normal(key, total.shape)
  # The number of identities is public, so that it is exact.
  identities = (seen.moments.count > 0).sum()
  mean = quotients.divide(total, jnp.maximum(identities, 1))
  if not squares:
    m, p = clip * mean[0], jnp.maximum(clip**2 * mean[1], 0.0)
    none = jnp.zeros_like(m)
    return jnp.stack([seen.centre + m, none, p, none])
  m, p = clip * mean[0], jnp.maximum(clip**2 * mean[2], 0.0)
  # Noise can make a difference negative, but not a variance.
  v = jnp.maximum(clip**2 * mean[1] - m**2, 0.0)
  q = jnp.maximum(clip**4 * mean[3] - p**2, 0.0)
  return jnp.stack([seen.centre + m, v, p, q])


def _bounded(rows: Array, bound: float) -> Array:
  """Returns rows `[M, D]` with a norm of at most a bound each."""

  def one(row: Array) -> Array:
    return privacy.clipped({'': row}, jnp.float32(bound))[0]['']

  return jax.vmap(one)(rows)
