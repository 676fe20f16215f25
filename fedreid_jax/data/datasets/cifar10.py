"""CIFAR-10 (Krizhevsky 2009), ten classes, in the archive for Python.

`data_batch_1` to `data_batch_5` hold training images and `test_batch` test
images. The class of an image is stored as its person.
"""

import functools
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout, pickled
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import Count, Dataset, Extract, Record

BATCHES = {f'data_batch_{k}': 'train' for k in range(1, 6)} | {
  'test_batch': 'test'
}


def load(path: Path) -> tuple[UInt8[np.ndarray, 'M 32 32 3'], list[int]]:
  """Reads the images and labels of a batch; DataError for other content."""
  if not path.is_file():
    raise errors.DataError(
      f'no file {path.name}', str(path.parent), layout.HELP
    )
  batch = pickled.load(path)
  try:
    data, labels = batch[b'data'], [int(label) for label in batch[b'labels']]
    images = data.reshape(len(labels), 3, 32, 32).transpose(0, 2, 3, 1)
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise errors.DataError(
      f'no CIFAR-10 batch: {error}', str(path), 'unpack the archive again'
    ) from error
  return images, labels


def extract(root: Path) -> Extract:
  """Returns a reader of images; `part` is the row in the batch."""
  # Each batch file is read once for all of its images.
  batch = functools.cache(lambda name: load(root / name)[0])

  def one(record: Record) -> UInt8[np.ndarray, '32 32 3']:
    return np.ascontiguousarray(batch(record.path)[record.part[0]])

  return one


def read(root: Path) -> list[Record]:
  """Reads the data set."""
  return [
    Record(name, label, 1, 0, split, (row,))
    for name, split in BATCHES.items()
    for row, label in enumerate(load(root / name)[1])
  ]


def write(root: Path, photos: Photos) -> None:
  """Writes six batches; a person's number modulo ten is a class."""
  for place, name in enumerate(BATCHES):
    images = photos.visible[:, place, 0]
    small = [np.asarray(Image.fromarray(i).resize((32, 32))) for i in images]
    batch = {
      b'batch_label': name.encode(),
      b'data': np.stack(small).transpose(0, 3, 1, 2).reshape(len(small), -1),
      b'labels': [person % 10 for person in photos.people],
      b'filenames': [b'%d.png' % person for person in photos.people],
    }
    root.mkdir(parents=True, exist_ok=True)
    pickled.dump(root / name, batch)


DATASET = Dataset(
  name='cifar10',
  title='CIFAR-10',
  read=read,
  counts={None: {'train': Count(50000, 10, 1), 'test': Count(10000, 10, 1)}},
  protocol='accuracy',
  page='the CIFAR page of A. Krizhevsky (University of Toronto)',
  miniature=write,
  folders=('cifar-10-batches-py',),
  extract=extract,
  note='classification: a class is not a person, and nothing is ranked',
)
