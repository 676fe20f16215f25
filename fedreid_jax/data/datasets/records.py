"""Records of images and descriptions of data sets.

A reader is a function of an unpacked archive that returns one record per image.
It opens list and `.mat` files but no image, so that it reads a data set of
50,000 files in a second.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from fedreid_jax.data.fixtures.photos import Photos

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
    path: path of the file, relative to the root, with '/'.
    person: number as published; -1 is junk and 0 a distractor in the data sets
      that define these. The same number in two splits is the same person.
    camera: number as published, from 1; 0 if nothing is known of cameras.
    modality: 0 visible, 1 infrared.
    split: 'train' or 'val' for training; 'query' and 'gallery' for tests, and
      'query+gallery' for images that are both; 'images' if the protocol divides
      the identities, with 'distractor' in every gallery; 'test' of a
      classification task; 'public' for a set without labels.
    part: () for the whole file; a box (left, top, width, height) in pixels, or
      the position in a container, for the `extract` of the data set.
  """

  path: str
  person: int
  camera: int
  modality: int
  split: str
  part: tuple[int, ...] = ()

  @property
  def name(self) -> str:
    """Path and part as one text, which is unique in a data set."""
    part = ','.join(str(number) for number in self.part)
    return f'{self.path}#{part}' if part else self.path


class Count(NamedTuple):
  """Published size of a split; None for an unknown number."""

  images: int | None
  identities: int | None = None
  cameras: int | None = None


Extract = Callable[[Record], UInt8[np.ndarray, 'H W 3']]


class Dataset(NamedTuple):
  """A published data set.

  Attributes:
    name: name for users.
    title: name that its authors use.
    read: `(root, **options) -> records`, in any order.
    expected: `(**options) -> {split: Count}` of the official archive.
    protocol: name of its test protocol.
    page: official page that describes and distributes it.
    miniature: `(root, photos)`, writes some persons in its official layout.
    folders: names of its unpacked archive, if the root is one level above.
    options: choices of every option, the default first.
    extract: `(root) -> (record) -> uint8 [H, W, 3]` for images that are parts
      of files.
    note: important remark on its use, one line.
  """

  name: str
  title: str
  read: Callable[..., list[Record]]
  expected: Callable[..., dict[str, Count]]
  protocol: str
  page: str
  miniature: Callable[[Path, Photos], None]
  folders: tuple[str, ...] = ()
  options: Mapping[str, tuple[Any, ...]] = {}
  extract: Callable[[Path], Extract] | None = None
  note: str = ''
