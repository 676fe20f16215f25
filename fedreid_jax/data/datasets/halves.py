"""Small data sets of which a draw tests some persons.

With `split=images`, the default, the protocol draws ten halves of the persons.
The other splits are of the papers that train on a part of the persons and test
on all images of the others: queries from one view, gallery from the other.

`split=half` is the split of Zhuang et al. (MM 2020, Table 1) for half of the
persons. Their draw had no seed and cannot be reproduced; here the same
procedure has a seed, the option `trial`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  JUNK,
  Count,
  Dataset,
  Record,
  divided,
)

TRIALS = tuple(range(10))
OPTIONS = {'split': ('images', 'half'), 'trial': TRIALS}
SIDES = {1: 'query', 2: 'gallery'}  # by camera


def _half(
  images: Callable[[Path], list[Record]],
  people: int,
  tested: int,
  has_cameras: bool = True,
) -> Callable[..., list[Record]]:
  """Returns a reader; `split=half` tests on `tested` of `people` persons."""

  def read(root: Path, split: str, trial: int) -> list[Record]:
    records = images(root)
    if split == 'images':
      return records
    if not has_cameras:
      records = _two_views(records, trial)
    everyone = sorted({record.person for record in records})
    # The published number is fixed; a miniature is divided in halves.
    known = len(everyone) == people
    num_train = people - tested if known else len(everyone) // 2
    rng = np.random.default_rng([trial, 0])
    train = rng.permutation(everyone)[:num_train].tolist()
    return _divide(records, set(train), 'train')

  return read


def _divide(
  records: Sequence[Record], people: set[int], split: str
) -> list[Record]:
  """Gives persons a split, and all others query (camera 1) and gallery."""
  return [
    r._replace(split=split if r.person in people else SIDES[r.camera])
    for r in records
  ]


def _two_views(records: Sequence[Record], trial: int) -> list[Record]:
  """Makes a random half of each person's cameras, rounded down, camera 1."""
  rng = np.random.default_rng([trial, 1])
  views: dict[int, set[int]] = defaultdict(set)
  for record in records:
    views[record.person].add(record.camera)
  first = {
    person: set(rng.permutation(sorted(own))[: len(own) // 2].tolist())
    for person, own in sorted(views.items())
  }
  return [
    r._replace(camera=1 if r.camera in first[r.person] else 2) for r in records
  ]


def _numbered(
  folder: str, pattern: str, camera: Callable[[int], int]
) -> Callable[[Path], list[Record]]:
  """Reads images named by person and number; `camera` takes the number."""
  return lambda root: [
    Record(name, person, camera(image), 0, 'images')
    for name, person, image in layout.named(root, folder, pattern)
  ]


def _write_cuhk01(root: Path, photos: Photos) -> None:
  """Writes images 1 and 2 of camera 1, then 3 and 4 of camera 2."""
  for person in photos.people:
    for camera, shot in np.ndindex(2, 2):
      name = f'{person + 1:04d}{2 * camera + shot + 1:03d}.png'
      pictures.save(root, name, photos.visible[person, camera, shot])


# Li et al., ACCV 2012: `campus/0001001.png` is person and image; images 1 and 2
# are of camera 1, images 3 and 4 of camera 2.
CUHK01 = Dataset(
  name='cuhk01',
  title='CUHK01',
  read=_half(
    _numbered('', r'(\d{4})(00[1-4])\.png', lambda image: (image + 1) // 2),
    971,
    486,
  ),
  counts={
    'images': {'images': Count(3884, 971, 2)},
    'half': divided((1940, 485, 2), (972, 486, 1), (972, 486, 1)),
  },
  protocol='single_shot',
  page="the 'CUHK Person Re-identification Datasets' page of the Chinese "
  'University of Hong Kong',
  miniature=_write_cuhk01,
  folders=('campus', 'CUHK01'),
  options=OPTIONS,
  named=r'^\d{4}00[1-4]\.png',
)


def _pairs(pattern: str) -> Callable[[Path], list[Record]]:
  """Reads `cam_a` and `cam_b`; the archives have notes or masks in others."""

  def read(root: Path) -> list[Record]:
    return [
      Record(name, person, camera, 0, 'images')
      for camera, folder in ((1, 'cam_a'), (2, 'cam_b'))
      for name, person in layout.named(root, folder, pattern)
    ]

  return read


def _write_pairs(*names: str, first: int = 0) -> Callable[[Path, Photos], None]:
  """Writes an image by each camera; persons are numbered from `first`."""

  def write(root: Path, photos: Photos) -> None:
    for person in photos.people:
      for camera, name in enumerate(names):
        pixels = photos.visible[person, camera, 0]
        pictures.save(root, name.format(person + first), pixels)

  return write


# Gray and Tao, ECCV 2008: `cam_a/000_45.bmp` is person and angle.
VIPER = Dataset(
  name='viper',
  title='VIPeR',
  read=_half(_pairs(r'(\d+)_\d+\.bmp'), 632, 316),
  counts={
    'images': {'images': Count(1264, 632, 2)},
    'half': divided((632, 316, 2), (316, 316, 1), (316, 316, 1)),
  },
  protocol='single_shot',
  page='the VIPeR page of D. Gray (University of California, Santa Cruz)',
  miniature=_write_pairs('cam_a/{:03d}_0.bmp', 'cam_b/{:03d}_90.bmp'),
  folders=('VIPeR', 'VIPeR.v1.0'),
  options=OPTIONS,
  named=r'(?P<camera>cam_[ab])/(?P<person>\d{3})_\d+\.bmp',
  as_photos='its two folders are cameras',
)


# Roth et al., "Mahalanobis distance learning for person re-identification",
# 2014: `cam_a/img_001.png` is the person, with one image by each camera.
PRID450S = Dataset(
  name='prid450s',
  title='PRID 450S',
  read=_half(_pairs(r'img_(\d+)\.png'), 450, 225),
  counts={
    'images': {'images': Count(900, 450, 2)},
    'half': divided((450, 225, 2), (225, 225, 1), (225, 225, 1)),
  },
  protocol='single_shot',
  page='the PRID 450S page of Graz University of Technology',
  miniature=_write_pairs(
    'cam_a/img_{:03d}.png', 'cam_b/img_{:03d}.png', first=1
  ),
  folders=('PRID_450S', 'PRID-450S'),
  options=OPTIONS,
  named=r'cam_[ab]/img_\d+\.png',
)


def _write_ilids(root: Path, photos: Photos) -> None:
  for person in photos.people:
    shots = photos.visible[person, :2].reshape(-1, *photos.visible.shape[3:])
    for number, pixels in enumerate(shots, 1):
      pictures.save(root, f'Persons/{person + 1:04d}{number:03d}.jpg', pixels)


# Zheng et al., BMVC 2009: `Persons/0001001.jpg` is person and image. Each image
# counts as a view: with one camera for all, the camera rule would exclude every
# match. The federated benchmark calls this data set iLIDS-VID, but its 119
# persons are the persons of this data set and not of the videos.
ILIDS = Dataset(
  name='qmul-ilids',
  title='QMUL i-LIDS',
  read=_half(
    _numbered('Persons', r'(\d{4})(\d{3})\.jpg', lambda image: image),
    119,
    60,
    has_cameras=False,
  ),
  counts={
    'images': {'images': Count(476, 119)},
    'half': divided((None, 59, 2), (None, 60, 1), (None, 60, 1)),
  },
  protocol='single_shot',
  page='the person re-identification page of W.-S. Zheng and S. Gong (Queen '
  'Mary University of London)',
  miniature=_write_ilids,
  folders=('i-LIDS_Pedestrian', 'QMUL-iLIDS'),
  options=OPTIONS,
  note="the papers' 'iLIDS-VID' with 119 persons is this set",
  named=r'Persons/\d{7}\.jpg',
)


def _3dpes(root: Path) -> list[Record]:
  found: list[tuple[str, int, str]] = []
  sequences: dict[int, set[str]] = defaultdict(set)
  for name in layout.images(root, 'RGB'):
    match = re.match(r'(\d+)_([^_]+)', name.rpartition('/')[2])
    if match is None:
      raise errors.DataError(
        f'{name!r} is not person_sequence_...', str(root), 'remove or rename it'
      )
    found.append((name, int(match[1]), match[2]))
    sequences[int(match[1])].add(match[2])
  # A sequence is not a camera that several persons have in common, so the
  # sequences are numbered within each person.
  return [
    Record(name, person, 1 + sorted(sequences[person]).index(own), 0, 'images')
    for name, person, own in found
  ]


def _write_3dpes(root: Path, photos: Photos) -> None:
  """Writes two sequences of each person, but only one of the last person."""
  for person, camera, shot in photos.views(2):
    if not camera or person != photos.people[-1]:
      name = f'{person + 1}_{10 + camera}_FRAME_{25 * shot}_RGB.bmp'
      pictures.save(root, f'RGB/{name}', photos.visible[person, camera, shot])


# Baltieri et al., J-HGBU 2011: `RGB/1_2_FRAME_25_RGB.bmp` is person, sequence,
# frame, by eight cameras that the names do not give.
PES3D = Dataset(
  name='3dpes',
  title='3DPeS',
  read=_half(_3dpes, 193, 100, has_cameras=False),
  counts={
    'images': {'images': Count(1012, 193)},
    # Persons of one sequence have no query.
    'half': divided((None, 93, 2), (None, None, 1), (None, 100, 1)),
  },
  protocol='single_shot',
  page='the 3DPeS page of ImageLab, University of Modena and Reggio Emilia',
  miniature=_write_3dpes,
  folders=('3DPeS', '3dpes'),
  options=OPTIONS,
  note='the archive numbers 193 persons, papers give 192',
  named=r'(?P<person>\d+)_\d+_FRAME_\d+_RGB\.bmp',
  as_photos='cameras are not in the names',
)

PRID_COMMON = 200  # persons 1 to 200 are the same in both cameras
PRID_MOST = 10  # training images per track in the federated benchmark
PRID_FOLDERS = {1: 'cam_a', 2: 'cam_b'}


def _prid2011(root: Path, split: str, trial: int) -> list[Record]:
  """Reads single shots; `split=half` trains on tracks (multi shots)."""
  single = {
    camera: {
      person: name
      for name, person in layout.named(
        root, f'single_shot/{folder}', r'person_(\d+)\.png'
      )
    }
    for camera, folder in PRID_FOLDERS.items()
  }
  common = sorted(p for p in single[1] if p <= PRID_COMMON and p in single[2])
  rng = np.random.default_rng(trial)
  tested, sides, others = common, dict.fromkeys(SIDES, 'images'), 'distractor'
  if split == 'half':
    tested = sorted(rng.permutation(common)[: len(common) // 2].tolist())
    sides, others = SIDES, SIDES[2]
  records = [
    Record(single[camera][person], person, camera, 0, side)
    for camera, side in sides.items()
    for person in tested
  ]
  # Camera A has other persons with the numbers above 200 of camera B.
  records += [
    Record(name, 1000 + person, 2, 0, others)
    for person, name in single[2].items()
    if person > PRID_COMMON
  ]
  if split == 'images':
    return records
  for camera, folder in PRID_FOLDERS.items():
    tracks: dict[int, list[str]] = defaultdict(list)
    for name, person in layout.named(
      root, f'multi_shot/{folder}', r'.*/person_(\d+)/[^/]+'
    ):
      tracks[person].append(name)
    for person, track in sorted(tracks.items()):
      # The persons of camera B only are in the gallery.
      if person in tested or (camera == 2 and person > PRID_COMMON):
        continue
      chosen = sorted(rng.permutation(len(track))[:PRID_MOST])
      records += [Record(track[k], person, camera, 0, 'train') for k in chosen]
  return records


def _write_prid2011(root: Path, photos: Photos) -> None:
  """Writes single and multi shots; both cameras show half of the persons."""
  in_both = photos.halves()[0]
  for person, camera, shot in photos.views(2):
    # Of the others, one half is seen by camera A and one by camera B.
    if person in in_both or person % 2 == camera:
      number = person + 1 if person in in_both else PRID_COMMON + 1 + person
      name = f'{PRID_FOLDERS[camera + 1]}/person_{number:04d}'
      pixels = photos.visible[person, camera, shot]
      if shot == 0:
        pictures.save(root, f'single_shot/{name}.png', pixels)
      pictures.save(root, f'multi_shot/{name}/{shot + 1:04d}.png', pixels)


# Hirzer et al., SCIA 2011: `single_shot/cam_a/person_0001.png` is the image of
# a person, of 385 in camera A and 749 in camera B;
# `multi_shot/cam_a/person_0001/0001.png` is an image of a track.
PRID2011 = Dataset(
  name='prid2011',
  title='PRID 2011',
  read=_prid2011,
  counts={
    'images': {
      'images': Count(400, 200, 2),
      'distractor': Count(549, 549, 1),
    },
    'half': divided((None, 285, 2), (100, 100, 1), (649, 649, 1)),
  },
  protocol='single_shot',
  page='the PRID 2011 page of the Institute for Computer Graphics and Vision, '
  'Graz University of Technology',
  miniature=_write_prid2011,
  folders=('prid_2011', 'PRID2011'),
  options=OPTIONS,
  note='half a split trains on about 3,744 images: which ones is drawn',
  named=r'cam_[ab]/person_\d+(/\d+)?\.png',
)

CAVIAR_TESTED = 36  # persons of `split=views`; fewer if fewer have both views
_caviar_images = _numbered(
  '', r'(\d{4})(\d{3})\.jpg', lambda image: 1 if image <= 10 else 2
)


def _caviar(root: Path, split: str, trial: int) -> list[Record]:
  """Reads all images, or 36 persons of both views and others as 'train'."""
  records = _caviar_images(root)
  if split == 'images':
    return records
  first, second = (
    {r.person for r in records if r.camera == camera} for camera in SIDES
  )
  # The journal version of FedReIDBench (section 5.4, table 5) draws 36 persons
  # seen in both views and ranks all images of one view for all images of the
  # other. It does not print the seed of its draw.
  rng = np.random.default_rng([trial, 0])
  tested = rng.permutation(sorted(first & second))[:CAVIAR_TESTED].tolist()
  return _divide(records, (first | second) - {*tested}, 'train')


def _write_caviar(root: Path, photos: Photos) -> None:
  """Writes images from 1 of camera 1 and from 11 of camera 2."""
  for person, camera, shot in photos.views(2):
    if not camera or person != photos.people[-1]:
      name = f'{person + 1:04d}{10 * camera + shot + 1:03d}.jpg'
      pictures.save(root, name, photos.visible[person, camera, shot])


# Cheng et al., BMVC 2011: `0001001.jpg` is person and image. Of 72 persons, 50
# have ten images of each camera, one camera after the other, and 22 have ten of
# one.
CAVIAR = Dataset(
  name='caviar4reid',
  title='CAVIAR4REID',
  read=_caviar,
  counts={
    'images': {'images': Count(1220, 72, 2)},
    'views': divided((500, 36, 2), (360, 36, 1), (360, 36, 1)),
  },
  protocol='single_shot',
  page='the CAVIAR4REID page of L. Bazzani (University of Verona)',
  miniature=_write_caviar,
  folders=('CAVIAR4REID', 'CAVIARa'),
  options={'split': ('images', 'views'), 'trial': TRIALS},
  note='22 of 72 persons are seen by one camera only',
  named=r'^\d{7}\.jpg',
)

GRID_PARTITIONS = 'features_and_partitions.mat'


def _grid(root: Path, split: str, trial: int) -> list[Record]:
  """Reads all images, a published half ('official'), or 250 persons by view."""
  # 'views' is of the journal version of FedReIDBench (section 5.4, table 5). It
  # does not train on this data set, and tests on all 250 persons, one view
  # against the other. It does not mention whether the distractors are ranked.
  # Here they are, as in all other tests of this data set.
  train = _grid_train(root, trial) if split == 'official' else ()
  records = []
  for side, folder in (('query', 'probe'), ('gallery', 'gallery')):
    for r in layout.from_names(
      root, folder, r'(\d+)_(\d+)_.*\.jpe?g', side, range(1, 9)
    ):
      if split == 'images':
        r = r._replace(split='images' if r.person else 'distractor')
      elif r.person in train:
        r = r._replace(split='train')
      records.append(r)
  return records


def _grid_train(root: Path, trial: int) -> set[int]:
  cells = layout.matlab(root, GRID_PARTITIONS, 'trainIdxAll').ravel()
  try:
    # A struct of index tables; the third is of persons.
    return {int(person) for person in cells[trial][0, 0][2].ravel()}
  except (IndexError, TypeError, ValueError) as error:
    raise errors.DataError(
      f'no partition {trial}', str(root / GRID_PARTITIONS), layout.HELP
    ) from error


def _write_grid(root: Path, photos: Photos) -> None:
  from scipy import io

  *pairs, last = photos.people
  tail = '107_32_106_221.jpeg'
  for person in pairs:
    for side, folder in enumerate(('probe', 'gallery')):
      camera = (person + side) % len(photos.cameras(8))
      pictures.save(
        root,
        f'{folder}/{person + 1:04d}_{camera + 1}_25004_{tail}',
        photos.visible[person, camera, side],
      )
  for camera in photos.cameras(3):
    name = f'gallery/0000_{camera + 1}_{camera:05d}_{tail}'
    pictures.save(root, name, photos.visible[last, camera, 0])
  partitions = np.empty((1, 10), object)
  fields = [('probe', object), ('gallery', object), ('people', object)]
  for trial in range(10):
    people = np.random.default_rng(trial).permutation(pairs)[: len(pairs) // 2]
    partitions[0, trial] = np.array(
      [[(np.zeros(1), np.zeros(1), np.sort(people)[None] + 1)]], fields
    )
  io.savemat(root / GRID_PARTITIONS, {'trainIdxAll': partitions})


# Loy et al., CVPR 2009: 250 pairs, 775 distractors, 8 cameras. A name such as
# `probe/0001_1_25004_107_32_106_221.jpeg` begins with person and camera.
GRID = Dataset(
  name='grid',
  title='QMUL GRID',
  read=_grid,
  counts={
    'images': {'images': Count(500, 250), 'distractor': Count(775, 1)},
    'official': divided((250, 125), (125, 125), (900, 126)),
    'views': {'query': Count(250, 250), 'gallery': Count(1025, 251)},
  },
  protocol='single_shot',
  page='the QMUL underGround Re-IDentification page of C. C. Loy',
  miniature=_write_grid,
  folders=('underground_reid', 'GRID'),
  options={'split': ('images', 'official', 'views'), 'trial': TRIALS},
  nobody=(JUNK, 0),
  note='person 0 stands for 775 distractors in every gallery',
  named=r'(probe|gallery)/\d{4}_\d_\d+_[^/]+\.jpe?g',
)
