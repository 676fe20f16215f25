"""Nearest-neighbour search of vectors, by JAX or by FAISS.

A search is exact, unless a gallery has an index (`evaluation.approximate`).

FAISS is an optional package. `faiss.knn` is the brute-force search behind
`IndexFlat` (Johnson, Douze and Jegou, "Billion-scale similarity search with
GPUs", IEEE Transactions on Big Data 2021).
"""

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int64, Integer, Shaped

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.evaluation import distances

MISSING = -1  # index and integer label of a neighbour that does not exist
# Number of vectors that are searched at a time. It bounds the memory of
# distances, and vectors on a disk are read in parts of this size.
TILE = 65_536
LARGE = 100_000  # vectors for which 'auto' chooses FAISS

Backend = Literal['auto', 'product', 'faiss']
BACKENDS = get_args(Backend)

# Indices and distances of the nearest vectors of a query.
Near = tuple[Int64[np.ndarray, ' found'], Float32[np.ndarray, ' found']]
_MISSING_FAISS = plugins.install_command('search')


@runtime_checkable
class Searcher(Protocol):
  """An approximate search of the vectors of a gallery.

  `recall` says how many of the nearest vectors it finds.
  """

  recall: Any

  def search(
    self,
    queries: Float32[np.ndarray, 'Q D'],
    vectors: Float32[np.ndarray, 'P D'],
    k: int,
    metric: str,
  ) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
    """Returns near vectors of each query and their distances.

    At most k are found, with squared distances if Euclidean; the others have
    the index `MISSING` and the distance infinity.
    """
    ...


class Gallery:
  """Feature vectors that can be searched.

  >>> import fedreid_jax as fr
  >>> vectors = [[0.0, 3.0], [1.0, 0.0], [3.0, 0.0]]
  >>> gallery = fr.Gallery(vectors, ['ann', 'bob', 'bob'])
  >>> indices, distances, labels = gallery.search([[1.0, 0.0]], k=2)
  >>> indices.tolist(), distances.tolist(), labels.tolist()
  ([[1, 2]], [[0.0, 2.0]], [['bob', 'bob']])

  With cameras, the images of a query's own camera can be left out:

  >>> gallery = fr.Gallery(vectors, [0, 1, 1], cameras=[0, 0, 1])
  >>> gallery.search([[1.0, 0.0]], k=2, cameras=[0])[0].tolist()
  [[2, -1]]

  Attributes:
    vectors: float32 `[P, D]`.
    labels: `[P]`.
    cameras: int `[P]`, or None.
    metric: 'euclidean' or 'cosine'.
    backend: 'product' or 'faiss'.
    index: for an approximate search, or None.
  """

  def __init__(
    self,
    vectors: Any,
    labels: Any,
    cameras: Any = None,
    metric: str = 'euclidean',
    backend: str = 'product',
    index: Searcher | None = None,
  ):
    """Keeps the vectors of a gallery.

    Args:
      vectors: float32 `[P, D]`; a memory-mapped array is not copied.
      labels: labels of the vectors, integers or strings `[P]`.
      cameras: cameras of the vectors, integers `[P]`.
      metric: 'euclidean', or 'cosine' for `1 - cos`.
      backend: 'product' for matrix products in JAX, 'faiss' for the exact
        search of FAISS, or 'auto' for FAISS if it is installed and there are at
        least `LARGE` vectors. Distances of both are equal up to rounding.
      index: of these vectors and this metric (`approximate.Index`), with
        which some of the nearest vectors can be missing.

    Raises:
      ConfigError: for an unknown metric or backend, or for 'faiss' when it is
        not installed.
      DataError: for vectors that are empty, not finite or of norms above 9e18
        (their squared distances overflow), and for labels or cameras that do
        not fit them.
    """
    if metric not in distances.METRICS:
      raise errors.ConfigError(
        f'unknown metric {metric!r}',
        'metric',
        f'choose one of {", ".join(distances.METRICS)}',
      )
    self.metric = metric
    self.vectors = _vectors(vectors, 'vectors')
    check_backend(backend)
    self.backend = backend
    if backend == 'auto':
      use_faiss = len(self.vectors) >= LARGE and installed()
      self.backend = 'faiss' if use_faiss else 'product'
    if not self.vectors.size:
      raise errors.DataError('no vectors', 'vectors', 'give one or more')
    size = len(self.vectors)
    self.labels = np.asarray(labels)
    if self.labels.shape != (size,) or self.labels.dtype.kind not in 'iuU':
      raise errors.DataError(
        f'labels of shape {self.labels.shape} and type {self.labels.dtype}',
        'labels',
        f'give {size} integers or strings',
      )
    self.cameras = None if cameras is None else _cameras(cameras, size)
    self.index = index

  def __len__(self) -> int:
    return len(self.vectors)

  def search(
    self, queries: Any, k: int = 10, cameras: Any = None
  ) -> tuple[
    Int64[np.ndarray, 'Q k'],
    Float32[np.ndarray, 'Q k'],
    Shaped[np.ndarray, 'Q k'],
  ]:
    """Finds the nearest vectors of each query among all vectors.

    Among vectors at equal distances those with lower indices come first. The
    vectors are found by the distances that the evaluation ranks
    (`evaluation.distances`), and by FAISS by others that differ by rounding.
    Those that are found are ranked by Euclidean distances of their differences:
    a query that is a vector of the gallery is at 0. The memory does not grow
    with the number of vectors or queries.

    Args:
      queries: float32 `[Q, D]`.
      k: number of neighbours.
      cameras: cameras of the queries, integers `[Q]`. With them, vectors of the
        camera of a query are left out, and matrix products are used even if
        there is an index.

    Returns:
      (indices, distances, labels), the nearest first. Where fewer than k
      vectors are searched, the index is -1, the distance is infinite, and the
      label is -1 or ''.

    Raises:
      ConfigError: for k below 1.
      DataError: for queries that are not finite or of another width, and for
        cameras that do not fit the queries or are unknown for the gallery.
    """
    if k < 1:
      raise errors.ConfigError(f'k {k}', 'k', 'use 1 or more')
    queries = _vectors(queries, 'queries')
    own = None
    if cameras is not None:
      if self.cameras is None:
        raise errors.DataError(
          'cameras of queries only', 'cameras', 'give those of the gallery, too'
        )
      own = _cameras(cameras, len(queries))
    if queries.shape[1] != self.vectors.shape[1]:
      raise errors.DataError(
        f'queries of width {queries.shape[1]}',
        'queries',
        f'the vectors have {self.vectors.shape[1]} numbers',
      )
    if self.index is not None and own is None:
      most = min(k, len(self))
      nearest = self.index.search(queries, self.vectors, most, self.metric)
      indices, found = _padded(nearest, k)
    else:
      indices, found = self._exactly(queries, k, own)
    if self.metric == 'euclidean':
      indices, found = self._by_differences(queries, indices)
    labels = self.labels[indices]
    if labels.dtype.kind == 'u':  # which has no -1
      labels = labels.astype(np.int64)
    empty = MISSING if self.labels.dtype.kind in 'iu' else ''
    return indices, found, np.where(indices == MISSING, empty, labels)

  def _by_differences(
    self,
    queries: Float32[np.ndarray, 'Q D'],
    indices: Int64[np.ndarray, 'Q k'],
  ) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
    """Ranks vectors that were found by distances without cancellation.

    The squares of a product cancel where vectors are near each other, so that
    a query that is in the gallery would not be at 0.
    """
    # By index first, so that a stable sort keeps the order of ties.
    indices = np.sort(np.where(indices == MISSING, len(self), indices), axis=1)
    found = np.full(indices.shape, np.inf, np.float32)
    for row, query in enumerate(queries):
      own = indices[row][indices[row] < len(self)]
      found[row, : len(own)] = np.linalg.norm(self.vectors[own] - query, axis=1)
    order = np.argsort(found, axis=1, kind='stable')
    indices = np.take_along_axis(indices, order, 1)
    indices[indices == len(self)] = MISSING
    return indices, np.take_along_axis(found, order, 1)

  @functools.cached_property
  def _middle(self) -> Float32[np.ndarray, ' D']:
    """The mean of all vectors, with which those of every tile are alike."""
    return distances.centre(self.vectors)

  def _exactly(
    self,
    queries: Float32[np.ndarray, 'Q D'],
    k: int,
    own: Integer[np.ndarray, ' Q'] | None,
  ) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
    """Indices and distances, squared if Euclidean, of the k nearest."""
    indices = np.full((len(queries), k), MISSING, np.int64)
    found = np.full((len(queries), k), np.inf, np.float32)
    for first in range(0, len(self), TILE):
      tile = slice(first, first + TILE)
      if self.backend == 'faiss' and own is None:
        vectors = self.vectors[tile]
        most = min(k, len(vectors))
        near = zip(
          *by_faiss(queries, vectors, most, self.metric, self._middle),
          strict=True,
        )
      else:
        near = self._by_products(queries, tile, k, own)
      for row, (places, values) in enumerate(near):
        # Earlier vectors stand first, so a stable sort ranks ties by index.
        places = np.concatenate([indices[row], places + first])
        values = np.concatenate([found[row], values])
        order = np.argsort(values, kind='stable')[:k]
        indices[row], found[row] = places[order], values[order]
    return indices, found

  def _by_products(
    self,
    queries: Float32[np.ndarray, 'Q D'],
    tile: slice,
    k: int,
    own: Integer[np.ndarray, ' Q'] | None,
  ) -> Iterator[Near]:
    """Yields the nearest vectors of a tile for each query."""
    vectors = self.vectors[tile]
    size, row = len(vectors), 0
    # The last of several tiles is padded, so that one program is compiled.
    if size < TILE < len(self):
      vectors = np.pad(vectors, ((0, TILE - size), (0, 0)))
    for block in distances.squared_blocks(
      queries, vectors, self.metric, middle=self._middle
    ):
      for line in block[:, :size]:
        if own is not None and self.cameras is not None:
          line = np.where(self.cameras[tile] == own[row], np.inf, line)
        places = _nearest(line, k)
        yield places, line[places]
        row += 1


def _padded(
  nearest: tuple[Int64[np.ndarray, 'Q n'], Float32[np.ndarray, 'Q n']], k: int
) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
  more = [(0, 0), (0, k - nearest[0].shape[1])]
  return (
    np.pad(nearest[0], more, constant_values=MISSING),
    np.pad(nearest[1], more, constant_values=np.inf),
  )


def check_backend(name: str) -> None:
  """Refuses a backend that is unknown or not installed.

  Raises:
    ConfigError: the message names the choices or the missing package.
  """
  if name not in BACKENDS:
    raise errors.ConfigError(
      f'unknown backend {name!r}', 'backend', errors.one_of(name, BACKENDS)
    )
  if name == 'faiss':
    library()


def _nearest(
  line: Float[np.ndarray, ' P'], k: int
) -> Int64[np.ndarray, ' found']:
  """Returns the indices of the k smallest finite values, ties by index."""
  # A partition takes less time than a sort, and keeps all ties at the limit.
  if k < len(line):
    limit = np.partition(line, k - 1)[k - 1]
    chosen = np.flatnonzero(line <= limit)
  else:
    chosen = np.arange(len(line))
  chosen = chosen[np.isfinite(line[chosen])]
  return chosen[np.argsort(line[chosen], kind='stable')][:k]


def _vectors(values: Any, where: str) -> Float32[np.ndarray, 'rows D']:
  values = np.asarray(values, np.float32)
  if values.ndim != 2 or not _finite(values):
    raise errors.DataError(
      f'values of shape {values.shape}, or not finite or of norms above 9e18',
      where,
      'give a matrix of finite numbers',
    )
  return values


def _finite(values: Float32[np.ndarray, 'rows D']) -> bool:
  """Returns whether all squared distances between rows are finite."""
  # A squared distance is at most four times the larger squared norm. In parts,
  # since float64 copies of all values would be large.
  parts = (values[k : k + TILE] for k in range(0, len(values), TILE))
  squares = (np.einsum('ij,ij->i', x, x, dtype=np.float64) for x in parts)
  return all((x < np.finfo(np.float32).max / 4).all() for x in squares)


def _cameras(values: Any, size: int) -> Integer[np.ndarray, ' {size}']:
  values = np.asarray(values)
  if values.shape != (size,) or values.dtype.kind not in 'iu':
    raise errors.DataError(
      f'cameras of shape {values.shape} and type {values.dtype}',
      'cameras',
      f'give {size} integers',
    )
  return values


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
      'FAISS is not installed', 'search', _MISSING_FAISS
    ) from error


def by_faiss(
  queries: Float32[np.ndarray, 'Q D'],
  vectors: Float32[np.ndarray, 'P D'],
  k: int,
  metric: str,
  middle: Float32[np.ndarray, ' D'],
) -> tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]:
  """Returns the indices of the k nearest vectors, and their distances.

  There are k vectors or more. Distances are those of
  `distances.squared_blocks`, up to rounding; `middle` is its argument.

  Returns:
    (indices, distances), the nearest first and vectors at equal distances in
    the order of their indices.
  """
  if metric == 'cosine':
    queries, vectors = (
      np.asarray(distances.normalise(jnp.asarray(part)))
      for part in (queries, vectors)
    )
  else:
    queries, vectors = queries - middle, vectors - middle
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
  """The result of `by_faiss` for a block; rows have length 1 for cosine."""
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
