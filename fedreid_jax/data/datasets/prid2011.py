"""PRID 2011 (Hirzer et al., SCIA 2011): two cameras, 200 persons in both.

`single_shot/cam_a/person_0001.png` is the image of a person, of 385 in camera A
and 749 in camera B. Equal numbers are the same person from 1 to 200 only.
`multi_shot/cam_a/person_0001/0001.png` is an image of a track of this person.
"""

from pathlib import Path

import numpy as np

from fedreid_jax.data.datasets import halves, layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small

COMMON = 200
MOST = 10  # training images per track in the federated benchmark


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set: single shots, or the federated benchmark's half."""
  single = {
    camera: _people(root, layout.images(root, f'single_shot/{folder}'))
    for camera, folder in ((1, 'cam_a'), (2, 'cam_b'))
  }
  common = sorted(p for p in single[1] if p <= COMMON and p in single[2])
  others = [p for p in single[2] if p > COMMON]
  if split == 'images':
    records = [
      Record(single[camera][p], p, camera, 0, 'images')
      for camera in (1, 2)
      for p in common
    ]
    return records + _of_camera_b(single[2], others, 'distractor')
  rng = np.random.default_rng(trial)
  test = sorted(rng.permutation(common)[: len(common) // 2].tolist())
  records = [
    Record(single[camera][p], p, camera, 0, side)
    for camera, side in ((1, 'query'), (2, 'gallery'))
    for p in test
  ]
  records += _of_camera_b(single[2], others, 'gallery')
  for camera, folder in ((1, 'cam_a'), (2, 'cam_b')):
    tracks: dict[int, list[str]] = {}
    for name in layout.images(root, f'multi_shot/{folder}'):
      person = layout.parse(r'person_(\d+)', name.rpartition('/')[0], root)[0]
      tracks.setdefault(person, []).append(name)
    for person, track in sorted(tracks.items()):
      # The persons of camera B only are in the gallery.
      if person in test or (camera == 2 and person > COMMON):
        continue
      chosen = rng.permutation(len(track))[:MOST]
      records += [
        Record(track[k], person, camera, 0, 'train') for k in sorted(chosen)
      ]
  return records


def _people(root: Path, names: list[str]) -> dict[int, str]:
  return {
    layout.parse(r'person_(\d+)\.png', name, root)[0]: name for name in names
  }


def _of_camera_b(names, people, split: str) -> list[Record]:
  """Returns records of persons whom only camera B has seen."""
  # Camera A has other persons with these numbers.
  return [Record(names[p], 1000 + p, 2, 0, split) for p in people]


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(400, 200, 2), 'distractor': Count(549, 549, 1)}
  return {
    'train': Count(None, 285, 2),
    'query': Count(100, 100, 1),
    'gallery': Count(649, 649, 1),
  }


DATASET = Dataset(
  name='prid2011',
  title='PRID 2011',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the PRID 2011 page of the Institute for Computer Graphics and Vision, '
  'Graz University of Technology',
  miniature=small.write_prid2011,
  folders=('prid_2011', 'PRID2011'),
  options=halves.OPTIONS,
  note='half a split trains on about 3,744 images: which ones is drawn',
)
