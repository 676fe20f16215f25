"""What every data set is read into: one record an image, and its description.

A reader is a function of an unpacked archive. It opens list and `.mat` files
but no image, so a data set of 50,000 files is read in a second.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VISIBLE, INFRARED = 0, 1
MODALITIES = ('visible', 'infrared')
SPLITS = (
  'train',
  'val',
  'query',
  'gallery',
  'query+gallery',
  'test',
  'images',
  'distractor',
  'public',
)


class Record(NamedTuple):
  """One image.

  Attributes:
    path: of its file, relative to the root, with '/'.
    person: number as published; -1 is junk, 0 a distractor where the data set
      says so. Two splits that share a number show the same person.
    camera: number as published, from 1 where there is one.
    modality: 0 visible, 1 infrared.
    split: 'train' or 'val' to learn from; 'query' and 'gallery' to test on,
      'query+gallery' for images that are both; 'images' where the protocol
      divides the identities, with 'distractor' in every gallery; 'test' of a
      classification task; 'public' for a set without labels.
    part: what of the file: () all of it, or a box (left, top, width, height) in
      pixels, or the place in a container that the data set's `extract` reads.
  """

  path: str
  person: int
  camera: int
  modality: int
  split: str
  part: tuple[int, ...] = ()

  @property
  def name(self) -> str:
    """Returns path and part as one text, unique in a data set."""
    part = ','.join(str(number) for number in self.part)
    return f'{self.path}#{part}' if part else self.path


class Count(NamedTuple):
  """How much a split holds, as published; None where nobody says."""

  images: int | None
  identities: int | None = None
  cameras: int | None = None


Extract = Callable[[Record], np.ndarray]


class Dataset(NamedTuple):
  """A published data set.

  Attributes:
    name: what users call it.
    title: what its authors call it.
    read: `(root, **options) -> records`, in any order.
    expected: `(**options) -> {split: Count}` of the official archive.
    protocol: name of its test protocol.
    page: where it is officially described and asked for.
    folders: names its archive unpacks to, if the root is one level above.
    options: choices of every option, the default first.
    extract: `(root) -> (record) -> uint8 [H, W, 3]` where images are not files
      of their own.
    note: what to know before using it, one line.
  """

  name: str
  title: str
  read: Callable[..., list[Record]]
  expected: Callable[..., dict[str, Count]]
  protocol: str
  page: str
  folders: tuple[str, ...] = ()
  options: Mapping[str, tuple[Any, ...]] = {}
  extract: Callable[[Path], Extract] | None = None
  note: str = ''
