"""Exact search by FAISS, an optional package.

`faiss.knn` is the brute-force search behind `IndexFlat` (Johnson, Douze and
Jegou, "Billion-scale similarity search with GPUs", IEEE Transactions on Big
Data 2021).
"""

import importlib
import importlib.util
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int64

from fedreid_jax import errors
from fedreid_jax.core import extras
from fedreid_jax.evaluation import distances

MISSING = extras.command('search')


def installed() -> bool:
  """Returns whether FAISS can be imported."""
  return importlib.util.find_spec('faiss') is not None


def library() -> Any:
  """Imports FAISS.

  Raises:
    ConfigError: when it is not installed.
  """
  try:
    return importlib.import_module('faiss')
  except ImportError as error:
    raise errors.ConfigError(
      'FAISS is not installed', 'search', MISSING
    ) from error


def nearest(
  queries: Float32[np.ndarray, 'Q D'],
  vectors: Float32[np.ndarray, 'P D'],
  k: int,
  metric: str,
) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
  """Returns the indices of the k nearest vectors, and their distances.

  Args:
    queries: rows to search for.
    vectors: k rows or more, among which to search.
    k: number of neighbours.
    metric: one of `distances.METRICS`; distances are those of
      `distances.squared_blocks`, up to rounding.

  Returns:
    (indices, distances), the nearest first and vectors at equal distances in
    the order of their indices.
  """
  if metric == 'cosine':
    queries, vectors = (
      np.asarray(distances.normalise(jnp.asarray(part)))
      for part in (queries, vectors)
    )
  queries, vectors = map(np.ascontiguousarray, (queries, vectors))
  indices = np.empty((len(queries), k), np.int64)
  found = np.empty((len(queries), k), np.float32)
  # Blocks of queries bound the memory where many distances are equal.
  for first in range(0, len(queries), distances.BLOCK):
    rows = slice(first, first + distances.BLOCK)
    indices[rows], found[rows] = _block(queries[rows], vectors, k, metric)
  return indices, found


def _block(
  queries: Float32[np.ndarray, 'Q D'],
  vectors: Float32[np.ndarray, 'P D'],
  k: int,
  metric: str,
) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
  """Returns the result of `nearest` for some queries; unit rows if cosine."""
  faiss = library()
  cosine = metric == 'cosine'
  kind = faiss.METRIC_INNER_PRODUCT if cosine else faiss.METRIC_L2
  # FAISS returns any of the vectors at the k-th distance. Therefore more than k
  # are searched for, until the last one is farther than the k-th. Then all at
  # this distance are included, and those with the lowest indices are selected.
  asked = min(k + 1, len(vectors))
  while True:
    # knn reads the vectors in place, while an IndexFlat copies them.
    found, indices = faiss.knn(queries, vectors, asked, kind)
    # A difference of rounded squares may be negative.
    found = np.float32(1) - found if cosine else np.maximum(found, 0)
    if asked == len(vectors) or (found[:, -1] > found[:, k - 1]).all():
      break
    asked = min(2 * asked, len(vectors))
  order = np.lexsort((indices, found))[:, :k]
  return np.take_along_axis(indices, order, 1), np.take_along_axis(
    found, order, 1
  )
