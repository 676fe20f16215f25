"""iLIDS-VID (Wang et al., ECCV 2014): 300 persons by two cameras.

`i-LIDS-VID/sequences/cam1/person001/cam1_person001_00317.png` is an image of a
track, `i-LIDS-VID/images/cam1/person001/cam1_person001.png` the single image of
a person by a camera. The first half of each of ten published permutations of
the persons is for testing.
"""

from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small

SPLITS = 'train-test people splits/train_test_splits_ilidsvid.mat'


def read(root: Path, frames: str, trial: int) -> list[Record]:
  """Reads the data set; `frames` is 'sequences' or 'images'."""
  found = []
  for camera in (1, 2):
    for name in layout.images(root, f'i-LIDS-VID/{frames}/cam{camera}'):
      folder = name.rpartition('/')[0]
      person = layout.parse(r'person(\d+)', folder, root)[0]
      found.append((name, person, camera))
  people = sorted({person for _, person, _ in found})
  order = layout.matlab(root, SPLITS, 'ls_set').astype(int)
  if order.shape[0] <= trial or sorted(order[trial]) != list(
    range(1, len(people) + 1)
  ):
    raise errors.DataError(
      f'split {trial} does not order {len(people)} persons',
      str(root / SPLITS),
      'unpack the archive again',
    )
  # A permutation holds places in the sorted list of persons, counted from 1,
  # and not the numbers of persons.
  half = order.shape[1] // 2
  test = {people[place - 1] for place in order[trial, :half]}
  side = {1: 'query', 2: 'gallery'}
  return [
    Record(name, p, camera, 0, side[camera] if p in test else 'train')
    for name, p, camera in found
  ]


def expected(frames: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  single = frames == 'images'
  return {
    'train': Count(300 if single else None, 150, 2),
    'query': Count(150 if single else None, 150, 1),
    'gallery': Count(150 if single else None, 150, 1),
  }


DATASET = Dataset(
  name='ilids-vid',
  title='iLIDS-VID',
  read=read,
  expected=expected,
  protocol='market',
  page='the iLIDS-VID page of Queen Mary University of London',
  miniature=small.write_ilids_vid,
  folders=('iLIDS-VID', 'ilids-vid'),
  options={'frames': ('sequences', 'images'), 'trial': tuple(range(10))},
  note="not the 'iLIDS-VID' of the federated benchmark: that is qmul-ilids",
)
