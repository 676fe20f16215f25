"""The first partition of FINCH: rows linked through their nearest neighbours.

Sarfraz, Sharma and Stiefelhagen, Efficient parameter-free clustering using
first neighbor relations, CVPR 2019, eq. 1: with k_i the nearest row of i by
cosine, rows i and j are linked if j = k_i, i = k_j or k_i = k_j; clusters are
connected components. Every cluster has at least two rows.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from fedreid_jax.core.types import Array


def first_neighbour_clusters(
  features: Float[Array | np.ndarray, 'K D'],
  valid: Bool[Array | np.ndarray, ' K'] | None = None,
) -> Int32[Array, ' K']:
  """Clusters rows by one step of FINCH, also under `jit`.

  Args:
    features: one row per client.
    valid: rows to cluster; None for all. Each other row, and each that is not
      finite, is a cluster of its own.

  Returns:
    The lowest row of each row's cluster. Of equally near rows the lowest is the
    nearest. A single row is one cluster.
  """
  features = jnp.asarray(features, jnp.float32)
  num = features.shape[0]
  # The largest of similarities with a nan is the nan: one such row would be
  # the nearest of all others, and join them.
  finite = jnp.isfinite(features).all(axis=1)
  valid = finite if valid is None else finite & jnp.asarray(valid)
  size = jnp.linalg.norm(features, axis=1, keepdims=True)
  unit = features / jnp.maximum(size, 1e-12)
  similarity = jnp.matmul(unit, unit.T, precision='highest')
  pairs = valid[:, None] & valid[None] & ~jnp.eye(num, dtype=bool)
  nearest = jnp.where(pairs, similarity, -jnp.inf).argmax(axis=1)
  # Links (i, k_i) are enough: the third kind, k_i = k_j, joins rows that are
  # already connected through k_i. `argmax` gives 0 where no pair is allowed.
  linked = (nearest[:, None] == jnp.arange(num)[None]) & pairs
  reach = linked | linked.T | jnp.eye(num, dtype=bool)
  # Each product doubles the path length, so this many reach any row.
  for _ in range(max(num - 1, 1).bit_length()):
    reach = jnp.matmul(reach.astype(jnp.float32), reach.astype(jnp.float32)) > 0
  return reach.argmax(axis=1).astype(jnp.int32)
