"""The statistics of DFH with noise, from sums of bounded records.

Features are clipped to a ball around a public centre o,

  f <- (f - o) min(1, c / |f - o|).

Identity j with the mean mu_j and the biased variance s_j of these features adds
one record r_j = (mu_j / c, mu_j^2 / c^2, s_j / c^2, s_j^2 / c^4), with squares
of every element, for any number of its images. With S, the sum of the J records
and N(0, (z sensitivity)^2 I), and the public J,

  m = o + c S_1 / J,               v = [c^2 S_2 / J - (m - o)^2]_+,
  p = [c^2 S_3 / J]_+,             q = [c^4 S_4 / J - p^2]_+.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.algorithms.statistics import clipping, moments
from fedreid_jax.algorithms.statistics.moments import Moments
from fedreid_jax.core.types import Array


@struct.dataclass
class Centred:
  """Per-identity moments of features that are clipped around a centre.

  Attributes:
    centre: o, `[D]`.
    moments: moments of the clipped differences from the centre.
  """

  centre: Array
  moments: Moments


def zeros(num_identities: int, centre: Array) -> Centred:
  """Returns the moments of no images around a public centre `[D]`."""
  return Centred(centre, moments.zeros(num_identities, centre.shape[0]))


def merge(
  seen: Centred, features: Array, labels: Array, valid: Array, clip: float
) -> Centred:
  """Adds a batch to the moments.

  A feature that is not finite becomes the centre.

  Args:
    seen: moments so far.
    features: `[B, D]`.
    labels: int32 `[B]`.
    valid: bool `[B]`.
    clip: c, largest distance from the centre.
  """
  near = _bounded(features - seen.centre, clip)
  added = moments.merge(seen.moments, near, labels, valid)
  return Centred(seen.centre, added)


def sensitivity(squares: bool) -> float:
  """Returns the largest norm |r_j| of a record, with or without its squares."""
  # |mu|^2 + |s|_1 is the mean of |f|^2, at most c^2, so that |r|^2 <= 2. One
  # image at distance c along one axis attains it. Without squares |r| <= 1.
  return math.sqrt(2.0) if squares else 1.0


def records(found: Moments, clip: float, squares: bool) -> Array:
  """Returns the record of every identity, `[C, 4, D]` or without squares 2.

  Args:
    found: moments of clipped differences from the centre.
    clip: c.
    squares: whether a record has the squares.
  """
  share = 1.0 / jnp.maximum(found.count, 1.0)[:, None]
  mean, spread = found.mean / clip, found.m2 * share / clip**2
  rows = [mean, mean**2, spread, spread**2] if squares else [mean, spread]
  seen = (found.count > 0)[:, None, None]
  return jnp.where(seen, jnp.stack(rows, axis=1), 0.0)


def release(
  key: Array, seen: Centred, clip: float, noise: float, squares: bool
) -> Array:
  """Returns the statistics `[4, D]`, rows m, v, p, q, of sums with noise.

  Args:
    key: PRNG key of the noise.
    seen: moments of all images.
    clip: c.
    noise: z, standard deviation of the noise over the sensitivity.
    squares: whether v and q are released; otherwise they are zero.
  """
  found, bound = records(seen.moments, clip, squares), sensitivity(squares)
  # In float32 a record can be a little above its bound, which the guarantee
  # assumes.
  flat = _bounded(found.reshape(len(found), -1), bound)
  total = flat.reshape(found.shape).sum(axis=0)
  total = total + noise * bound * jax.random.normal(key, total.shape)
  # The number of identities is public, so that it is exact.
  identities = (seen.moments.count > 0).sum()
  mean = total / jnp.maximum(identities, 1)
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
    return clipping.clipped({'': row}, jnp.float32(bound))[0]['']

  return jax.vmap(one)(rows)
