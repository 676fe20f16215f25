"""Records of images and descriptions of data sets.

A reader is a function of an unpacked archive that returns one record per image.
It opens list and `.mat` files but no image, so that it reads a data set of
50,000 files in a second.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import UInt8

from fedreid_jax.data.datasets.photos import Photos

VISIBLE, INFRARED = 0, 1
MODALITIES = ('visible', 'infrared')
Direction = Literal['infrared-visible', 'visible-infrared']  # QUERY-GALLERY
DIRECTIONS = get_args(Direction)
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
LEARN = ('train', 'val')
TEST = ('query', 'gallery', 'query+gallery')
JUNK = -1


class Record(NamedTuple):
  """One image.

  Attributes:
    path: path of the file, relative to the root, with '/'.
    person: number as published; `Dataset.nobody` has those that are of no one
      person. The same number in two splits is the same person.
    camera: number as published, from 1; 0 if nothing is known of cameras.
    split: 'train' or 'val' for training; 'query' and 'gallery' for tests, and
      'query+gallery' for images that are both; 'images' if the protocol divides
      the identities, with 'distractor' in every gallery; 'test' of a
      classification task; 'public' for a set without labels.
    part: () for the whole file; a box (left, top, width, height) in pixels, or
      the position in a container, for the `extract` of the data set.
    tracklet: () for an image of its own; of a frame, the number of its tracklet
      in the data set, from 1, and its place in time, from 0.
  """

  path: str
  person: int
  camera: int
  modality: int  # 0 visible, 1 infrared
  split: str
  part: tuple[int, ...] = ()
  tracklet: tuple[int, ...] = ()

  @property
  def stored(self) -> tuple[Any, ...]:
    """The fields for JSON, without a tracklet if there is none."""
    # Digests of data sets without tracklets are those from before there were
    # any.
    return tuple(self) if self.tracklet else tuple(self)[:-1]

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


def divided(*sizes: tuple[int | None, ...]) -> dict[str, Count]:
  """Published sizes of training, query and gallery images."""
  splits = ('train', 'query', 'gallery')
  return {s: Count(*own) for s, own in zip(splits, sizes, strict=True)}


Extract = Callable[[Record], UInt8[np.ndarray, 'H W 3']]


class Dataset(NamedTuple):
  """A published data set.

  Attributes:
    counts: `{value: {split: Count}}` of the official archive, by the value of
      the first option; the value None stands for all others.
    miniature: `(root, photos)`, writes some persons in its official layout.
    folders: names of its unpacked archive, if the root is one level above.
    extract: `(root) -> (record) -> uint8 [H, W, 3]` for images that are parts
      of files.
    nobody: numbers of persons that stand for many persons: junk, which is never
      ranked, and distractors, which match no query.
    named: pattern at the end of the paths of its images, or with ^ of the whole
      paths, by which a folder of photographs tells the data set; '' if it reads
      such names rightly. The groups `person` and `camera` are what a folder of
      photographs must read, if `as_photos` is given.
    telling: folders that only this data set has at the place where `named`
      begins, of which one must be there; none if `named` tells enough.
    as_photos: what a folder of photographs reads of it, '' if nothing right.
  """

  name: str
  title: str  # name that its authors use
  read: Callable[..., list[Record]]  # `(root, **options) -> records`, unsorted
  counts: Mapping[Any, Mapping[str, Count]]
  protocol: str  # name of its test protocol
  page: str  # official page
  miniature: Callable[[Path, Photos], None]
  folders: tuple[str, ...] = ()
  options: Mapping[str, tuple[Any, ...]] = {}  # default first
  extract: Callable[[Path], Extract] | None = None
  nobody: tuple[int, ...] = (JUNK,)
  infrared: bool = False  # whether it has infrared images, too
  note: str = ''  # one line
  named: str = ''
  telling: tuple[str, ...] = ()
  as_photos: str = ''

  def expected(self, options: Mapping[str, Any]) -> Mapping[str, Count]:
    """Published size of each split, {} if none is published."""
    first = next(iter(options.values()), None)
    return self.counts.get(first, self.counts.get(None, {}))
