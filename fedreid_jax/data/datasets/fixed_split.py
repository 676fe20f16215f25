"""Visible data sets with a published split in training and test images."""

from pathlib import Path

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.layout import BOXES
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  JUNK,
  Count,
  Dataset,
  Record,
  divided,
)


def _market1501(root: Path, junk: bool) -> list[Record]:
  """Reads the data set; `junk` keeps gallery images of person -1."""
  pattern = r'(-1|\d+)_c(\d+)s\d+_\d+_\d+\.[a-z]+'
  records = layout.from_boxes(root, pattern, range(1, 7))
  return [r for r in records if junk or r.person != JUNK]


def _write_boxes(root: Path, photos: Photos, cameras: int, name: str) -> None:
  """Trains on half of the persons; first shots of the others are queries."""
  train = photos.halves()[0]
  for person, camera, shot in photos.views(cameras):
    # The last test person is left for junk and distractors.
    if person != photos.people[-1]:
      split = 'gallery' if shot else 'query'
      folder = BOXES['train' if person in train else split]
      frame = 1000 * person + shot
      own = name.format(f'{person + 1:04d}', camera + 1, frame)
      pixels = photos.visible[person, camera, shot]
      pictures.save(root, f'{folder}/{own}', pixels)


def _write_market1501(root: Path, photos: Photos) -> None:
  name = '{}_c{}s1_{:06d}_01.jpg'
  _write_boxes(root, photos, 6, name)
  last = photos.people[-1]
  for camera, number in enumerate(('-1', '0000')):
    for shot in photos.shots:
      own = name.format(number, camera + 1, 1000 * last + shot)
      pixels = photos.visible[last, camera, shot]
      pictures.save(root, f'{BOXES["gallery"]}/{own}', pixels)


# Zheng et al., ICCV 2015. `0002_c1s1_000451_03.jpg` is person, camera,
# sequence, frame, box.
MARKET1501 = Dataset(
  name='market1501',
  title='Market-1501',
  read=_market1501,
  counts={
    False: divided((12936, 751, 6), (3368, 750, 6), (15913, 751, 6)),
    True: divided((12936, 751, 6), (3368, 750, 6), (19732, 752, 6)),
  },
  protocol='market',
  page="the project page of L. Zheng (Tsinghua University), 'Person Re-id'",
  miniature=_write_market1501,
  folders=('Market-1501-v15.09.15', 'Market-1501'),
  options={'junk': (False, True)},
  nobody=(JUNK, 0),
  note='tables with 19,732 gallery images include 3,819 of junk',
)

# Ristani et al. 2016, Zheng et al., ICCV 2017. `0001_c2_f0046182.jpg` is
# person, camera, frame. The package links to no copy of the data set.
DUKEMTMC = Dataset(
  name='dukemtmc',
  title='DukeMTMC-reID',
  read=lambda root: layout.from_boxes(
    root, r'(\d+)_c(\d+)_f\d+\.[a-z]+', range(1, 9)
  ),
  counts={None: divided((16522, 702, 8), (2228, 702, 8), (17661, 1110, 8))},
  protocol='market',
  page='withdrawn by its creators',
  miniature=lambda root, photos: _write_boxes(
    root, photos, 8, '{}_c{}_f{:07d}.jpg'
  ),
  folders=('DukeMTMC-reID',),
  note='withdrawn by its creators: prefer another data set for new work',
)

# Version 2 has blurred faces and folders with other names.
MSMT17_FOLDERS = (('train', 'test'), ('mask_train_v2', 'mask_test_v2'))


def _msmt17(root: Path, val: str) -> list[Record]:
  """Reads the data set; the list 'val' is a split, in 'train', or dropped."""
  for train, test in MSMT17_FOLDERS:
    if (root / train).is_dir() and (root / test).is_dir():
      break
  else:
    raise errors.DataError(
      'neither train and test nor mask_train_v2 and mask_test_v2',
      str(root),
      layout.HELP,
    )
  lists = {'train': train, 'query': test, 'gallery': test}
  if val != 'drop':
    lists['val'] = train
  records = []
  for split, folder in lists.items():
    for name, *_ in layout.lines(root, f'list_{split}.txt'):
      person, camera = layout.parse(r'(\d+)_\d+_(\d+)_.*\.[a-z]+', name, root)
      # Training and test persons are both numbered from 0 and are not the same.
      person += 10000 if folder == test else 0
      layout.check_camera(camera, range(1, 16), name, root)
      split = 'train' if split == 'val' and val == 'train' else split
      records.append(Record(f'{folder}/{name}', person, camera, 0, split))
  layout.require(root, (record.path for record in records))
  return records


def _write_msmt17(root: Path, photos: Photos) -> None:
  lists = {'train': [], 'val': [], 'query': [], 'gallery': []}
  train, test = photos.halves()
  for person, camera, shot in photos.views(15):
    if person in train:
      folder, label = 'train', person
      split = 'val' if shot and not camera else 'train'
    else:
      folder, label = 'test', person - test[0]
      split = 'gallery' if shot else 'query'
    name = f'{label:04d}_{shot:03d}_{camera + 1:02d}_0303morning_0015_0.jpg'
    path = f'{label:04d}/{name}'
    pixels = photos.visible[person, camera, shot]
    pictures.save(root, f'{folder}/{path}', pixels)
    lists[split].append(f'{path} {label}')
  for split, lines in lists.items():
    pictures.write_text(root, f'list_{split}.txt', lines)


_MSMT17_TEST = (11659, 3060, 15), (82161, 3060, 15)
# Wei et al., CVPR 2018. `0000/0000_000_01_0303morning_0015_0.jpg`: the third
# field of the name is the camera.
MSMT17 = Dataset(
  name='msmt17',
  title='MSMT17',
  read=_msmt17,
  counts={
    'train': divided((32621, 1041, 15), *_MSMT17_TEST),
    'val': {
      **divided((30248, 1041, 15), *_MSMT17_TEST),
      'val': Count(2373),
    },
    'drop': divided((30248, 1041, 15), *_MSMT17_TEST),
  },
  protocol='market',
  page='the MSMT17 page of Peking University (release agreement by e-mail)',
  miniature=_write_msmt17,
  folders=('MSMT17_V1', 'MSMT17_V2', 'MSMT17'),
  options={'val': ('train', 'val', 'drop')},
  note='32,621 training images are the lists train and val, 30,248 train only',
  named=r'(?P<person>\d{4})_\d{3}_(?P<camera>\d{2})_\d{4}(morning|noon|afternoon)'
  r'_[^/]+',
  as_photos='the camera is the third field of the names',
)


def _cuhk02(root: Path, split: str) -> list[Record]:
  """Reads pairs 1 to 4 for training and pair 5 for tests, or all as public."""
  base = 'Dataset/' if (root / 'Dataset').is_dir() else ''
  records = []
  for pair in range(1, 6):
    for view, side in ((1, 'query'), (2, 'gallery')):
      own = (side if pair == 5 else 'train') if split == 'pairs' else split
      camera = 2 * (pair - 1) + view
      # Persons are numbered anew in every pair.
      records += [
        Record(name, person + 10000 * pair, camera, 0, own)
        for name, person in layout.named(
          root, f'{base}P{pair}/cam{view}', r'(\d+)_.*\.png'
        )
      ]
  return records


def _write_cuhk02(root: Path, photos: Photos) -> None:
  for person, camera, shot in photos.views(2):
    folder = f'Dataset/P{person % 5 + 1}/cam{camera + 1}'
    name = f'{folder}/{person // 5 + 1:03d}_{shot + 1:02d}_.png'
    pictures.save(root, name, photos.visible[person, camera, shot])


# Li and Wang, CVPR 2013: five pairs of cameras. `Dataset/P1/cam1/001_....png`
# is pair, camera, person.
CUHK02 = Dataset(
  name='cuhk02',
  title='CUHK02',
  read=_cuhk02,
  counts={
    'pairs': divided((6308, 1577, 8), (478, 239, 1), (478, 239, 1)),
    'public': {'public': Count(7264, 1816, 10)},
  },
  protocol='market',
  page="the 'CUHK Person Re-identification Datasets' page of the Chinese "
  'University of Hong Kong',
  miniature=_write_cuhk02,
  folders=('CUHK02', 'cuhk02'),
  options={'split': ('pairs', 'public')},
  note='contains CUHK01 as pair 1: never train on one and test on the other',
  named=r'P[1-5]/cam[12]/\d+_[^/]*\.png',
)

ILIDS_SPLITS = 'train-test people splits/train_test_splits_ilidsvid.mat'


def _ilids_vid(root: Path, frames: str, trial: int) -> list[Record]:
  """Reads one of ten splits; `frames` is 'sequences' or 'images'."""
  found = [
    (name, person, camera)
    for camera in (1, 2)
    for name, person in layout.named(
      root, f'i-LIDS-VID/{frames}/cam{camera}', r'.*/person(\d+)/[^/]+'
    )
  ]
  people = sorted({person for _, person, _ in found})
  order = layout.matlab(root, ILIDS_SPLITS, 'ls_set').astype(int)
  if order.shape[0] <= trial or sorted(order[trial]) != list(
    range(1, len(people) + 1)
  ):
    raise errors.DataError(
      f'split {trial} does not order {len(people)} persons',
      str(root / ILIDS_SPLITS),
      'unpack the archive again',
    )
  # The first half of a permutation is for testing. It holds places in the
  # sorted list of persons, counted from 1, and not the numbers of persons.
  half = order.shape[1] // 2
  test = {people[place - 1] for place in order[trial, :half]}
  side = {1: 'query', 2: 'gallery'}
  return [
    Record(name, p, camera, 0, side[camera] if p in test else 'train')
    for name, p, camera in found
  ]


def _write_ilids_vid(root: Path, photos: Photos) -> None:
  from scipy import io

  for person, camera, shot in photos.views(2):
    cam, number = f'cam{camera + 1}', f'person{person + 1:03d}'
    name = f'{cam}/{number}/{cam}_{number}'
    pixels = photos.visible[person, camera, shot]
    track = f'i-LIDS-VID/sequences/{name}_{shot + 1:05d}.png'
    pictures.save(root, track, pixels)
    if shot == 0:
      pictures.save(root, f'i-LIDS-VID/images/{name}.png', pixels)
  rng = np.random.default_rng(0)
  orders = np.stack([1 + rng.permutation(photos.people) for _ in range(10)])
  (root / ILIDS_SPLITS).parent.mkdir(parents=True)
  io.savemat(root / ILIDS_SPLITS, {'ls_set': orders})


# Wang et al., ECCV 2014: 300 persons by two cameras, as tracks
# (`sequences/cam1/person001/cam1_person001_00317.png`) and as a single image of
# each person by each camera (`images/cam1/person001/cam1_person001.png`).
ILIDS_VID = Dataset(
  name='ilids-vid',
  title='iLIDS-VID',
  read=_ilids_vid,
  counts={
    'sequences': divided((None, 150, 2), (None, 150, 1), (None, 150, 1)),
    'images': divided((300, 150, 2), (150, 150, 1), (150, 150, 1)),
  },
  protocol='market',
  page='the iLIDS-VID page of Queen Mary University of London',
  miniature=_write_ilids_vid,
  folders=('iLIDS-VID', 'ilids-vid'),
  options={'frames': ('sequences', 'images'), 'trial': tuple(range(10))},
  note="not the 'iLIDS-VID' of the federated benchmark: that is qmul-ilids",
  named=r'cam[12]/person\d+/cam[12]_person\d+(_\d+)?\.png',
)
