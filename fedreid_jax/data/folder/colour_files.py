"""Refuses to drop the colours of photographs where nobody asked for it.

The values for drawings make images grey and invert them. Applied to photographs
by mistake, they cost accuracy and cause no error. A few files are decoded at a
small size: an image is coloured if the channels of one pixel in fifty differ
by more than 40 of 255 levels, which neither the noise of a JPEG file nor
yellowed paper does.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data.images import decoder

FILES = 16  # that are looked at, spread over all
SIDE = 32  # pixels of the side to which they are reduced
CHROMA, PIXELS = 40, 0.02  # levels, and the share of pixels above them
COLOURED = 0.25  # share of the files


def is_coloured(path: Path, max_pixels: int = decoder.MAX_PIXELS) -> bool:
  """Returns whether a file is a coloured image; False if it is none."""
  # Files that cannot be read are reported when all are decoded.
  with contextlib.suppress(OSError, SyntaxError, ValueError):
    with decoder.open_image(path.read_bytes(), max_pixels) as image:
      image.draft('RGB', (SIDE, SIDE))
      small = image.convert('RGB').resize((SIDE, SIDE), Image.Resampling.BOX)
      chroma = np.ptp(np.asarray(small, np.int32), axis=-1)
      return bool((chroma > CHROMA).mean() > PIXELS)
  return False


def check(paths: Sequence[Path], config, root: Path) -> None:
  """Refuses conversions of coloured images that only a preset has set.

  Args:
    paths: of the images.
    config: `config.data`: `channels`, `invert`, `colour_as`.
    root: for messages.

  Raises:
    ConfigError: with what to write.
  """
  changes = {
    'grey': (config.channels == 'grey', 'made grey', 'data.channels=grey'),
    'inverted': (config.invert, 'inverted', 'data.invert=True'),
  }
  refused = [
    (done, written)
    for kind, (on, done, written) in changes.items()
    if on and kind not in config.colour_as
  ]
  if not refused:
    return
  some = paths[:: max(1, -(-len(paths) // FILES))]
  coloured = sum(is_coloured(path, config.max_pixels) for path in some)
  if coloured < max(1, COLOURED * len(some)):
    return
  done, written = (' and '.join(parts) for parts in zip(*refused, strict=True))
  raise errors.ConfigError(
    f'colour images would be {done}',
    str(root),
    f'use the preset photos, or write {written} if that is meant',
  )
