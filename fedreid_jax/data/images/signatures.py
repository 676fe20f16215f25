"""Checks of the first and last bytes of an image file, without decoding."""

import os
from pathlib import Path

RENAMED = 'format differs from the suffix'
_ENDS = 64  # bytes at the end of a complete file that contain its end mark
# First bytes, end mark ('' for formats without one), suffixes of the name.
_FORMATS = (
  (b'\xff\xd8\xff', b'\xff\xd9', ('.jpg', '.jpeg')),
  (b'\x89PNG\r\n\x1a\n', b'IEND', ('.png',)),
  (b'BM', b'', ('.bmp',)),
  (b'GIF8', b'', ('.gif',)),
  (b'RIFF', b'', ('.webp',)),
  (b'II*\0', b'', ('.tif', '.tiff')),
  (b'MM\0*', b'', ('.tif', '.tiff')),
)


def doubt(path: Path) -> str:
  """Returns why a file may be no complete image of its format, or ''.

  Raises:
    OSError: when it cannot be read.
    ValueError: when it is empty.
  """
  with open(path, 'rb') as file:
    head = file.read(16)
    if not head:
      raise ValueError('empty file')
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - _ENDS))
    tail = file.read()
  for start, end, suffixes in _FORMATS:
    if not head.startswith(start):
      continue
    if end not in tail:
      return 'no end mark'
    if start == b'BM' and int.from_bytes(head[2:6], 'little') > size:
      return 'shorter than the size in its header'
    return '' if path.suffix.lower() in suffixes else RENAMED
  return 'no image format known by its first bytes'
