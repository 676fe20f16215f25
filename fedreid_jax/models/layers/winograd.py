"""Winograd's minimal filtering along the height of a 3x3 convolution.

Lavin and Gray, "Fast algorithms for convolutional neural networks", F(4, 3):
four rows of the output take six products instead of twelve, both in the
convolution and in the gradient of its kernel. Along one axis only, the rounding
error stays near 1e-5 of the output, and the added rows are contiguous.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from fedreid_jax.core.types import Array

TILE = 4


def convolve(
  convolve_rows: Callable[..., Any],
  x: Float[Array, 'B H W ci'],
  kernel: Float[Array, '3 3 ci co'],
) -> Float[Array, 'B H W co']:
  """Convolves with stride 1 and padding 1.

  Args:
    convolve_rows: convolves `[B, H, W, ci]` with `[1, 3, ci, co]`, with padding
      1 of the width alone.
    x: images; H is a multiple of `TILE`.
    kernel: 3x3 taps.
  """
  padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
  last = x.shape[1] - TILE + 1
  rows = _transform_rows([padded[:, a : a + last : TILE] for a in range(6)])
  taps = _transform_taps([kernel[a : a + 1] for a in range(3)])
  products = [convolve_rows(d, g) for d, g in zip(rows, taps, strict=True)]
  y = jnp.stack(_combine(products), axis=2)
  return y.reshape(*x.shape[:3], kernel.shape[-1])


def _transform_rows(d):
  even, odd = d[4] - 4 * d[2], d[3] - 4 * d[1]
  half_even, half_odd = d[4] - d[2], 2 * (d[3] - d[1])
  return [
    4 * d[0] - 5 * d[2] + d[4],
    even + odd,
    even - odd,
    half_even + half_odd,
    half_even - half_odd,
    4 * d[1] - 5 * d[3] + d[5],
  ]


def _transform_taps(g):
  outer, middle = (g[0] + g[2]) / -6, g[1] / 6
  far, near = g[0] / 24 + g[2] / 6, g[1] / 12
  return [
    g[0] / 4,
    outer - middle,
    outer + middle,
    far + near,
    far - near,
    g[2],
  ]


def _combine(m):
  sum_1, difference_1 = m[1] + m[2], m[1] - m[2]
  sum_2, difference_2 = m[3] + m[4], m[3] - m[4]
  return [
    m[0] + sum_1 + sum_2,
    difference_1 + 2 * difference_2,
    sum_1 + 4 * sum_2,
    difference_1 + 8 * difference_2 + m[5],
  ]
