"""Bounds on the memory that compressed files of others unpack to.

A small file can unpack to a thousand times its size. A file may unpack to
`LEAST` bytes, or to `RATIO` times its own size if that is more. All sizes are
known before anything is unpacked. Errors are `ValueError`, which the readers of
the files report with their place and remedy.
"""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

LEAST, RATIO = 2**28, 20
_MATLAB_HEADER, _COMPRESSED = 128, 15  # bytes, and the type of an element


def check(path: Path, needed: int) -> None:
  """Raises ValueError if a file may not unpack to so many bytes."""
  allowed = max(LEAST, RATIO * path.stat().st_size)
  if needed > allowed:
    raise ValueError(
      f'it unpacks to more than {allowed:,} bytes, the most for its size'
    )


def check_zip(path: Path) -> None:
  """Raises ValueError for a ZIP archive that unpacks to too much."""
  with zipfile.ZipFile(path) as file:
    check(path, sum(one.file_size for one in file.infolist()))


def read_npz(path: Path) -> dict[str, np.ndarray]:
  """The arrays of a file of NumPy, none of them pickled.

  Raises:
    ValueError: if it unpacks to too much.
    OSError, KeyError, EOFError, BadZipFile, zlib.error: if it is damaged.
  """
  # NumPy does not close a damaged file that it has opened itself.
  with path.open('rb') as file:
    if not zipfile.is_zipfile(file):
      raise ValueError('it is no archive of arrays')
    check_zip(path)
    with zipfile.ZipFile(file) as archive:
      for one in archive.infolist():
        with archive.open(one) as member:
          _check_header(member, one.file_size)
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
      return {name: saved[name] for name in saved.files}


def _check_header(member: IO[bytes], size: int) -> None:
  """Refuses an array whose header announces more bytes than follow."""
  # NumPy reserves the memory of the header before it reads the values.
  version = np.lib.format.read_magic(member)
  read = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
  }.get(version)
  if read is None:
    raise ValueError(f'an array of version {version}')
  shape, _, dtype = read(member)
  if math.prod(shape) * dtype.itemsize > size:
    raise ValueError(f'an array of shape {shape} in {size:,} bytes')


def check_matlab(path: Path) -> None:
  """Raises ValueError for a file of MATLAB that unpacks to too much."""
  needed = 0
  with path.open('rb') as file:
    head = file.read(_MATLAB_HEADER)
    order = 'little' if head[126:128] == b'IM' else 'big'
    while len(tag := file.read(8)) == 8:
      kind, size = (int.from_bytes(tag[k : k + 4], order) for k in (0, 4))
      start = file.tell()
      if kind == _COMPRESSED:
        unpacker = zlib.decompressobj()
        while not unpacker.eof and (part := file.read(min(size, 2**16))):
          size -= len(part)
          while part:
            needed += len(unpacker.decompress(part, 2**20))
            check(path, needed)
            part = unpacker.unconsumed_tail
      file.seek(start + int.from_bytes(tag[4:], order))
