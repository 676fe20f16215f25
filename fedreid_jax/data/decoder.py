"""Decodes image files and arrays to uint8 pixels of a given size.

Files are untrusted input. Only readers of common photograph formats are tried,
and a file whose header announces too many pixels or too many bits is refused
before it is decoded.
"""

import collections
import hashlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from fedreid_jax import errors
from fedreid_jax.data import heic, jpeg

# Other readers of Pillow start programs (PostScript) or fetch files.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'BMP', 'GIF', 'TIFF')
MAX_PIXELS = 40_000_000
BACKGROUND = (255, 255, 255, 255)  # below transparent pixels
Resample = Literal['bicubic', 'bilinear', 'lanczos']
Pixels = UInt8[np.ndarray, 'rows columns 3']
# Left, top, right and bottom, fractions of the width and the height.
Part = tuple[float, float, float, float]
WHOLE: Part = (0.0, 0.0, 1.0, 1.0)
Skip = Callable[[int, str], None]  # (position, reason)
# Positions of files and their pixels.
Batch = tuple[Int64[np.ndarray, ' M'], UInt8[np.ndarray, 'M H W ch']]
_ORIENTATION = 0x0112  # the tag of EXIF
_LYING = range(5, 9)  # its values for images whose rows are columns
RENAMED = 'format differs from the suffix'
_SHORT = 'shorter than the size in its header'
_ENDS = 64  # bytes at the end of a complete file that contain its end mark
# First bytes, end mark ('' for formats without one), suffixes of the name.
_SIGNATURES = (
  (b'\xff\xd8\xff', b'\xff\xd9', ('.jpg', '.jpeg')),
  (b'\x89PNG\r\n\x1a\n', b'IEND', ('.png',)),
  (b'BM', b'', ('.bmp',)),
  (b'GIF8', b'', ('.gif',)),
  (b'RIFF', b'', ('.webp',)),
  (b'II*\0', b'', ('.tif', '.tiff')),
  (b'MM\0*', b'', ('.tif', '.tiff')),
)
# Tags of TIFF: offsets of the strips or tiles, and their lengths.
_TIFF_PARTS = ((273, 279), (324, 325))

# A bad file is refused with its name, which Pillow's warnings do not contain.
warnings.filterwarnings('ignore', module=r'PIL\.')


class Decoder(NamedTuple):
  """Settings of the decoder.

  Attributes:
    on_bad_image: 'error', or 'skip' to leave out files that cannot be read.
    fast: whether a JPEG file of at least twice the size is decoded at a half, a
      quarter or an eighth of its size; this changes the pixels a little.
  """

  height: int  # pixels
  width: int  # pixels
  channels: int = 3  # 3 for RGB, 1 for grey
  invert: bool = False  # dark strokes on white become light on black
  on_bad_image: str = 'error'
  resample: str = 'bicubic'
  max_pixels: int = MAX_PIXELS  # largest height times width of a file
  fast: bool = False


def decode(
  data: bytes | Pixels, decoder: Decoder, part: Part = WHOLE
) -> UInt8[np.ndarray, 'H W ch']:
  """Decodes one image file, or resizes one array.

  The format is detected from the content; orientation tags are applied; grey,
  palette and CMYK images become RGB; a transparent image is shown over white,
  whatever colours its transparent pixels have; the first frame is used.
  `part` has left, top, right and bottom of the part to use, fractions of the
  width and the height after orientation tags are applied.

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
      if isinstance(data, bytes) and data.startswith(jpeg.START):
        jpeg.check(data)
      if decoder.fast and part == WHOLE:
        # The file is decoded before it is turned.
        lies = image.getexif().get(_ORIENTATION, 1) in _LYING
        image.draft(mode, (size[1], size[0]) if lies else size)
      image = opaque(cut(ImageOps.exif_transpose(image), part)).convert(mode)
      if image.size != size:
        image = image.resize(size, Image.Resampling[decoder.resample.upper()])
      array = np.asarray(image, np.uint8).reshape(*size[::-1], decoder.channels)
  except (OSError, SyntaxError) as error:
    raise ValueError(str(error) or type(error).__name__) from error
  return 255 - array if decoder.invert else array


def opaque(image: Image.Image) -> Image.Image:
  """The image over `BACKGROUND`, if it has transparent pixels."""
  if not image.has_transparency_data:
    return image
  shown = image.convert('RGBA')
  below = Image.new('RGBA', shown.size, BACKGROUND)
  return Image.alpha_composite(below, shown)


def cut(image: Image.Image, part: Part) -> Image.Image:
  """Cuts a part, with borders rounded; ValueError below two pixels a side."""
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
  """Opens an image whose header announces at most `max_pixels`.

  Raises:
    ValueError: for an image that is too large, too small or not of 8 bits.
    OSError: for bytes of a format other than `FORMATS` and, with the package
      of `heic`, HEIC.
  """
  if isinstance(source, np.ndarray):
    image = Image.fromarray(source)
  else:
    formats = FORMATS
    if heic.is_heic(_head(source)):
      heic.register()
      formats = (heic.FORMAT,)
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
      image = Image.open(file, formats=formats)
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


def _head(source: bytes | Path) -> bytes:
  if isinstance(source, bytes):
    return source[: heic.HEAD]
  with source.open('rb') as file:
    return file.read(heic.HEAD)


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


def content_hash(data: bytes | UInt8[np.ndarray, 'H W ch']) -> str:
  """SHA-256 of a file's bytes or an array's values."""
  content = data if isinstance(data, bytes) else data.tobytes()
  return hashlib.sha256(content).hexdigest()


def picture_hash(pixels: UInt8[np.ndarray, 'H W ch'], file: str) -> str:
  """Hash of pixels, which are the same in formats without loss.

  Images of a single colour are told by the hash of their file: different ones
  may have the same pixels at the size of training.
  """
  flat = (pixels == pixels[0, 0]).all()
  return file if flat else content_hash(pixels)


def colour_file(data: bytes | Pixels) -> bytes:
  """Returns an RGB file unchanged, and converts other images to PNG in RGB.

  A file that cannot be opened, or has more than `MAX_PIXELS`, is also returned
  unchanged: `decode` refuses it, or converts it under its own limit.
  """
  if isinstance(data, bytes):
    try:
      with open_image(data) as image:
        if image.mode == 'RGB':
          return data
        image = opaque(ImageOps.exif_transpose(image)).convert('RGB')
    except (OSError, SyntaxError, ValueError):
      return data
  else:
    image = Image.fromarray(data)
  stream = io.BytesIO()
  image.save(stream, 'PNG', compress_level=1)
  return stream.getvalue()


def read(
  paths: Sequence[str | os.PathLike[str]],
  decoder: Decoder,
  batch: int,
  skip: Skip | None = None,
) -> Iterator[Batch]:
  """Yields positions and pixels of image files, `batch` files at a time.

  Threads decode the next batch while the caller uses this one, so two batches
  are in memory. `skip` is called with the position of a file that cannot be
  read, and with the reason; the file is left out of its batch.

  Raises:
    DataError: naming a file that cannot be read, if there is no `skip`.
  """

  def one(position: int) -> np.ndarray | str:
    try:
      return decode(Path(paths[position]).read_bytes(), decoder)
    except (ValueError, OSError) as error:
      return getattr(error, 'strerror', None) or str(error)

  def kept(positions: range, found: Iterable[np.ndarray | str]) -> Batch:
    rows, pixels = [], []
    for position, image in zip(positions, found, strict=True):
      if not isinstance(image, str):
        rows.append(position)
        pixels.append(image)
      elif skip is None:
        raise errors.DataError(
          f'cannot be read: {image}',
          os.fspath(paths[position]),
          'give an image file',
        )
      else:
        skip(position, image)
    shape = 0, decoder.height, decoder.width, decoder.channels
    none = np.zeros(shape, np.uint8)
    return np.array(rows, np.int64), np.stack(pixels) if pixels else none

  ahead = collections.deque()
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for first in range(0, len(paths), batch):
      positions = range(first, min(first + batch, len(paths)))
      ahead.append((positions, pool.map(one, positions)))
      # The second batch is decoded while the first one is used.
      if len(ahead) == 2:
        yield kept(*ahead.popleft())
    while ahead:
      yield kept(*ahead.popleft())


def doubt(path: Path) -> str:
  """Reason why a file may be no complete image of its format, or ''.

  Only the header and the end are read; no pixel is decoded. An unreadable file
  raises an OSError, and an empty one a ValueError.
  """
  with open(path, 'rb') as file:
    head = file.read(16)
    if not head:
      raise ValueError('empty file')
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - _ENDS))
    tail = file.read()
  for start, end, suffixes in _SIGNATURES:
    if not head.startswith(start):
      continue
    # The trailer of GIF is one byte, which occurs within images, too.
    if end not in tail or (
      start == b'GIF8' and not tail.rstrip(b'\0').endswith(b';')
    ):
      return 'no end mark'
    if _announced(start, head, path) > size:
      return _SHORT
    return '' if path.suffix.lower() in suffixes else RENAMED
  return 'no image format known by its first bytes'


def _announced(start: bytes, head: bytes, path: Path) -> int:
  """Number of bytes of a complete file, 0 if it is not written."""
  if start == b'BM':
    return int.from_bytes(head[2:6], 'little')
  if start == b'RIFF':
    return int.from_bytes(head[4:8], 'little') + 8
  if start not in (b'II*\0', b'MM\0*'):
    return 0
  try:
    with Image.open(path, formats=('TIFF',)) as image:
      tags: Mapping[int, Any] = getattr(image, 'tag_v2', {})
      ends = [
        first + length
        for offsets, lengths in _TIFF_PARTS
        for first, length in zip(
          tags.get(offsets, ()), tags.get(lengths, ()), strict=False
        )
      ]
  # The table of tags is at the end of many files.
  except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
    return sys.maxsize
  return max(ends, default=0)
