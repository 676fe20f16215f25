"""Pooling over positions, and the max-pooling between two blocks."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from fedreid_jax.core.types import Array

GEM_POWER = 3


@jax.custom_vjp
def max_pool_2x2(
  x: Float[Array, 'B H W D'],
) -> Float[Array, 'B H//2 W//2 D']:
  """Halves maps by maxima; a last odd row or column is dropped.

  The gradient goes to the first maximum in row-major order, as in PyTorch.
  """
  return _windows(x).max((2, 4))


def _windows(x):
  b, h, w, d = x.shape
  x = x[:, : h // 2 * 2, : w // 2 * 2]
  return x.reshape(b, h // 2, 2, w // 2, 2, d)


def _max_pool_forward(x):
  v = _windows(x)
  (a, b), (c, d) = [[v[:, :, i, :, j] for j in (0, 1)] for i in (0, 1)]
  lower = jnp.maximum(c, d) > jnp.maximum(a, b)
  first = jnp.where(lower, 2 + (d > c), b > a).astype(jnp.int8)
  return max_pool_2x2(x), (first, x.shape)


# XLA's gradient, a select-and-scatter, is about twenty times slower on a CPU.
def _max_pool_backward(residuals, dy):
  first, shape = residuals
  b, h, w, d = dy.shape

  def spread(a):
    a = jnp.broadcast_to(a[:, :, None, :, None], (b, h, 2, w, 2, d))
    return a.reshape(b, 2 * h, 2 * w, d)

  # A selection in four axes, not in the six of the windows, lets XLA store the
  # result for its several consumers; see `norm.relu`.
  row = lax.broadcasted_iota(jnp.int8, (1, 2 * h, 1, 1), 1) % 2
  column = lax.broadcasted_iota(jnp.int8, (1, 1, 2 * w, 1), 2) % 2
  dx = jnp.where(spread(first) == 2 * row + column, spread(dy), 0)
  odd = [(0, size % 2) for size in shape[1:3]]
  return (jnp.pad(dx, ((0, 0), *odd, (0, 0))),)


max_pool_2x2.defvjp(_max_pool_forward, _max_pool_backward)


def average(maps: Float[Array, 'B h w D']) -> Float[Array, 'B D']:
  """Averages maps over positions."""
  return maps.mean((1, 2))


def generalised_mean(maps: Float[Array, 'B h w D']) -> Float[Array, 'B D']:
  """Returns `(mean([x]_+^3) + 1e-12)^(1/3)` over positions.

  Radenovic et al., "Fine-tuning CNN image retrieval with no human
  annotation", with a fixed power; negative values count as zero.
  """
  # SNR makes maps negative, and the root of a negative mean is nan. The
  # gradient of the root at zero is infinite.
  cubes = jnp.maximum(maps, 0) ** GEM_POWER
  return (average(cubes) + 1e-12) ** (1 / GEM_POWER)


def flatten(maps: Float[Array, 'B h w D']) -> Float[Array, 'B h*w*D']:
  """Concatenates the features of all positions."""
  return maps.reshape(maps.shape[0], -1)


Pool = Literal['gap', 'gem', 'flatten']
POOLS = {'gap': average, 'gem': generalised_mean, 'flatten': flatten}
