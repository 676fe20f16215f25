"""Position embeddings for another grid of patches, by bicubic interpolation.

The results are those of `torch.nn.functional.interpolate(mode='bicubic',
align_corners=False)`, with or without `antialias`. Transformers of timm, CLIP
and TransReID are resized with it, those of DINOv2 without it and with the scale
of its published code, `old / (new + 0.1)`.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# Images of persons and of ImageNet, height and width, and distances of patches
# for which a number of patches that is no square has a known grid.
_SIZES = ((256, 128), (384, 128), (384, 192), (224, 112))
_STRIDES = (16, 14, 12, 11, 10, 8)

Grid = tuple[int, int]  # rows and columns of patches


class Resize(NamedTuple):
  """How the code of a source resizes its positions."""

  antialias: bool = True
  offset: float = 0.0  # added to the new length in the scale


def grid(image: Grid, patch: int, num: int) -> Grid:
  """The grid of `num` patches in an image of `[H, W]` pixels.

  Raises:
    ValueError: if no distance of patches gives this number.
  """
  # Rows and columns only fall with the distance, so that the grid is unique.
  for stride in range(1, max(image) + 1):
    rows, columns = ((n - patch) // stride + 1 for n in image)
    if rows * columns == num:
      return rows, columns
  raise ValueError(f'no grid of {num} patches in {image} pixels')


def guess(num: int, wanted: Grid, patch: int, square: bool) -> Grid | None:
  """The grid of a file that states the number of patches only.

  Args:
    num: number of patches in the file.
    wanted: grid of the network.
    patch: side of a patch in pixels.
    square: whether a square number is always a square grid. Otherwise the grid
      of the network comes first if it has this number.

  Returns None if the grid cannot be told.
  """
  side = math.isqrt(num)
  squares = [(side, side)] if side * side == num else []
  same = [wanted] if math.prod(wanted) == num else []
  usual = [
    (rows, columns)
    for image in _SIZES
    for stride in _STRIDES
    for rows, columns in [[(n - patch) // stride + 1 for n in image]]
    if rows * columns == num
  ]
  first = squares + same if square else same + squares
  return next(iter(first + usual), None)


def resize(
  table: Float[np.ndarray, 'n D'], old: Grid, new: Grid, how: Resize
) -> Float[np.ndarray, 'm D']:
  """Resizes embeddings from one grid to another, both row by row.

  A grid of the same size is returned unchanged.
  """
  if old == new:
    return table
  rows, columns = (_matrix(a, b, how) for a, b in zip(old, new, strict=True))
  square = table.reshape(*old, -1).astype(np.float64)
  resized = np.einsum('ri,cj,ijd->rcd', rows, columns, square, optimize=True)
  return resized.reshape(-1, table.shape[-1]).astype(np.float32)


def _matrix(old: int, new: int, how: Resize) -> Float[np.ndarray, 'new old']:
  """Weights of the old places for each new one."""
  scale = old / (new + how.offset)
  centres = scale * (np.arange(new) + 0.5)
  if how.antialias:
    # The kernel is as wide as a new place, so that no old one is left out.
    distance = np.arange(old) + 0.5 - centres[:, None]
    weights = _cubic(distance / max(scale, 1.0), -0.5)
    return weights / weights.sum(1, keepdims=True)
  weights = np.zeros((new, old))
  first = np.floor(centres - 0.5).astype(int)
  for tap in range(-1, 3):
    place = first + tap
    # Beyond the border the nearest place is repeated.
    inside = np.clip(place, 0, old - 1)
    weights[np.arange(new), inside] += _cubic(place + 0.5 - centres, -0.75)
  return weights


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
  """Keys' cubic convolution kernel with the parameter of PyTorch."""
  x = np.abs(x)
  near = ((a + 2) * x - (a + 3)) * x * x + 1
  far = ((x - 5) * x + 8) * x * a - 4 * a
  return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
