"""Small copies of image files for a page."""

import base64
import io
from pathlib import Path

from PIL import Image, ImageOps

from fedreid_jax.data import decoder

SIDE = 320  # largest side, pixels; a page shows it at half of it


def jpeg(
  source: Path | bytes,
  max_pixels: int = decoder.MAX_PIXELS,
  side: int = SIDE,
  part: decoder.Part = decoder.WHOLE,
) -> bytes | None:
  """Returns the thumbnail of a file, None if it cannot be read.

  Args:
    source: path of the file, or its bytes.
    max_pixels: largest number of pixels of a file that is decoded.
    side: largest side, pixels.
    part: of the image, as for `decoder.decode`.
  """
  try:
    with decoder.open_image(source, max_pixels) as image:
      # A draft decodes a JPEG file at a lower resolution, of which a small part
      # would have too few pixels.
      if part == decoder.WHOLE:
        image.draft('RGB', (side, side))
      image = decoder.cut(ImageOps.exif_transpose(image), part).convert('RGB')
      image.thumbnail((side, side), Image.Resampling.BICUBIC)
      stream = io.BytesIO()
      image.save(stream, 'JPEG', quality=80)
  except (OSError, SyntaxError, ValueError):
    return None
  return stream.getvalue()


def data_url(
  source: Path | bytes,
  max_pixels: int = decoder.MAX_PIXELS,
  part: decoder.Part = decoder.WHOLE,
) -> str | None:
  """Returns the thumbnail of `jpeg` as a `data:` URL."""
  found = jpeg(source, max_pixels, part=part)
  if found is None:
    return None
  return f'data:image/jpeg;base64,{base64.b64encode(found).decode()}'
