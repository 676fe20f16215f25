"""SYSU-MM01 (Wu et al., ICCV 2017): four visible and two infrared cameras.

`cam1/0001/0001.jpg` is camera, person, image; `exp/train_id.txt`, `val_id.txt`
and `test_id.txt` list persons. Infrared test images are queries; the gallery of
each trial is drawn from the visible test images.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Integer

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import (
  INFRARED,
  VISIBLE,
  Count,
  Dataset,
  Record,
)
from fedreid_jax.data.fixtures import infrared

CAMERAS = {
  1: VISIBLE,
  2: VISIBLE,
  3: INFRARED,
  4: VISIBLE,
  5: VISIBLE,
  6: INFRARED,
}


def read(root: Path, val: str) -> list[Record]:
  """Reads the data set.

  The validation persons are a split ('val'), part of 'train', or unused
  ('drop').
  """
  split_of = {}
  for split in ('train', 'val', 'test'):
    for person in layout.identities(root, f'exp/{split}_id.txt'):
      if person in split_of:
        raise errors.DataError(
          f'person {person} is in {split_of[person]} and {split}',
          str(root / 'exp'),
          'unpack the archive again',
        )
      split_of[person] = split
  records = []
  for camera, modality in CAMERAS.items():
    for name in layout.images(root, f'cam{camera}'):
      person = _person(root, name)
      split = split_of.get(person)
      if split == 'test':
        split = 'query' if modality == INFRARED else 'gallery'
      elif split == 'val' and val != 'val':
        split = 'train' if val == 'train' else None
      # Persons of no list are seen by one camera only.
      if split:
        records.append(Record(name, person, camera, modality, split))
  return records


def _person(root: Path, name: str) -> int:
  folder = name.split('/')[1]
  if not folder.isdigit() or name.count('/') != 2:
    raise errors.DataError(
      f'{name!r} is not camera/person/image', str(root), layout.HELP
    )
  return int(folder)


def permutations(
  root: Path,
) -> dict[tuple[int, int], Integer[np.ndarray, 'trials _']]:
  """Returns the official gallery permutations by (person, camera).

  Returns:
    Permutations of the images for each trial, counted from 1, as
    `trials.sysu_official_gallery` takes them.

  Raises:
    DataError: when `exp/rand_perm_cam.mat` is missing or cannot be read.
  """
  cells = layout.matlab(
    files.check_root(root), 'exp/rand_perm_cam.mat', 'rand_perm_cam'
  )
  # The cell of a person whom the camera has not seen is empty.
  return {
    (person, camera): rows
    for camera, cell in enumerate(cells.ravel(), 1)
    for person, rows in enumerate(cell.ravel(), 1)
    if rows.size
  }


def expected(val: str) -> dict[str, Count]:
  """Returns the published counts."""
  tests = {'query': Count(3803, 96, 2), 'gallery': Count(6775, 96, 4)}
  if val == 'train':
    return {'train': Count(34167, 395, 6), **tests}
  counts = {'train': Count(None, 296, 6), **tests}
  return counts | ({'val': Count(None, 99, 6)} if val == 'val' else {})


DATASET = Dataset(
  name='sysu-mm01',
  title='SYSU-MM01',
  read=read,
  expected=expected,
  protocol='sysu',
  page='the SYSU-MM01 page of A. Wu (Sun Yat-sen University), by agreement',
  miniature=infrared.write_sysu_mm01,
  folders=('SYSU-MM01',),
  options={'val': ('train', 'val', 'drop')},
  note='published tables train on train and val together (395 persons)',
)
