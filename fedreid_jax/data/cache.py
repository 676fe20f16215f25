"""Image files -> one uint8 array on disk, decoded once, in parallel.

The array is kept under a digest of what it was made from: every file's name,
size and time of change, and the settings of the decoder. Its manifest holds the
SHA-256 of every file read.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from fedreid_jax import errors

MAX_PIXELS = 50_000_000
SHOWN = 20  # names of bad files in a message


class Decoder(NamedTuple):
  """How a file becomes an array.

  Attributes:
    height: H.
    width: W.
    channels: 3 for RGB, 1 for grey.
    invert: turn dark strokes on white into light on black.
    on_bad_image: 'error', or 'skip' to leave out files that cannot be read.
  """

  height: int
  width: int
  channels: int = 3
  invert: bool = False
  on_bad_image: str = 'error'


def cache_dir() -> Path:
  """Returns the user's cache directory for this package."""
  base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
  return Path(base) / 'fedreid_jax'


def decode(data: bytes, decoder: Decoder) -> np.ndarray:
  """Decodes one image file, `[H, W, ch]` uint8.

  The format is told by content; orientation tags are applied; grey, palette,
  CMYK and transparent images become RGB; the first frame counts.

  Raises:
    ValueError: saying why the bytes are no usable image.
  """
  # Another library may have switched this on: half an image would pass.
  ImageFile.LOAD_TRUNCATED_IMAGES = False
  if not data:
    raise ValueError('empty file')
  try:
    with Image.open(io.BytesIO(data)) as image:
      if image.width * image.height > MAX_PIXELS:
        raise ValueError(f'{image.width}x{image.height} pixels')
      if min(image.size) < 2:
        raise ValueError(f'{image.width}x{image.height} pixels')
      if image.mode.startswith(('I', 'F')):
        raise ValueError(f'mode {image.mode}, not 8 bits a channel')
      mode = 'RGB' if decoder.channels == 3 else 'L'
      image.draft(mode, (decoder.width, decoder.height))
      image = ImageOps.exif_transpose(image).convert(mode)
      size = decoder.width, decoder.height
      if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
      array = np.asarray(image, np.uint8).reshape(*size[::-1], decoder.channels)
  except (
    OSError,
    SyntaxError,
    UnidentifiedImageError,
    Image.DecompressionBombError,
  ) as error:
    raise ValueError(str(error) or type(error).__name__) from error
  return 255 - array if decoder.invert else array


def build(
  root: Path, files: Sequence[str], decoder: Decoder
) -> tuple[np.ndarray, np.ndarray, str]:
  """Returns the decoded images of files under a folder.

  Args:
    root: folder.
    files: names relative to it, in the order wanted.
    decoder: how to decode.

  Returns:
    (memory-mapped uint8 `[M, H, W, ch]`, positions of the files that could be
    read, digest).

  Raises:
    DataError: naming the files that cannot be decoded.
  """
  stats = [(root / name).stat() for name in files]
  listing = [[n, s.st_size, s.st_mtime_ns] for n, s in zip(files, stats, strict=True)]
  digest = hashlib.sha256(
    json.dumps([listing, decoder._asdict()]).encode()
  ).hexdigest()
  folder = cache_dir() / 'images' / digest[:24]
  if not (folder / 'manifest.json').exists():
    _write(folder, root, files, decoder)
  manifest = json.loads((folder / 'manifest.json').read_text())
  images = np.load(folder / 'images.npy', mmap_mode='r', allow_pickle=False)
  return images, np.asarray(manifest['kept'], np.int64), digest


def _write(
  folder: Path, root: Path, files: Sequence[str], decoder: Decoder
) -> None:
  """Decodes everything into a new folder, moved in place when complete."""
  folder.parent.mkdir(parents=True, exist_ok=True)
  bad: list[str] = []
  hashes: list[str | None] = []
  with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
    shape = len(files), decoder.height, decoder.width, decoder.channels
    whole = np.lib.format.open_memmap(
      Path(scratch) / 'all.npy', 'w+', np.uint8, shape
    )

    def one(k: int) -> str | None:
      try:
        data = (root / files[k]).read_bytes()
        whole[k] = decode(data, decoder)
      except (ValueError, OSError) as error:
        bad.append(f'{files[k]} ({error})')
        return None
      return hashlib.sha256(data).hexdigest()

    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      hashes = list(pool.map(one, range(len(files)), chunksize=64))
    if bad and decoder.on_bad_image == 'error':
      bad.sort()
      raise errors.DataError(
        f'{len(bad)} of {len(files)} images cannot be read: '
        + '; '.join(bad[:SHOWN]),
        str(root),
        "mend them, or set data.on_bad_image='skip'",
      )
    kept = [k for k, digest in enumerate(hashes) if digest]
    if bad:
      whole = whole[kept]
    part = Path(scratch) / 'part'
    part.mkdir()
    np.save(part / 'images.npy', whole)
    manifest = {
      'kept': kept,
      'sha256': {files[k]: hashes[k] for k in kept},
      'decoder': decoder._asdict(),
    }
    (part / 'manifest.json').write_text(json.dumps(manifest))
    try:
      part.rename(folder)
    except OSError:
      if not (folder / 'manifest.json').exists():
        raise
