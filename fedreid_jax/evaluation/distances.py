"""Distances between query and gallery features, plain or re-ranked, in blocks.

Re-ranking is that with k-reciprocal encoding (Zhong et al., CVPR 2017). An
image is encoded as the vector of Gaussian weights of its expanded k1-reciprocal
neighbours, averaged over its k2 nearest images; two images are compared by the
Jaccard distance of their vectors, mixed with the original one:

  d* = (1 - lambda) d_J + lambda d / max_j d(i, j)         (equations 7 to 12)

Here d* is multiplied by the maximum, a constant of the query, which does not
change the order. Neighbours and weights are sparse and distances are computed
in blocks, so the memory is linear in the number of images, not quadratic.
"""

import collections
import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32
from scipy import sparse

from fedreid_jax import errors
from fedreid_jax.core.types import Array

Metric = Literal['euclidean', 'cosine']
METRICS = get_args(Metric)

# All blocks have one shape, so that one program is compiled: a product with
# another number of rows may round differently.
BLOCK = 128
_PART = 65_536  # rows whose sum is computed at a time


@jax.jit
def normalise(feature: Float[Array, 'rows D']) -> Float[Array, 'rows D']:
  """Scales rows to length 1; a row of zeros is unchanged."""
  # This is not differentiated, so `optax.safe_norm` has no advantage.
  norm = jnp.linalg.norm(feature, axis=1, keepdims=True)
  return feature / jnp.maximum(norm, 1e-12)


def centre(vectors: Any) -> Float32[np.ndarray, ' D']:
  """The mean of rows `[P, D]`, rounded; zeros if any row is not finite.

  Distances do not depend on it, but in float32 the squares of a large common
  mean leave no digits for them. It is rounded to a power of two that is at most
  the standard deviation: features less it have no more digits than before, so
  that equal distances remain equal.
  """
  total = squares = np.zeros(vectors.shape[1])
  # In parts, since a float64 copy of all rows would be large.
  for first in range(0, len(vectors), _PART):
    part = np.asarray(vectors[first : first + _PART], np.float64)
    total, squares = total + part.sum(0), squares + np.square(part).sum(0)
  num = max(len(vectors), 1)
  mean = total / num
  variance = squares / num - np.square(mean)
  if not np.isfinite(variance).all():
    return np.zeros(vectors.shape[1], np.float32)
  # Equal values have no variance, but for rounding in float64.
  spread = np.sqrt(np.maximum(variance, np.square(mean) * 1e-15))
  step = np.exp2(np.floor(np.log2(np.maximum(spread, 1e-30))))
  return np.asarray(np.round(mean / step) * step, np.float32)


def squared_blocks(
  query: Any,
  gallery: Any,
  metric: str = 'euclidean',
  chunk: int = 256,
  middle: Any = None,
) -> Iterator[Float32[np.ndarray, 'rows P']]:
  """Yields the distances of the queries in order, `BLOCK` rows at a time.

  The Euclidean distance is squared and the cosine distance is `1 - cos`, half
  the squared distance of normalised features; neither changes the ranking. The
  last block may be shorter.

  Args:
    query: query features, float32 `[Q, D]`.
    gallery: gallery features, float32 `[P, D]`. An array of NumPy may be read
      in place and must not change before the last block.
    chunk: rows that are computed ahead, rounded up to whole blocks. The
      distances do not depend on it.
    middle: what is subtracted from all features for Euclidean distances,
      float32 `[D]`: the `centre` of all the gallery where `gallery` is a part
      of it. By default, that of `gallery`.

  Raises:
    ConfigError: an unknown metric, or a chunk below 1.
    DataError: features that are not two matrices of the same width.
  """
  if metric not in METRICS:
    raise errors.ConfigError(
      f'unknown metric {metric!r}',
      'metric',
      f'choose one of {", ".join(METRICS)}',
    )
  if chunk < 1:
    raise errors.ConfigError(f'chunk {chunk}', 'chunk', 'use 1 or more')
  query = np.asarray(query, np.float32)
  if not isinstance(gallery, jax.Array):
    gallery = np.asarray(gallery, np.float32)
  # The copy of `jnp.asarray` would take as long as several blocks on a CPU.
  gallery = jax.device_put(gallery, may_alias=True).astype(jnp.float32)
  if query.ndim != 2 or query.shape[1:] != gallery.shape[1:]:
    raise errors.DataError(
      f'features of shapes {query.shape} and {gallery.shape}',
      'evaluation',
      'give two matrices of the same width',
    )
  if metric == 'euclidean':
    middle = centre(gallery) if middle is None else middle
    # Without a common mean, the gallery is read in place.
    if np.any(middle):
      query, gallery = query - middle, _subtract(gallery, middle)
  return _blocks(query, gallery, metric, chunk)


def _blocks(
  query: Float32[np.ndarray, 'Q D'],
  gallery: Float32[Array, 'P D'],
  metric: str,
  chunk: int,
) -> Iterator[Float32[np.ndarray, 'rows P']]:
  if metric == 'cosine':
    gallery = normalise(gallery)
  squares = _squares(gallery)
  # JAX dispatches asynchronously: the device computes later blocks while the
  # caller uses the first.
  in_flight = collections.deque()
  for start in range(0, len(query), BLOCK):
    rows = query[start : start + BLOCK]
    padded = jnp.asarray(np.pad(rows, ((0, BLOCK - len(rows)), (0, 0))))
    if metric == 'cosine':
      padded = normalise(padded)
    block = _block(padded, _squares(padded), gallery, squares, metric)
    in_flight.append((block, len(rows)))
    if len(in_flight) * BLOCK >= chunk:
      yield _fetch(*in_flight.popleft())
  while in_flight:
    yield _fetch(*in_flight.popleft())


@functools.partial(jax.jit, static_argnames='metric')
def _block(
  query: Float[Array, 'rows D'],
  query_squares: Float[Array, ' rows'],
  gallery: Float[Array, 'P D'],
  gallery_squares: Float[Array, ' P'],
  metric: str,
) -> Float[Array, 'rows P']:
  # The squares of the queries are arguments: computed here, XLA would fuse them
  # with the product, which then takes twice the time on a CPU.
  products = jnp.matmul(query, gallery.T, precision=jax.lax.Precision.HIGHEST)
  if metric == 'cosine':
    return 1.0 - products
  # Rounding may make the distance of equal vectors negative.
  return jnp.maximum(
    query_squares[:, None] + gallery_squares[None, :] - 2.0 * products, 0.0
  )


@jax.jit
def _subtract(
  feature: Float[Array, 'rows D'], middle: Float[Array, ' D']
) -> Float[Array, 'rows D']:
  return feature - middle


@jax.jit
def _squares(feature: Float[Array, 'rows D']) -> Float[Array, ' rows']:
  return jnp.sum(feature * feature, axis=1)


def _fetch(block, num_rows):
  return np.asarray(block)[:num_rows]


class Rerank(NamedTuple):
  """Options of the re-ranking, by default the published ones."""

  k1: int = 20  # neighbours in the search for reciprocal ones
  k2: int = 6  # nearest images with averaged encodings
  original_weight: float = 0.3  # lambda


def check_rerank(options: Rerank) -> Rerank:
  """Raises ConfigError for k1 or k2 below 1, or lambda outside [0, 1]."""
  if options.k1 < 1 or options.k2 < 1 or not 0 <= options.original_weight <= 1:
    raise errors.ConfigError(
      f'{options}', 'rerank', 'use k1, k2 >= 1 and 0 <= lambda <= 1'
    )
  return options


def reranked_blocks(
  query: Any,
  gallery: Any,
  metric: str = 'euclidean',
  chunk: int = 256,
  options: Rerank = Rerank(),  # noqa: B008 - an immutable value
) -> Iterator[Float[np.ndarray, 'rows P']]:
  """Yields re-ranked distances; arguments and errors as in `squared_blocks`.

  Distances are squared as in the published code, which for 'cosine' means
  `1 - cos` of the normalised features. All images are used, also those that a
  protocol drops later.
  """
  originals = squared_blocks(query, gallery, metric, chunk)
  query = np.asarray(query, np.float32)
  features = np.concatenate([query, np.asarray(gallery, np.float32)])
  if metric == 'cosine':
    # Scaled so that the squared distance is 1 - cos.
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(norm, 1e-12) / np.float32(np.sqrt(2))
  everything = squared_blocks(features, features, 'euclidean', chunk)
  nearest, largest = _nearest(everything, min(options.k1 + 1, len(features)))
  encodings = _encode(features, nearest, largest, options)
  # Columns of the gallery are selected for each query, hence csc.
  of_gallery = sparse.csc_matrix(encodings[len(query) :])
  row = 0
  for block in originals:
    rows = range(row, row + len(block))
    # d* times the maximum: lambda = 1 gives the original distances bit for bit.
    jaccard = np.stack([_jaccard(encodings[i], of_gallery) for i in rows])
    scale = (1 - options.original_weight) * largest[rows][:, None]
    yield scale * jaccard + options.original_weight * block
    row += len(block)


def _nearest(blocks, num_nearest):
  """Nearest images of every image, and its largest distance."""
  nearest, largest = [], []
  for block in blocks:
    images = np.argpartition(block, num_nearest - 1, axis=1)[:, :num_nearest]
    # In gallery order, so that the stable sort breaks ties by it.
    images.sort(axis=1)
    order = np.argsort(
      np.take_along_axis(block, images, axis=1), axis=1, kind='stable'
    )
    nearest.append(np.take_along_axis(images, order, axis=1))
    largest.append(block.max(axis=1))
  return np.concatenate(nearest), np.concatenate(largest)


def _encode(features, nearest, largest, options):
  """Averaged encodings of all images, sparse `[M, M]`."""
  num_images = len(nearest)
  # np.around, not int: the published code rounds k1 / 2 to even.
  near = nearest[:, : int(np.around(options.k1 / 2)) + 1]
  mutual, near_mutual = _reciprocal(nearest), _reciprocal(near)
  columns, weights = [], []
  for image in range(num_images):
    images = _expanded(image, nearest, mutual, near, near_mutual)
    squares = np.square(features[images] - features[image]).sum(axis=1)
    # If all images are equal, all distances are 0, and so is the largest one.
    weight = np.exp(-squares / (largest[image] or 1.0))
    columns.append(images)
    weights.append(weight / weight.sum())
  starts = np.cumsum([0] + [images.size for images in columns])
  encodings = sparse.csr_matrix(
    (np.concatenate(weights), np.concatenate(columns), starts),
    shape=(num_images, num_images),
  )
  closest = nearest[:, : options.k2]
  averaging = sparse.csr_matrix(
    (
      np.full(closest.size, 1 / closest.shape[1], np.float32),
      closest.ravel(),
      np.arange(num_images + 1) * closest.shape[1],
    ),
    shape=(num_images, num_images),
  )
  return averaging @ encodings


def _reciprocal(nearest):
  """Whether each nearest image has the image among its nearest."""
  return np.stack(
    [(nearest[row] == image).any(axis=1) for image, row in enumerate(nearest)]
  )


def _expanded(image, nearest, mutual, near, near_mutual):
  """Expanded reciprocal neighbours of an image (equation 4)."""
  neighbours = nearest[image][mutual[image]]
  theirs, kept = near[neighbours], near_mutual[neighbours]
  common = np.count_nonzero(np.isin(theirs, neighbours) & kept, axis=1)
  joins = common > 2 / 3 * np.count_nonzero(kept, axis=1)
  return np.union1d(neighbours, theirs[joins][kept[joins]])


def _jaccard(encoding, gallery):
  """Jaccard distance of an encoding `[1, M]` to all `[P]`."""
  columns = gallery[:, encoding.indices]
  overlap = np.bincount(
    columns.indices,
    np.minimum(columns.data, np.repeat(encoding.data, np.diff(columns.indptr))),
    minlength=gallery.shape[0],
  )
  # Encodings sum to 1, so the maxima sum to 2 less the minima.
  return 1 - overlap / (2 - overlap)
