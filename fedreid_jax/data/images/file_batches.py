"""Decodes image files in batches, the next one while the caller uses one."""

import collections
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from fedreid_jax import errors
from fedreid_jax.data.images import decoder as decoding
from fedreid_jax.data.images.decoder import Decoder

Skip = Callable[[int, str], None]
Batch = tuple[
  Int64[np.ndarray, ' M'],
  UInt8[np.ndarray, 'M H W ch'],
]


def read(
  paths: Sequence[str | os.PathLike[str]],
  decoder: Decoder,
  batch: int,
  skip: Skip | None = None,
) -> Iterator[Batch]:
  """Yields positions and pixels of image files, `batch` files at a time.

  Threads decode the next batch while the caller uses this one, so two batches
  are in memory.

  Args:
    paths: paths of the files.
    decoder: settings of the decoder.
    batch: number of files of a batch.
    skip: called with the position of a file that cannot be read, and with the
      reason; the file is left out of its batch.

  Yields:
    (positions in `paths`, pixels) of the files of a batch that can be read.

  Raises:
    DataError: naming a file that cannot be read, if there is no `skip`.
  """

  def one(position: int) -> np.ndarray | str:
    try:
      return decoding.decode(Path(paths[position]).read_bytes(), decoder)
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
