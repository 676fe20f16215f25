"""CUHK01, PRID 2011, VIPeR, 3DPeS, i-LIDS, iLIDS-VID, CAVIAR4REID and GRID."""

from pathlib import Path

import numpy as np
from scipy import io

from fedreid_jax.data.miniatures import photos as pictures
from fedreid_jax.data.miniatures.photos import Photos


def write_cuhk01(root: Path, photos: Photos) -> None:
  """Writes images 1 and 2 of camera 1, then 3 and 4 of camera 2."""
  for person in photos.people:
    for camera, shot in np.ndindex(2, 2):
      name = f'{person + 1:04d}{2 * camera + shot + 1:03d}.png'
      pictures.save(root, name, photos.visible[person, camera, shot])


def write_prid2011(root: Path, photos: Photos) -> None:
  """Writes single and multi shots: half of the persons are in both cameras."""
  shared, others = photos.halves()
  numbers = {p: p + 1 for p in shared} | {p: 201 + p for p in others}
  for person, number in numbers.items():
    # Of the others, one half is seen by camera A and one by camera B.
    only = None if person in shared else person % 2
    for camera, folder in enumerate(('cam_a', 'cam_b')):
      if only not in (None, camera):
        continue
      track = photos.visible[person, camera]
      pictures.save(
        root, f'single_shot/{folder}/person_{number:04d}.png', track[0]
      )
      for shot, pixels in enumerate(track, 1):
        pictures.save(
          root,
          f'multi_shot/{folder}/person_{number:04d}/{shot:04d}.png',
          pixels,
        )


def write_viper(root: Path, photos: Photos) -> None:
  """Writes one image of each person in cam_a and cam_b."""
  for person in photos.people:
    for camera, (folder, angle) in enumerate((('cam_a', 0), ('cam_b', 90))):
      pictures.save(
        root,
        f'{folder}/{person:03d}_{angle}.bmp',
        photos.visible[person, camera, 0],
      )


def write_3dpes(root: Path, photos: Photos) -> None:
  """Writes two sequences of most persons and one of the last."""
  for person in photos.people:
    for camera in range(1 if person == photos.people[-1] else 2):
      for shot in photos.shots:
        name = f'{person + 1}_{10 + camera}_FRAME_{25 * shot}_RGB.bmp'
        pictures.save(root, f'RGB/{name}', photos.visible[person, camera, shot])


def write_ilids(root: Path, photos: Photos) -> None:
  """Writes a few images of each person, of cameras nobody noted."""
  for person in photos.people:
    shots = photos.visible[person, :2].reshape(-1, *photos.visible.shape[3:])
    for number, pixels in enumerate(shots, 1):
      pictures.save(root, f'Persons/{person + 1:04d}{number:03d}.jpg', pixels)


def write_ilids_vid(root: Path, photos: Photos) -> None:
  """Writes tracks, single images and ten orders of the persons."""
  base = 'i-LIDS-VID'
  for person in photos.people:
    for camera in (1, 2):
      folder = f'cam{camera}/person{person + 1:03d}'
      name = f'cam{camera}_person{person + 1:03d}'
      for shot in photos.shots:
        pixels = photos.visible[person, camera - 1, shot]
        pictures.save(
          root, f'{base}/sequences/{folder}/{name}_{shot + 1:05d}.png', pixels
        )
      pictures.save(
        root,
        f'{base}/images/{folder}/{name}.png',
        photos.visible[person, camera - 1, 0],
      )
  rng = np.random.default_rng(0)
  orders = np.stack([1 + rng.permutation(photos.people) for _ in range(10)])
  folder = root / 'train-test people splits'
  folder.mkdir(parents=True)
  io.savemat(folder / 'train_test_splits_ilidsvid.mat', {'ls_set': orders})


def write_caviar(root: Path, photos: Photos) -> None:
  """Writes images from 1 of camera 1 and from 11 of camera 2."""
  for person in photos.people:
    for camera in range(1 if person == photos.people[-1] else 2):
      for shot in photos.shots:
        name = f'{person + 1:04d}{10 * camera + shot + 1:03d}.jpg'
        pictures.save(root, name, photos.visible[person, camera, shot])


def write_grid(root: Path, photos: Photos) -> None:
  """Writes pairs of probe and gallery, strangers, and ten partitions."""
  *pairs, last = photos.people
  for person in pairs:
    for side, folder in enumerate(('probe', 'gallery')):
      camera = (person + side) % len(photos.cameras(8))
      pictures.save(
        root,
        f'{folder}/{person + 1:04d}_{camera + 1}_25004_107_32_106_221.jpeg',
        photos.visible[person, camera, side],
      )
  for camera in photos.cameras(3):
    pictures.save(
      root,
      f'gallery/0000_{camera + 1}_{camera:05d}_107_32_106_221.jpeg',
      photos.visible[last, camera, 0],
    )
  partitions = np.empty((1, 10), object)
  fields = [('probe', object), ('gallery', object), ('people', object)]
  for trial in range(10):
    people = np.random.default_rng(trial).permutation(pairs)[: len(pairs) // 2]
    partitions[0, trial] = np.array(
      [[(np.zeros(1), np.zeros(1), np.sort(people)[None] + 1)]], fields
    )
  io.savemat(root / 'features_and_partitions.mat', {'trainIdxAll': partitions})
