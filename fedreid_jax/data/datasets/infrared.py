"""Visible and infrared data sets: SYSU-MM01, RegDB and LLCM.

Queries are infrared and the gallery is visible, or the other way round.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  DIRECTIONS,
  INFRARED,
  VISIBLE,
  Count,
  Dataset,
  Record,
  divided,
)

SYSU_INFRARED = (3, 6)  # of cameras 1 to 6


def _sysu_mm01(root: Path, val: str) -> list[Record]:
  """Reads the data set; validation persons are 'val', 'train' or dropped."""
  split_of: dict[int, str] = {}
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
  for camera in range(1, 7):
    modality = INFRARED if camera in SYSU_INFRARED else VISIBLE
    split_as = {
      'train': 'train',
      'val': 'val' if val == 'val' else 'train' if val == 'train' else '',
      'test': layout.side(DIRECTIONS[0], modality),
    }
    for name, person in layout.named(
      root, f'cam{camera}', r'cam\d/(\d+)/[^/]+'
    ):
      # Persons of no list are seen by one camera only.
      split = split_as.get(split_of.get(person, ''))
      if split:
        records.append(Record(name, person, camera, modality, split))
  return records


def sysu_permutations(
  root: Path,
) -> dict[tuple[int, int], Integer[np.ndarray, 'trials _']]:
  """Gallery permutations of the images for `trials.sysu_official_gallery`.

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


def _write_sysu_mm01(root: Path, photos: Photos) -> None:
  from scipy import io

  for person, camera, shot in photos.views(6):
    is_infrared = camera + 1 in SYSU_INFRARED
    side = photos.infrared if is_infrared else photos.visible
    name = f'cam{camera + 1}/{person + 1:04d}/{shot + 1:04d}.jpg'
    pictures.save(root, name, side[person, camera, shot])
  train, test = photos.halves()
  lists = {'train': train[:-1], 'val': train[-1:], 'test': test}
  for split, people in lists.items():
    _write_identities(root, f'exp/{split}_id.txt', people)
  rng = np.random.default_rng(0)
  # MATLAB: a cell for each camera, with a cell for each person, counted from 1.
  cells = np.empty((6, 1), object)
  for camera in range(6):
    own = np.empty((len(photos.people), 1), object)
    for person in photos.people:
      own[person, 0] = np.stack(
        [1 + rng.permutation(len(photos.shots)) for _ in range(10)]
      )
    cells[camera, 0] = own
  io.savemat(root / 'exp/rand_perm_cam.mat', {'rand_perm_cam': cells})


def _write_identities(root: Path, name: str, people: Sequence[int]) -> None:
  numbers = ','.join(str(person + 1) for person in people)
  pictures.write_text(root, name, [numbers])


_SYSU_TEST = (3803, 96, 2), (6775, 96, 4)
# Without the validation persons.
_SYSU_TRAIN = divided((None, 296, 6), *_SYSU_TEST)
# Wu et al., ICCV 2017: four visible and two infrared cameras.
# `cam1/0001/0001.jpg` is camera, person, image. The gallery of each trial is
# drawn from the visible test images.
SYSU_MM01 = Dataset(
  name='sysu-mm01',
  title='SYSU-MM01',
  read=_sysu_mm01,
  counts={
    'train': divided((34167, 395, 6), *_SYSU_TEST),
    'val': {**_SYSU_TRAIN, 'val': Count(None, 99, 6)},
    'drop': _SYSU_TRAIN,
  },
  protocol='sysu',
  infrared=True,
  page='the SYSU-MM01 page of A. Wu (Sun Yat-sen University), by agreement',
  miniature=_write_sysu_mm01,
  folders=('SYSU-MM01',),
  options={'val': ('train', 'val', 'drop')},
  note='published tables train on train and val together (395 persons)',
  named=r'(?P<camera>cam[1-6])/(?P<person>\d{4})/\d{4}\.jpg',
  telling=('cam3', 'cam6'),  # of infrared images
  as_photos='the images of cameras 3 and 6 are infrared in it, and are read as '
  'visible ones',
)


def _regdb(root: Path, trial: int, direction: str) -> list[Record]:
  records = []
  for part in ('train', 'test'):
    for modality, side in enumerate(('visible', 'thermal')):
      split = layout.side(direction, modality) if part == 'test' else part
      for name, *_ in layout.lines(root, f'idx/{part}_{side}_{trial}.txt'):
        # The label after the path is numbered anew in every list; the folder is
        # the person.
        (person,) = layout.parse(r'[^/]+/(\d+)/[^/]+', name, root)
        records.append(Record(name, person, modality + 1, modality, split))
  layout.require(root, (record.path for record in records))
  return records


def _write_regdb(root: Path, photos: Photos) -> None:
  names: dict[str, dict[int, list[str]]] = {}
  sides = {'visible': photos.visible, 'thermal': photos.infrared}
  for side, images in sides.items():
    names[side] = {}
    for person in photos.people:
      moments = images[person].reshape(-1, *images.shape[3:])[:10]
      names[side][person] = [
        f'{side.title()}/{person + 1}/person_{side[0]}_{k:05d}_{person + 1}.bmp'
        for k in range(len(moments))
      ]
      for name, pixels in zip(names[side][person], moments, strict=True):
        pictures.save(root, name, pixels)
  half = len(photos.people) // 2
  for trial in range(1, 11):
    order = np.random.default_rng(trial).permutation(photos.people).tolist()
    for part, people in dict(train=order[:half], test=order[half:]).items():
      for side in sides:
        lines = [
          f'{name} {label}'
          for label, person in enumerate(sorted(people))
          for name in names[side][person]
        ]
        pictures.write_text(root, f'idx/{part}_{side}_{trial}.txt', lines)


# Nguyen et al., Sensors 2017: one visible and one thermal camera.
# `idx/train_visible_1.txt` and similar files list the images of ten trials in
# lines such as `Visible/8/male_front_v_05344_1.bmp 0`.
REGDB = Dataset(
  name='regdb',
  title='RegDB',
  read=_regdb,
  counts={None: divided((4120, 206, 2), (2060, 206, 1), (2060, 206, 1))},
  protocol='regdb',
  infrared=True,
  page='the Dongguk Body-based Person Recognition Database page of Dongguk '
  'University',
  miniature=_write_regdb,
  folders=('RegDB',),
  options={'trial': tuple(range(1, 11)), 'direction': DIRECTIONS},
  note='train one model for every trial: another trial has its test persons',
  named=r'(visible|thermal)/\d+/[^/]+_[vt]_\d+_\d+\.bmp',
)

LLCM_SIDES = ('vis', 'nir')  # by modality


def _llcm(root: Path, direction: str) -> list[Record]:
  """Reads the data set; the camera is the place."""
  test = {*layout.identities(root, 'idx/test_id.txt')}
  records = []
  for modality, side in enumerate(LLCM_SIDES):
    for name, *_ in layout.lines(root, f'idx/train_{side}.txt'):
      person, camera = layout.parse(r'(\d+)_c(\d+)_.*\.[a-z]+', name, root)
      records.append(Record(name, person, camera, modality, 'train'))
  layout.require(root, (record.path for record in records))
  for modality, side in enumerate(LLCM_SIDES):
    split = layout.side(direction, modality)
    # Person and camera of the folders, as the published code reads them.
    for name, camera, person in layout.named(
      root, f'test_{side}', r'[^/]+/cam(\d)/(\d+)/[^/]+'
    ):
      if person in test:
        records.append(Record(name, person, camera, modality, split))
  return records


def _write_llcm(root: Path, photos: Photos) -> None:
  """Writes train and test of both modalities; infrared has no camera 3."""
  test = photos.halves()[1]
  sides = zip(LLCM_SIDES, (photos.visible, photos.infrared), strict=True)
  for side, images in sides:
    lines = []
    for person, camera, shot in photos.views(9):
      if side == 'nir' and camera == 2:
        continue
      number = f'{person + 1:04d}'
      name = f'{number}_c{camera + 1:02d}_s197010_f{shot:04d}_{side}.jpg'
      folder = f'{side}/{number}'
      if person in test:
        folder = f'test_{side}/cam{camera + 1}/{number}'
      else:
        lines.append(f'{folder}/{name} {person}')
      pictures.save(root, f'{folder}/{name}', images[person, camera, shot])
    pictures.write_text(root, f'idx/train_{side}.txt', sorted(lines))
  _write_identities(root, 'idx/test_id.txt', test)


# Zhang and Wang, CVPR 2023: nine places, in visible and near infrared.
# `idx/train_vis.txt` and `train_nir.txt` list training images such as
# `vis/0001/0001_c01_s197010_f7846_vis.jpg`; test images are in
# `test_vis/cam1/0004/` and `test_nir/...`. Both modalities use the same numbers
# for the places; no infrared image is of place 3.
LLCM = Dataset(
  name='llcm',
  title='LLCM',
  read=_llcm,
  counts={
    DIRECTIONS[0]: divided((30921, 713, 9), (7166, 351, 8), (8680, 351, 9)),
    DIRECTIONS[1]: divided((30921, 713, 9), (8680, 351, 9), (7166, 351, 8)),
  },
  protocol='llcm',
  infrared=True,
  page='the LLCM page of Y. Zhang and H. Wang, by agreement',
  miniature=_write_llcm,
  folders=('LLCM',),
  options={'direction': DIRECTIONS},
  note='its paper gives 13,909 test images, its lists hold 15,846',
  named=r'\d{4}_c\d\d_s\d+_f\d+_(vis|nir)\.jpg',
)
