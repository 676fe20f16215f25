"""Market-1501, DukeMTMC-reID, MSMT17, CUHK02, CUHK-SYSU and a manifest."""

import csv
from pathlib import Path

import numpy as np
from scipy import io

from fedreid_jax.data.miniatures import photos as pictures
from fedreid_jax.data.miniatures.photos import Photos


def write_market1501(root: Path, photos: Photos) -> None:
  """Writes bounding_box_train, query and bounding_box_test, with junk."""

  def save(folder: str, person: int, number: int, camera: int, shot: int):
    name = f'{number:04d}' if number >= 0 else '-1'
    pictures.save(
      root,
      f'{folder}/{name}_c{camera + 1}s1_{1000 * person + shot:06d}_01.jpg',
      photos.visible[person, camera, shot],
    )

  _write_boxes(photos, 6, save)
  last = photos.people[-1]
  for camera, shot in np.ndindex(2, len(photos.shots)):
    save('bounding_box_test', last, 0 if camera else -1, camera, shot)


def write_dukemtmc(root: Path, photos: Photos) -> None:
  """Writes bounding_box_train, query and bounding_box_test."""

  def save(folder: str, person: int, number: int, camera: int, shot: int):
    pictures.save(
      root,
      f'{folder}/{number:04d}_c{camera + 1}_f{1000 * person + shot:07d}.jpg',
      photos.visible[person, camera, shot],
    )

  _write_boxes(photos, 8, save)


def _write_boxes(photos: Photos, cameras: int, save) -> None:
  """Half of the persons train; of the others but one, first shots ask."""
  train, test = photos.halves()
  for camera in photos.cameras(cameras):
    for shot in photos.shots:
      for person in train:
        save('bounding_box_train', person, person + 1, camera, shot)
      for person in test[:-1]:
        folder = 'bounding_box_test' if shot else 'query'
        save(folder, person, person + 1, camera, shot)


def write_msmt17(root: Path, photos: Photos) -> None:
  """Writes train, test and the four lists, as version 1 has them."""
  lists = {'train': [], 'val': [], 'query': [], 'gallery': []}
  for folder, people in zip(('train', 'test'), photos.halves(), strict=True):
    for label, person in enumerate(people):
      for camera in photos.cameras(15):
        for shot in photos.shots:
          name = f'{label:04d}_{shot:03d}_{camera + 1:02d}_0303morning_0015_0'
          path = f'{label:04d}/{name}.jpg'
          pixels = photos.visible[person, camera, shot]
          pictures.save(root, f'{folder}/{path}', pixels)
          if folder == 'train':
            split = 'val' if shot and not camera else 'train'
          else:
            split = 'gallery' if shot else 'query'
          lists[split].append(f'{path} {label}')
  for split, lines in lists.items():
    pictures.write_text(root, f'list_{split}.txt', lines)


def write_cuhk02(root: Path, photos: Photos) -> None:
  """Writes five pairs of cameras, persons counted anew in each."""
  for person in photos.people:
    for camera in photos.cameras(2):
      for shot in photos.shots:
        pair, number = person % 5 + 1, person // 5 + 1
        pictures.save(
          root,
          f'Dataset/P{pair}/cam{camera + 1}/{number:03d}_{shot + 1:02d}_.png',
          photos.visible[person, camera, shot],
        )


def write_cuhk_sysu(root: Path, photos: Photos) -> None:
  """Writes scenes of two persons and the annotation of both halves."""
  height, width = photos.visible.shape[3:5]
  scenes: dict[int, list[dict]] = {person: [] for person in photos.people}
  pairs = list(zip(photos.people[::2], photos.people[1::2], strict=False))
  for number, (camera, two) in enumerate(
    (camera, two) for two in pairs for camera in photos.cameras(3)
  ):
    scene = np.concatenate([photos.visible[p, camera, 0] for p in two], 1)
    name = f's{number + 1}.jpg'
    pictures.save(root, f'Image/SSM/{name}', scene)
    for place, person in enumerate(two):
      box = np.array([[place * width, 0, width, height]], np.int32)
      scenes[person].append({'imname': name, 'idlocate': box, 'ishard': 0})
  train, test = ([p for p in half if scenes[p]] for half in photos.halves())
  folder = root / 'annotation/test/train_test'
  folder.mkdir(parents=True)
  people = np.empty((len(train), 1), object)
  for row, person in enumerate(train):
    people[row, 0] = {
      'idname': f'p{person + 1}',
      'nAppear': len(scenes[person]),
      'scene': _structs(scenes[person]),
    }
  io.savemat(folder / 'Train.mat', {'Train': people})
  elsewhere = {'idlocate': np.zeros((0, 0)), 'ishard': np.zeros((0, 0))}
  tests = []
  for person in test:
    first, *others = scenes[person]
    stranger = scenes[test[test.index(person) - 2]][0]['imname']
    others.append({'imname': stranger, **elsewhere})
    query = {**first, 'idname': f'p{person + 1}'}
    tests.append({'Query': query, 'Gallery': _structs(others)})
  io.savemat(folder / 'TestG50.mat', {'TestG50': _structs(tests)})


def _structs(rows: list[dict]) -> np.ndarray:
  """Returns a MATLAB struct array, one row of it."""
  array = np.empty((1, len(rows)), [(name, object) for name in rows[0]])
  for place, row in enumerate(rows):
    array[0, place] = tuple(row.values())
  return array


def write_csv(root: Path, photos: Photos) -> None:
  """Writes images and manifest.csv, with words for identities."""
  rows = []
  train = photos.halves()[0]
  for person in photos.people:
    for camera in photos.cameras(2):
      for shot in photos.shots:
        path = f'images/person{person}/{camera}-{shot}.png'
        pictures.save(root, path, photos.visible[person, camera, shot])
        split = 'gallery' if shot else 'query'
        split = 'train' if person in train else split
        rows.append(
          (path, f'person{person}', f'door{camera}', 'visible', split)
        )
  with open(root / 'manifest.csv', 'w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(('path', 'identity', 'camera', 'modality', 'split'))
    writer.writerows(rows)
