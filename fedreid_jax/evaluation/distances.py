"""Distances between query and gallery features, in fixed blocks of rows."""

import collections
import functools
from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from fedreid_jax import errors
from fedreid_jax.core.types import Array

Metric = Literal['euclidean', 'cosine']
METRICS = get_args(Metric)

# All blocks have one shape, so that one program is compiled: a product with
# another number of rows may round differently.
BLOCK = 128


@jax.jit
def normalise(feature: Float[Array, 'rows D']) -> Float[Array, 'rows D']:
  """Scales rows to length 1; a row of zeros is unchanged."""
  # This is not differentiated, so `optax.safe_norm` has no advantage.
  norm = jnp.linalg.norm(feature, axis=1, keepdims=True)
  return feature / jnp.maximum(norm, 1e-12)


@jax.jit
def _squares(feature: Float[Array, 'rows D']) -> Float[Array, ' rows']:
  return jnp.sum(feature * feature, axis=1)


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


def squared_blocks(
  query: Any, gallery: Any, metric: str = 'euclidean', chunk: int = 256
) -> Iterator[Float32[np.ndarray, 'rows P']]:
  """Yields the distances of the queries in order, `BLOCK` rows at a time.

  The Euclidean distance is squared and the cosine distance is `1 - cos`, half
  the squared distance of normalised features; neither changes the ranking.

  Args:
    query: query features, float32 `[Q, D]`.
    gallery: gallery features, float32 `[P, D]`. An array of NumPy may be read
      in place and must not change before the last block.
    metric: 'euclidean' or 'cosine'.
    chunk: rows that are computed ahead, rounded up to whole blocks. The
      distances do not depend on it.

  Yields:
    Blocks of `BLOCK` rows, the last one shorter.

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


def _fetch(block, num_rows):
  return np.asarray(block)[:num_rows]
