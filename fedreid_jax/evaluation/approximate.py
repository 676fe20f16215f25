"""Approximate search of many vectors by FAISS, with exact distances.

An inverted file (Sivic and Zisserman, "Video Google", ICCV 2003) divides the
vectors into cells around the centres of k-means. A query is compared with the
vectors of the `PROBED` nearest cells only, by the codes of product quantisation
of their differences from the centre (Jegou, Douze and Schmid, "Product
quantization for nearest neighbor search", IEEE Transactions on Pattern Analysis
and Machine Intelligence 2011). The `REFINED` k nearest codes are candidates,
whose distances are computed exactly from their vectors: neighbours can be
missing, but no distance is approximate.

An index holds the codes, a byte for every four numbers of a vector, and no
vectors. A graph (HNSW) would hold a copy of all vectors, which takes longer to
read from a disk than an exact search for one image does. The recall of an index
is measured when it is built: the share of the `MEASURED` nearest vectors, by
exact search, that it finds.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float32, Int64

from fedreid_jax import errors
from fedreid_jax.evaluation import index

Kind = Literal['exact', 'ivfpq']
KINDS = get_args(Kind)
FEWEST = 10_000  # vectors, below which k-means has too few of them
PROBED = 32  # cells of a query
REFINED = 20  # candidates for each neighbour
LEAST = 200  # candidates of a query
MEASURED = 10  # neighbours of the recall
QUERIES = 100  # vectors whose recall is measured
TRAINED = 64  # vectors of a cell for k-means
ITERATIONS = 10  # of k-means
NUMBERS = 4  # numbers of a vector in a code of one byte
BYTES = 64  # largest code of a vector
SEED = 0
PART = 65_536  # vectors that are read at a time

# Rows and distances, `[Q, k]` each.
Found = tuple[Int64[np.ndarray, 'Q k'], Float32[np.ndarray, 'Q k']]


class Recall(NamedTuple):
  """The share of nearest vectors that an index finds."""

  share: float
  neighbours: int  # of each query
  queries: int  # vectors of the gallery, which are not their own neighbours

  def __str__(self) -> str:
    return (
      f'{self.share:.3f} of the {self.neighbours} nearest of '
      f'{self.queries} images of the gallery'
    )


class Index:
  """Codes of the vectors of a gallery, which are not stored."""

  def __init__(self, codes: Any, recall: Recall):
    self._codes, self.recall = codes, recall

  def __len__(self) -> int:
    return self._codes.ntotal

  def search(
    self,
    queries: Float32[np.ndarray, 'Q D'],
    vectors: Float32[np.ndarray, 'P D'],
    k: int,
    metric: str,
  ) -> Found:
    """Finds near vectors of each query, with exact distances.

    `vectors` are those of `build`, and k is at most their number. Euclidean
    distances are squared, as those of `index.by_faiss`. Where fewer than k are
    found, the row is `index.MISSING` and the distance infinite.
    """
    wanted = min(max(LEAST, REFINED * k), len(self))
    rows = self._codes.search(_directed(queries, metric), wanted)[1]
    found = np.full((len(queries), k), index.MISSING, np.int64)
    near = np.full((len(queries), k), np.inf, np.float32)
    for number, (query, own) in enumerate(zip(queries, rows, strict=True)):
      # Ties are in the order of rows, as in an exact search.
      own = np.sort(own[own != index.MISSING])
      exact = _exact(query, vectors[own], metric)
      order = np.argsort(exact, kind='stable')[:k]
      found[number, : len(order)] = own[order]
      near[number, : len(order)] = exact[order]
    return found, near

  def save(self, path: Path) -> None:
    """Writes the codes to a file."""
    index.library().write_index(self._codes, str(path))


def check(kind: str) -> None:
  """Refuses an unknown kind of index, and one without FAISS.

  Raises:
    ConfigError: the message names the choices or the missing package.
  """
  if kind not in KINDS:
    raise errors.ConfigError(
      f'unknown index {kind!r}', 'index', errors.one_of(kind, KINDS)
    )
  if kind != 'exact':
    index.library()


def build(
  vectors: Float32[np.ndarray, 'P D'],
  metric: str,
  advance: Callable[[int], None] = lambda more: None,
) -> Index:
  """Builds an index of vectors, which may be memory-mapped.

  Args:
    metric: 'euclidean' or 'cosine'.
    advance: called with the number of further vectors that have codes.

  Raises:
    DataError: for fewer than `FEWEST` vectors.
    ConfigError: when FAISS is not installed.
  """
  faiss, (num, width) = index.library(), vectors.shape
  if num < FEWEST:
    raise errors.DataError(
      f'{num:,} vectors',
      'index',
      f'an approximate index needs {FEWEST:,}; search them exactly',
    )
  # About the square root of the number of vectors in a cell and of cells.
  cells = 2 ** round(math.log2(4 * math.sqrt(num)))
  quantizer = faiss.IndexFlatL2(width)
  codes = faiss.IndexIVFPQ(quantizer, width, cells, _bytes(width), 8)
  codes.cp.seed, codes.cp.niter = SEED, ITERATIONS
  codes.cp.max_points_per_centroid = TRAINED
  # A small gallery has fewer vectors of a cell than FAISS recommends.
  codes.cp.min_points_per_centroid = 1
  codes.nprobe = min(PROBED, cells)
  rng = np.random.default_rng(SEED)
  drawn = rng.choice(num, min(num, TRAINED * cells), replace=False)
  codes.train(_directed(vectors[np.sort(drawn)], metric))
  for first in range(0, num, PART):
    part = vectors[first : first + PART]
    codes.add(_directed(part, metric))
    advance(len(part))
  made = Index(codes, Recall(0.0, 0, 0))
  made.recall = _measure(made, vectors, metric, rng)
  return made


def load(path: Path, size: int, recall: Recall) -> Index:
  """Reads the codes of `size` vectors that `Index.save` wrote.

  Raises:
    IntegrityError: when the file is damaged or of another number of vectors.
    ConfigError: when FAISS is not installed.
  """
  faiss = index.library()
  try:
    codes = faiss.read_index(str(path))
  except RuntimeError as error:
    raise errors.IntegrityError(
      'is no index of FAISS', str(path), 'remove it, and search again'
    ) from error
  if codes.ntotal != size or not hasattr(codes, 'nprobe'):
    raise errors.IntegrityError(
      f'has {codes.ntotal:,} vectors of {size:,}',
      str(path),
      'remove it, and search again',
    )
  codes.nprobe = min(PROBED, codes.nlist)
  return Index(codes, recall)


def _measure(
  made: Index,
  vectors: Float32[np.ndarray, 'P D'],
  metric: str,
  rng: np.random.Generator,
) -> Recall:
  """Recall of vectors of the gallery, without each vector itself."""
  chosen = np.sort(rng.choice(len(vectors), QUERIES, replace=False))
  queries = np.ascontiguousarray(vectors[chosen])
  exact = index.Gallery(
    vectors, np.arange(len(vectors)), metric=metric, backend='faiss'
  ).search(queries, MEASURED + 1)[0]
  near = made.search(queries, vectors, MEASURED + 1, metric)[0]
  hits = 0
  for row, wanted, got in zip(chosen, exact, near, strict=True):
    wanted = wanted[wanted != row][:MEASURED]
    hits += np.isin(wanted, got[got != row][:MEASURED]).sum()
  return Recall(hits / (QUERIES * MEASURED), MEASURED, QUERIES)


def _exact(
  query: Float32[np.ndarray, ' D'],
  vectors: Float32[np.ndarray, 'n D'],
  metric: str,
) -> Float32[np.ndarray, ' n']:
  query, vectors = _directed(query[None], metric)[0], _directed(vectors, metric)
  if metric == 'cosine':
    return np.float32(1) - vectors @ query
  return np.square(vectors - query).sum(1)


def _directed(
  vectors: Float32[np.ndarray, 'n D'], metric: str
) -> Float32[np.ndarray, 'n D']:
  """Vectors whose Euclidean distances rank as the metric does."""
  vectors = np.ascontiguousarray(vectors, np.float32)
  if metric == 'cosine':
    # JAX would compile a program for every number of candidates.
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norm, 1e-12)
  return vectors


def _bytes(width: int) -> int:
  """Bytes of a code, each of which holds the same number of numbers."""
  most = min(BYTES, max(1, width // NUMBERS))
  return max(n for n in range(1, most + 1) if width % n == 0)
