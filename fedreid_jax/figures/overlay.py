"""Why two images match, as photographs with colours and as words.

Parts of a similarity (`evaluation.explanation`) are drawn over grey
photographs: orange raises the similarity and blue lowers it. Each part has an
equal share of the constant, so that the colours add up to the similarity. Both
images of a pair have one scale, whose limit is the largest part of either.
"""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from fedreid_jax.evaluation.explanation import Explanation, Side, Way

HEIGHT = 256  # of a picture, pixels
RAISES, LOWERS = '#D55E00', '#0072B2'  # Okabe and Ito, as in figures.canvas
STRONGEST = 0.8  # weight of a colour at the limit
WAYS = {
  'exact': 'exact parts of the similarity at {} positions of the maps',
  'gradient': 'gradient x input at {} positions of the maps',
  'pixels': 'gradient x input in {} squares of pixels',
  'rollout': 'attention rollout over {} patches, which divides no number',
}

Picture = UInt8[np.ndarray, 'rows columns 3']


def pair(
  images: UInt8[np.ndarray, '2 H W ch'], found: Explanation
) -> tuple[Picture, Picture]:
  """Draws the query and the other image with one scale."""
  sides = found.query.spread, found.other.spread
  limit = max(float(np.abs(parts).max()) for parts in sides)
  query, other = map(paint, images, sides, (limit, limit))
  return query, other


def paint(
  image: UInt8[np.ndarray, 'H W ch'],
  parts: Float[np.ndarray, 'h w'],
  limit: float,
) -> Picture:
  """Draws parts over an image of any size; those at `limit` are strongest."""
  height, width, channels = image.shape
  size = max(1, round(HEIGHT * width / height)), HEIGHT
  photo = Image.fromarray(image[..., 0] if channels == 1 else image)
  grey = photo.convert('L').resize(size, Image.Resampling.BICUBIC)
  # Light, so that a dark garment does not hide the colour.
  back = 64 + 0.75 * np.asarray(grey, np.float32)[..., None]
  values = Image.fromarray(np.asarray(parts, np.float32))
  smooth = np.asarray(values.resize(size, Image.Resampling.BILINEAR))
  share = np.clip(smooth / max(limit, 1e-30), -1, 1)[..., None]
  raises, lowers = (
    np.array([*bytes.fromhex(c[1:])], np.float32) for c in (RAISES, LOWERS)
  )
  colour = np.where(share > 0, raises, lowers)
  weight = STRONGEST * np.abs(share)
  return np.round((1 - weight) * back + weight * colour).astype(np.uint8)


def way(found: Explanation) -> str:
  """Says how the similarity was divided."""
  rows, columns = found.query.parts.shape
  return WAYS[found.way].format(f'{rows} x {columns}')


def legend(of: Way) -> dict[str, str]:
  """The meaning of each colour."""
  if of == 'rollout':
    return {RAISES: 'relevant'}
  return {RAISES: 'raises the similarity', LOWERS: 'lowers the similarity'}


def rank(correlation: float) -> str:
  """Words for a rank correlation with the picture that explains a match."""
  if np.isnan(correlation):
    return 'r undefined: equal parts'
  return f'r {correlation:+.2f}'


def sums(found: Explanation, side: Side) -> list[str]:
  """Lines with the sum law of one image, none for rollout."""
  if found.way == 'rollout':
    return []
  total = float(side.parts.sum(dtype=np.float64))
  lines = [f'positions {total:+.4f}', f'constant {side.constant:+.4f}']
  if found.way == 'exact':
    return lines
  return [*lines, f'error {side.error:+.4f}']
