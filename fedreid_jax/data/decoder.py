"""One image file or array -> uint8 pixels of the size wanted."""

import hashlib
import io
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

MAX_PIXELS = 50_000_000
RESAMPLE = ('bicubic', 'bilinear', 'lanczos')


class Decoder(NamedTuple):
  """How a file becomes an array.

  Attributes:
    height: H.
    width: W.
    channels: 3 for RGB, 1 for grey.
    invert: turn dark strokes on white into light on black.
    on_bad_image: 'error', or 'skip' to leave out files that cannot be read.
    resample: one of `RESAMPLE`.
  """

  height: int
  width: int
  channels: int = 3
  invert: bool = False
  on_bad_image: str = 'error'
  resample: str = 'bicubic'


def of(config) -> Decoder:
  """Returns the decoder that `config.data` describes."""
  return Decoder(
    config.height,
    config.width,
    3 if config.channels == 'rgb' else 1,
    config.invert,
    config.on_bad_image,
  )


def decode(data: bytes | np.ndarray, decoder: Decoder) -> np.ndarray:
  """Decodes one image file or fits one array, `[H, W, ch]` uint8.

  The format is told by content; orientation tags are applied; grey, palette,
  CMYK and transparent images become RGB; the first frame counts.

  Raises:
    ValueError: saying why the bytes are no usable image.
  """
  # Another library may have switched this on: half an image would pass.
  ImageFile.LOAD_TRUNCATED_IMAGES = False
  if not len(data):
    raise ValueError('empty file')
  mode = 'RGB' if decoder.channels == 3 else 'L'
  size = decoder.width, decoder.height
  try:
    with _open(data) as image:
      check_header(image)
      image.draft(mode, size)
      image = ImageOps.exif_transpose(image).convert(mode)
      if image.size != size:
        image = image.resize(size, Image.Resampling[decoder.resample.upper()])
      array = np.asarray(image, np.uint8).reshape(*size[::-1], decoder.channels)
  except (
    OSError,
    SyntaxError,
    UnidentifiedImageError,
    Image.DecompressionBombError,
  ) as error:
    raise ValueError(str(error) or type(error).__name__) from error
  return 255 - array if decoder.invert else array


def _open(data: bytes | np.ndarray) -> Image.Image:
  if isinstance(data, np.ndarray):
    return Image.fromarray(data)
  return Image.open(io.BytesIO(data))


def check_header(image: Image.Image) -> None:
  """Checks what is known of an image before its pixels are read.

  Raises:
    ValueError: for an image that is too large, too small or not of 8 bits.
  """
  if image.width * image.height > MAX_PIXELS or min(image.size) < 2:
    raise ValueError(f'{image.width}x{image.height} pixels')
  if image.mode.startswith(('I', 'F')):
    raise ValueError(f'mode {image.mode}, not 8 bits a channel')


def content_hash(data: bytes | np.ndarray) -> str:
  """Returns the SHA-256 of a file's bytes or an array's values."""
  content = data if isinstance(data, bytes) else data.tobytes()
  return hashlib.sha256(content).hexdigest()


def colour_file(data: bytes | np.ndarray) -> bytes:
  """Returns a file of colour as it is, and anything else made one.

  A file that cannot be opened is returned as it is too.
  """
  if isinstance(data, bytes):
    try:
      with Image.open(io.BytesIO(data)) as image:
        if image.mode == 'RGB':
          return data
        image = ImageOps.exif_transpose(image).convert('RGB')
    except (OSError, SyntaxError, Image.DecompressionBombError):
      return data
  else:
    image = Image.fromarray(data)
  stream = io.BytesIO()
  image.save(stream, 'PNG', compress_level=1)
  return stream.getvalue()
