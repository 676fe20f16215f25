"""CIFAR-10 (Krizhevsky 2009), ten classes, as its python batches.

`data_batch_1` to `data_batch_5` are training and `test_batch` test images. The
class of an image is stored as its person.
"""

import functools
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout, pickled
from fedreid_jax.data.datasets.records import Count, Dataset, Extract, Record

BATCHES = {f'data_batch_{k}': 'train' for k in range(1, 6)} | {
  'test_batch': 'test'
}


def load(path: Path) -> tuple[UInt8[np.ndarray, 'M 32 32 3'], list[int]]:
  """Returns the images and labels of a batch.

  Raises:
    DataError: when the file is no batch, or holds other objects than arrays.
  """
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


def expected() -> dict[str, Count]:
  """Returns the published counts."""
  return {'train': Count(50000, 10, 1), 'test': Count(10000, 10, 1)}


DATASET = Dataset(
  name='cifar10',
  title='CIFAR-10',
  read=read,
  expected=expected,
  protocol='accuracy',
  page='the CIFAR page of A. Krizhevsky (University of Toronto)',
  folders=('cifar-10-batches-py',),
  extract=extract,
  note='classification: a class is not a person, and nothing is ranked',
)
