"""CUHK03 and CIFAR-10, whose images are not files of their own."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import io

from fedreid_jax.data.datasets import cifar10, cuhk03, pickled
from fedreid_jax.data.miniatures.photos import Photos

PAIRS = 5
IMAGES = 10  # cells of a person, five of each camera


def write_cuhk03(root: Path, photos: Photos) -> None:
  """Writes cuhk-03.mat, as HDF5, and the split files of the new protocol."""
  import h5py

  shots = min(len(photos.shots), IMAGES // 2)
  (root / 'cuhk03_release').mkdir(parents=True)
  with h5py.File(root / 'cuhk03_release/cuhk-03.mat', 'w') as mat:
    for boxes in cuhk03.BOXES:
      # Boxes drawn by hand are a little tighter.
      edge = 1 if boxes == 'labeled' else 0
      tables = [
        _table(mat, photos.visible[pair::PAIRS, :2, :shots], edge)
        for pair in range(PAIRS)
      ]
      _cell(mat, boxes, np.array(tables, object)[None])
    half = len(photos.people) // 2
    sets = []
    for trial in range(20):
      test = np.roll(np.arange(len(photos.people)), trial)[:half]
      rows = np.stack([test % PAIRS + 1, test // PAIRS + 1]).astype(float)
      sets.append(mat.create_dataset(f'#refs#/set{trial}', data=rows).ref)
    _cell(mat, 'testsets', np.array(sets, object)[None])
  for boxes in cuhk03.BOXES:
    _write_config(root, boxes, photos, shots)


def _table(mat: Any, images: np.ndarray, edge: int) -> Any:
  """Writes the persons of a pair of cameras, returns a reference to them."""
  cells = np.empty((IMAGES, len(images)), object)
  for image, person in np.ndindex(cells.shape):
    camera, shot = divmod(image, IMAGES // 2)
    if shot < images.shape[2]:
      pixels = images[person, camera, shot][edge:, edge:]
      data, empty = np.ascontiguousarray(pixels.T), False
    else:
      data, empty = np.zeros(2, np.uint64), True
    cell = mat.create_dataset(f'#refs#/{len(mat.get("#refs#", ()))}', data=data)
    if empty:
      cell.attrs['MATLAB_empty'] = 1
    cells[image, person] = cell.ref
  return _cell(mat, f'#refs#/{len(mat["#refs#"])}', cells)


def _cell(mat: Any, name: str, refs: np.ndarray) -> Any:
  import h5py

  table = mat.create_dataset(name, refs.shape, h5py.ref_dtype)
  for place in np.ndindex(refs.shape):
    table[place] = refs[place]
  return table.ref


def _write_config(root: Path, boxes: str, photos: Photos, shots: int) -> None:
  names, labels, cameras = [], [], []
  rows: dict[str, list[int]] = {'train': [], 'query': [], 'gallery': []}
  train = photos.halves()[0]
  for person in photos.people:
    pair, number = person % PAIRS + 1, person // PAIRS + 1
    for camera in range(2):
      for shot in range(shots):
        image = IMAGES // 2 * camera + shot + 1
        names.append(f'{pair}_{number:03d}_{camera + 1}_{image:02d}.png')
        labels.append(person + 1)
        cameras.append(camera + 1)
        split = 'gallery' if shot else 'query'
        rows['train' if person in train else split].append(len(names))
  io.savemat(
    root / f'cuhk03_new_protocol_config_{boxes}.mat',
    {
      'filelist': np.array(names, object)[:, None],
      'labels': np.array(labels)[:, None],
      'camId': np.array(cameras)[:, None],
      **{f'{k}_idx': np.array(v)[:, None] for k, v in rows.items()},
    },
  )


def write_cifar10(root: Path, photos: Photos) -> None:
  """Writes six batches; a person's number modulo ten is a class."""
  for place, name in enumerate(cifar10.BATCHES):
    images = photos.visible[:, place, 0]
    small = [np.asarray(Image.fromarray(i).resize((32, 32))) for i in images]
    batch = {
      b'batch_label': name.encode(),
      b'data': np.stack(small).transpose(0, 3, 1, 2).reshape(len(small), -1),
      b'labels': [person % 10 for person in photos.people],
      b'filenames': [b'%d.png' % person for person in photos.people],
    }
    root.mkdir(parents=True, exist_ok=True)
    pickled.dump(root / name, batch)
