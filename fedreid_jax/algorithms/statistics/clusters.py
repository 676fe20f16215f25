"""Clusterings of the images of one client, as functions of fixed shapes.

They run on the device of the client, within its round. Rows that are not valid
are padding, and belong to no cluster, -1. Features are `[M, D]`, clusters and
flags of rows `[M]`, and distances of all pairs `[M, M]`. All functions need
memory and time for all pairs, and the Jaccard distances time for all triples.
"""

from typing import Annotated, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import quotients
from fedreid_jax.core.options import Range
from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import metric

# Fields of methods that cluster by the neighbours of images.
Eps = Annotated[
  float, Range(0, 1), 'largest Jaccard distance of neighbours in DBSCAN'
]
MinSamples = Annotated[
  int, Range(1), 'least number of neighbours of a core image, with itself'
]
K1 = Annotated[int, Range(1), 'reciprocal neighbours of the re-ranking']
K2 = Annotated[
  int, Range(1), 'nearest images with averaged encodings in the re-ranking'
]


def by_neighbours(
  features: Array,
  valid: Array,
  *,
  eps: float,
  min_samples: int,
  k1: int,
  k2: int,
) -> tuple[Array, Array]:
  """DBSCAN on Jaccard distances: the clusters, and their unit means.

  Args:
    features: rows of unit length.
  """
  labels = dbscan(jaccard(features, valid, k1, k2), valid, eps, min_samples)
  return labels, metric.unit(means(features, labels))


def jaccard(features: Array, valid: Array, k1: int, k2: int) -> Array:
  """The Jaccard distances of k-reciprocal encodings.

  Zhong et al., CVPR 2017, equations 3 to 10, as clusterings use them (Dai et
  al., Cluster Contrast): the encoding of an image has the softmax of the
  negative squared distances to its expanded k1-reciprocal neighbours, averaged
  over the k2 nearest images. `evaluation.distances` has the form for rankings,
  which is sparse and runs on the host.

  Args:
    features: rows of unit length.
  """
  both = valid[:, None] & valid
  distances = jnp.where(
    both, jnp.square(metric.pairwise_distance(features)), jnp.inf
  )
  # The inverse of a permutation is the order of its values.
  rank = jnp.argsort(jnp.argsort(distances, axis=1), axis=1)
  near = _reciprocal(rank, both, k1)
  # The released code rounds k1 / 2 to even and counts the image itself.
  nearer = _reciprocal(rank, both, int(np.around(k1 / 2)) + 1)
  # The neighbours of a neighbour are added if two thirds of them are known.
  # Counts are exact in float32.
  counts = _product(near, nearer.T)
  joins = near & (counts > 2 / 3 * nearer.sum(axis=1))
  expanded = near | (_product(joins, nearer) > 0)
  weights = quotients.softmax(jnp.where(expanded, -distances, -jnp.inf))
  # A row of padding has no neighbours, and not a number as its weights.
  weights = jnp.where(expanded, weights, 0.0)
  closest = (rank < k2) & both
  num = jnp.maximum(closest.sum(axis=1, keepdims=True), 1)
  share = quotients.divide(closest, num)
  encodings = _product(share, weights)

  def row(encoding: Array) -> Array:
    return jnp.minimum(encoding, encodings).sum(axis=1)

  # Encodings sum to 1, so that the maxima sum to 2 less the minima.
  overlap = cast(Array, jax.lax.map(row, encodings))
  return jnp.where(both, jnp.maximum(1 - overlap / (2 - overlap), 0.0), jnp.inf)


def _reciprocal(rank: Array, both: Array, k: int) -> Array:
  """Whether two images are among the `k` nearest ones of each other."""
  near = (rank < k) & both
  return near & near.T


def _product(a: Array, b: Array) -> Array:
  highest = jax.lax.Precision.HIGHEST
  return jnp.matmul(
    a.astype(jnp.float32), b.astype(jnp.float32), precision=highest
  )


# scikit-learn's function needs the host, which a compiled round does not leave.
def dbscan(
  distances: Array,
  valid: Array,
  eps: float,
  min_samples: int,
) -> Array:
  """DBSCAN (Ester et al., KDD 1996), numbered as by scikit-learn.

  An image with at least `min_samples` images within `eps`, itself included, is
  a core image. Core images within `eps` of each other are in one cluster, and
  other images are in the first cluster with a core image within `eps`, or in
  none. Clusters are in the order of their first core images.
  """
  num = len(distances)
  numbers = jnp.arange(num)
  near = (distances <= eps) & valid[:, None] & valid
  core = near.sum(axis=1) >= min_samples
  # The lowest root of the core images within `eps`; `num` stands for none.
  to_core = near & core

  def lowest(roots: Array) -> Array:
    return jnp.where(to_core, roots, num).min(axis=1, initial=num)

  def spread(found: tuple[Array, Array]) -> tuple[Array, Array]:
    roots, _ = found
    new = jnp.where(core, jnp.minimum(roots, lowest(roots)), num)
    # The root of a root is a root of the image, too. This doubles the length of
    # the chains that are followed in an iteration.
    new = jnp.where(core, jnp.append(new, num)[new], num)
    return new, (new != roots).any()

  roots, _ = jax.lax.while_loop(
    lambda found: found[1],
    spread,
    (jnp.where(core, numbers, num), jnp.bool_(True)),
  )
  first = core & (roots == numbers)
  number = jnp.append(jnp.cumsum(first) - 1, -1)
  return number[lowest(roots)].astype(jnp.int32)


def bottom_up(
  features: Array,
  labels: Array,
  valid: Array,
  merges: Number,
  size_penalty: float,
) -> Array:
  """Merges the nearest clusters.

  Lin et al., A Bottom-Up Clustering Approach, AAAI 2019, section 3.3. The
  distance of two clusters is the smallest squared distance of their images,
  plus `size_penalty` times the number of images of both before this call.

  Args:
    merges: number of pairs of clusters to merge.

  Returns:
    The clusters, numbered from 0 without gaps.
  """
  num = len(labels)
  own = jnp.where(valid, labels, num)
  sizes = jnp.append(jnp.bincount(own, length=num), 0)[own]
  both = valid[:, None] & valid
  penalty = size_penalty * (sizes[:, None] + sizes)
  distances = jnp.where(
    both, jnp.square(metric.pairwise_distance(features)) + penalty, jnp.inf
  )

  def apart(labels: Array) -> Array:
    return jnp.where(labels[:, None] != labels, distances, jnp.inf)

  def merge(found: tuple[Array, Array]) -> tuple[Array, Array]:
    labels, done = found
    left = apart(labels)
    pair = jnp.unravel_index(jnp.argmin(left), left.shape)
    a, b = labels[pair[0]], labels[pair[1]]
    possible = jnp.isfinite(left[pair])
    merged = jnp.where(labels == jnp.maximum(a, b), jnp.minimum(a, b), labels)
    # No pair is left if all images are in one cluster.
    return jnp.where(possible, merged, labels), done + 1

  merged, _ = jax.lax.while_loop(
    lambda found: found[1] < merges, merge, (own, jnp.int32(0))
  )
  present = jnp.zeros(num + 1, bool).at[merged].set(True).at[num].set(False)
  number = jnp.cumsum(present) - 1
  return jnp.where(valid, number[merged], -1).astype(jnp.int32)


def means(features: Array, labels: Array) -> Array:
  """The mean feature of each cluster by its number, zeros for no cluster."""
  num = len(labels)
  own = jnp.where(labels >= 0, labels, num)
  total = jax.ops.segment_sum(features, own, num)
  count = jax.ops.segment_sum(jnp.ones(num), own, num)
  return quotients.divide(total, jnp.maximum(count, 1.0)[:, None])
