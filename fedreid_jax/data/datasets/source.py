"""Reads the image files of records, or the pixels of parts of files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax.data.datasets.records import Dataset, Record


def open_source(
  root: Path, dataset: Dataset, records: Sequence[Record]
) -> Callable[[Record], bytes | UInt8[np.ndarray, 'H W 3']]:
  """Returns a function that reads the bytes of a file, or pixels for a part.

  The function raises ValueError for a missing part, and OSError for a file that
  cannot be read.
  """
  # A data set with a container can also come as a folder of image files.
  extract: Any = None
  if dataset.extract and any(record.part for record in records):
    extract = dataset.extract(root)

  def read(record: Record) -> bytes | UInt8[np.ndarray, 'H W 3']:
    if not record.part:
      return (root / record.path).read_bytes()
    try:
      return extract(record)
    except (KeyError, IndexError, SyntaxError) as error:
      raise ValueError(str(error) or type(error).__name__) from error

  return read
