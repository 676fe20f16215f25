"""SYSU-MM01, RegDB and LLCM: the same persons, visible and infrared."""

from pathlib import Path

import numpy as np
from scipy import io

from fedreid_jax.data.miniatures import photos as pictures
from fedreid_jax.data.miniatures.photos import Photos


def write_sysu_mm01(root: Path, photos: Photos) -> None:
  """Writes six cameras, the lists of persons and the gallery permutations."""
  infrared = (3, 6)
  for camera in range(1, 7):
    side = photos.infrared if camera in infrared else photos.visible
    for person in photos.people:
      for shot in photos.shots:
        pictures.save(
          root,
          f'cam{camera}/{person + 1:04d}/{shot + 1:04d}.jpg',
          side[person, camera - 1, shot],
        )
  train, test = photos.halves()
  val = train[-1:]
  for split, people in dict(train=train[:-1], val=val, test=test).items():
    numbers = ','.join(str(person + 1) for person in people)
    pictures.write_text(root, f'exp/{split}_id.txt', [numbers])
  rng = np.random.default_rng(0)
  cells = np.empty((6, 1), object)
  for camera in range(6):
    own = np.empty((len(photos.people), 1), object)
    for person in photos.people:
      own[person, 0] = np.stack(
        [1 + rng.permutation(len(photos.shots)) for _ in range(10)]
      )
    cells[camera, 0] = own
  io.savemat(root / 'exp/rand_perm_cam.mat', {'rand_perm_cam': cells})


def write_regdb(root: Path, photos: Photos) -> None:
  """Writes ten images of a person in both modalities and ten trials."""
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


def write_llcm(root: Path, photos: Photos) -> None:
  """Writes train and test of both modalities; infrared has no camera 3."""
  train, test = photos.halves()
  sides = {'vis': photos.visible, 'nir': photos.infrared}
  for side, images in sides.items():
    lines = []
    for camera in photos.cameras(9):
      if side == 'nir' and camera == 2:
        continue
      for person in photos.people:
        for shot in photos.shots:
          number = f'{person + 1:04d}'
          name = f'{number}_c{camera + 1:02d}_s197010_f{shot:04d}_{side}.jpg'
          folder = f'{side}/{number}'
          if person in test:
            folder = f'test_{side}/cam{camera + 1}/{number}'
          else:
            lines.append(f'{folder}/{name} {person}')
          pictures.save(root, f'{folder}/{name}', images[person, camera, shot])
    pictures.write_text(root, f'idx/train_{side}.txt', sorted(lines))
  numbers = ','.join(str(person + 1) for person in test)
  pictures.write_text(root, 'idx/test_id.txt', [numbers])
