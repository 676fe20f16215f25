"""Decodes an image file or array to uint8 pixels of a given size.

Files are untrusted input. Only readers of common photograph formats are tried,
and a file whose header announces too many pixels or too many bits is refused
before it is decoded.
"""

import hashlib
import io
import warnings
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

# Other readers of Pillow start programs (PostScript) or fetch files.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF')
MAX_PIXELS = 40_000_000
Resample = Literal['bicubic', 'bilinear', 'lanczos']
Pixels = UInt8[np.ndarray, 'rows columns 3']

# A bad file is refused with its name, which Pillow's warnings do not contain.
warnings.filterwarnings('ignore', module=r'PIL\.')


class Decoder(NamedTuple):
  """Settings of the decoder.

  Attributes:
    height: H, pixels.
    width: W, pixels.
    channels: 3 for RGB, 1 for grey.
    invert: whether to turn dark strokes on white into light ones on black.
    on_bad_image: 'error', or 'skip' to leave out files that cannot be read.
    resample: one of `Resample`.
    max_pixels: largest height times width of a file that is decoded.
    fast: whether a JPEG file of at least twice the size is decoded at a half, a
      quarter or an eighth of its size; this changes the pixels a little.
  """

  height: int
  width: int
  channels: int = 3
  invert: bool = False
  on_bad_image: str = 'error'
  resample: str = 'bicubic'
  max_pixels: int = MAX_PIXELS
  fast: bool = False


def of(config) -> Decoder:
  """Returns the decoder that `config.data` describes."""
  return Decoder(
    config.height,
    config.width,
    3 if config.channels == 'rgb' else 1,
    config.invert,
    config.on_bad_image,
    config.resample,
    config.max_pixels,
    config.fast_decode,
  )


Part = tuple[float, float, float, float]
WHOLE: Part = (0.0, 0.0, 1.0, 1.0)


def decode(
  data: bytes | Pixels, decoder: Decoder, part: Part = WHOLE
) -> UInt8[np.ndarray, 'H W ch']:
  """Decodes one image file, or resizes one array.

  The format is detected from the content; orientation tags are applied; grey,
  palette, CMYK and transparent images become RGB; the first frame is used.

  Args:
    data: the file or array.
    decoder: settings.
    part: left, top, right and bottom of the part to use, fractions of the width
      and the height after orientation tags are applied.

  Raises:
    ValueError: with the reason why the image cannot be used.
  """
  # Another library may have switched this on, and Pillow would accept half an
  # image.
  ImageFile.LOAD_TRUNCATED_IMAGES = False
  if not len(data):
    raise ValueError('empty file')
  mode = 'RGB' if decoder.channels == 3 else 'L'
  size = decoder.width, decoder.height
  try:
    with open_image(data, decoder.max_pixels) as image:
      if decoder.fast and part == WHOLE:
        image.draft(mode, size)
      image = cut(ImageOps.exif_transpose(image), part).convert(mode)
      if image.size != size:
        image = image.resize(size, Image.Resampling[decoder.resample.upper()])
      array = np.asarray(image, np.uint8).reshape(*size[::-1], decoder.channels)
  except (OSError, SyntaxError) as error:
    raise ValueError(str(error) or type(error).__name__) from error
  return 255 - array if decoder.invert else array


def cut(image: Image.Image, part: Part) -> Image.Image:
  """Cuts a part out of an image, with borders rounded to pixels.

  Raises:
    ValueError: for a part with less than two pixels a side.
  """
  if part == WHOLE:
    return image
  sizes = image.width, image.height, image.width, image.height
  box = [round(edge * size) for edge, size in zip(part, sizes, strict=True)]
  if min(box[2] - box[0], box[3] - box[1]) < 2:
    raise ValueError('the part has less than two pixels a side')
  return image.crop((box[0], box[1], box[2], box[3]))


def open_image(
  source: bytes | Pixels | Path, max_pixels: int = MAX_PIXELS
) -> Image.Image:
  """Opens an image whose header allows it to be decoded.

  Args:
    source: bytes of a file, path of a file, or pixels.
    max_pixels: largest allowed number of pixels.

  Raises:
    ValueError: for an image that is too large, too small or not of 8 bits.
    OSError: for bytes of a format other than `FORMATS`.
  """
  if isinstance(source, np.ndarray):
    image = Image.fromarray(source)
  else:
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
      image = Image.open(file, formats=FORMATS)
    # The text of this exception is the address of an object.
    except UnidentifiedImageError:
      known = f'{", ".join(FORMATS[:-1])} or {FORMATS[-1]}'
      raise OSError(f'not an image in {known}') from None
    except (
      Image.DecompressionBombError,
      Image.DecompressionBombWarning,
    ) as error:
      raise ValueError(f'more than max_pixels={max_pixels}') from error
  try:
    _check_header(image, max_pixels)
  except ValueError:
    image.close()
    raise
  return image


def _check_header(image: Image.Image, max_pixels: int) -> None:
  size = f'{image.width}x{image.height} pixels'
  if image.width * image.height > max_pixels:
    raise ValueError(f'{size}, more than max_pixels={max_pixels}')
  if min(image.size) < 2:
    raise ValueError(size)
  # Pillow reports RGB for some files of 16 bits; the raw mode shows them.
  stored = ''
  if image.format in ('PNG', 'TIFF') and (tiles := getattr(image, 'tile', ())):
    stored = tiles[0].args
    stored = stored if isinstance(stored, str) else stored[0]
  if image.mode.startswith(('I', 'F')) or ';16' in stored:
    raise ValueError(f'mode {stored or image.mode}, not 8 bits a channel')


def content_hash(data: bytes | Pixels) -> str:
  """Returns the SHA-256 of a file's bytes or an array's values."""
  content = data if isinstance(data, bytes) else data.tobytes()
  return hashlib.sha256(content).hexdigest()


def colour_file(data: bytes | Pixels) -> bytes:
  """Returns an RGB file unchanged, and converts other images to PNG in RGB.

  A file that cannot be opened is also returned unchanged.
  """
  if isinstance(data, bytes):
    try:
      with open_image(data) as image:
        if image.mode == 'RGB':
          return data
        image = ImageOps.exif_transpose(image).convert('RGB')
    except (OSError, SyntaxError, ValueError):
      return data
  else:
    image = Image.fromarray(data)
  stream = io.BytesIO()
  image.save(stream, 'PNG', compress_level=1)
  return stream.getvalue()
