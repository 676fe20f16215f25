"""CUHK03 (Li et al., CVPR 2014), classic and new (Zhong et al., CVPR 2017).

All images are in `cuhk03_release/cuhk-03.mat`, an HDF5 file. It has five pairs
of cameras, each a table of persons by ten images, 1 to 5 of one camera and 6 to
10 of the other, both for detected boxes and for boxes drawn by hand. The
classic protocol tests on 100 persons of one of 20 lists. The new protocol is
given by `cuhk03_new_protocol_config_detected.mat` (or `_labeled`), or as
folders of images in the layout of Market-1501.

Both protocols also come as torchreid extracts them from the release: PNG files
such as `images_detected/1_001_1_01.png` and JSON lists.
`splits_classic_detected.json` holds 20 splits, `splits_new_detected.json` one,
each with lists `train`, `query` and `gallery` of [path, person, camera].
"""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.core import archives, plugins
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  Count,
  Dataset,
  Extract,
  Record,
  divided,
)

BOXES = ('detected', 'labeled')
NAME = r'(\d+)_(\d+)_(\d+)_(\d+)\.png'  # pair, person, camera, image
PAIRS = 5
IMAGES = 10  # cells per person, five of each camera
FILES = ('cuhk03_release/cuhk-03.mat', 'cuhk-03.mat')
ACCEPTED = (
  f'accepted are {FILES[0]}, images_detected with splits_*.json as torchreid '
  'writes them, or, new protocol, detected/bounding_box_train'
)
_PAGE = (
  "the 'CUHK Person Re-identification Datasets' page of the Chinese "
  'University of Hong Kong'
)


def open_container(root: Path) -> tuple[str, Any]:
  """Returns the path of `cuhk-03.mat` below the root, and the open file.

  Raises:
    ConfigError: when h5py is not installed.
    DataError: when the file is missing or no HDF5.
  """
  try:
    import h5py
  except ImportError as error:
    raise errors.ConfigError(
      'cuhk-03.mat needs h5py',
      str(error),
      plugins.install_command('datasets'),
    ) from error
  for name in FILES:
    if (root / name).is_file():
      break
  else:
    raise errors.DataError('no CUHK03 in a known form', str(root), ACCEPTED)
  try:
    return name, h5py.File(root / name, 'r')
  except OSError as error:
    raise errors.DataError(
      f'no HDF5 file: {error}', str(root / name), 'unpack the archive again'
    ) from error


def _array(mat: Any, place: Any) -> np.ndarray:
  """The array at a name or a reference of the container.

  Raises:
    DataError: when it unpacks to more than an image or a table may.
  """
  found = mat[place]
  try:
    archives.check(Path(mat.filename), found.nbytes)
  except ValueError as error:
    raise errors.DataError(
      f'{found.name}: {error}', mat.filename, 'unpack the archive again'
    ) from error
  return found[()]


def extract(root: Path) -> Extract:
  """Returns a reader of images; `part` is (boxes, pair, person, image)."""
  mat = open_container(root)[1]
  lock = threading.Lock()  # HDF5 is not thread-safe

  def one(record: Record) -> UInt8[np.ndarray, 'H W 3']:
    boxes, pair, person, image = record.part
    with lock:
      table = mat[_array(mat, BOXES[boxes]).ravel()[pair - 1]]
      pixels = _array(mat, table[image - 1, person - 1])
    return np.ascontiguousarray(pixels.T)  # MATLAB stores columns first

  return one


def read_classic(
  root: Path, boxes: str, trial: int, query: str
) -> list[Record]:
  """Reads a classic split; `query` is 'all' or the 'last' of each camera."""
  if _is_extracted(root, boxes):
    records = _read_extracted(root, boxes, 'classic', trial)
    return records if query == 'all' else _last_asks(records)
  name, mat = open_container(root)
  with mat:
    listed = _array(mat, _array(mat, 'testsets').ravel()[trial]).T
    test = {tuple(row) for row in listed.astype(int).tolist()}
    records = []
    for pair, table in enumerate(_array(mat, boxes).ravel(), 1):
      for person, row in enumerate(_array(mat, table).T, 1):
        split = 'query+gallery' if (pair, person) in test else 'train'
        # MATLAB stores an empty cell as an array of its two dimensions.
        images = [k for k, ref in enumerate(row, 1) if mat[ref].ndim == 3]
        records += [
          Record(
            name,
            # Persons are numbered anew in every pair.
            1000 * pair + person,
            1 if image <= 5 else 2,
            0,
            split,
            (BOXES.index(boxes), pair, person, image),
          )
          for image in images
        ]
  return records if query == 'all' else _last_asks(records)


def _is_extracted(root: Path, boxes: str) -> bool:
  # The release is used if a folder has both.
  has_release = any((root / name).is_file() for name in FILES)
  return not has_release and (root / f'images_{boxes}').is_dir()


def _last_asks(records: list[Record]) -> list[Record]:
  records = sorted(records, key=lambda r: (r.path, r.part))
  last = {(r.person, r.camera): r.name for r in records if r.split != 'train'}
  return [
    r
    if r.split == 'train'
    else r._replace(
      split='query' if last[r.person, r.camera] == r.name else 'gallery'
    )
    for r in records
  ]


def read_new(root: Path, boxes: str) -> list[Record]:
  """Reads the new protocol, from folders of images or the release."""
  if (root / boxes / layout.BOXES['train']).is_dir():
    return layout.from_boxes(
      root, r'(\d+)_c(\d+).*\.png', range(1, 3), f'{boxes}/'
    )
  if _is_extracted(root, boxes):
    return _read_extracted(root, boxes, 'new', 0)
  # Checks that the file can be opened before the lists are read.
  container, mat = open_container(root)
  mat.close()
  config = f'cuhk03_new_protocol_config_{boxes}.mat'
  names = layout.matlab(root, config, 'filelist').ravel()
  labels = layout.matlab(root, config, 'labels').ravel()
  records = []
  for split in ('train', 'query', 'gallery'):
    # MATLAB counts rows from 1.
    rows = layout.matlab(root, config, f'{split}_idx').ravel().astype(int) - 1
    if rows.min() < 0 or rows.max() >= names.size:
      raise errors.DataError(
        f'{split}_idx does not fit filelist', config, 'unpack it again'
      )
    for row in rows.tolist():
      pair, person, camera, image = layout.parse(NAME, names[row][0], root)
      part = BOXES.index(boxes), pair, person, image
      records.append(
        Record(container, int(labels[row]), camera, 0, split, part)
      )
  return records


def _read_extracted(
  root: Path, boxes: str, protocol: str, trial: int
) -> list[Record]:
  """Reads a split of a protocol, 'classic' or 'new', from extracted files."""
  listed = f'splits_{protocol}_{boxes}.json'
  split = _split(root, listed, trial)
  found: dict[str, str] = {}
  for side in ('train', 'query', 'gallery'):
    for name in split[side]:
      before = found.setdefault(name, side)
      # In the classic protocol every gallery image is a query, too.
      if before != side:
        found[name] = f'{before}+{side}'
  records = []
  for name, side in found.items():
    pair, person, camera, _ = layout.parse(NAME, name, root)
    path = f'images_{boxes}/{name}'
    records.append(Record(path, 1000 * pair + person, camera, 0, side))
    if side not in ('train', 'query', 'gallery', 'query+gallery'):
      raise errors.DataError(
        f'{name} is in {side}', str(root / listed), layout.HELP
      )
  layout.require(root, (record.path for record in records))
  return records


def _split(root: Path, listed: str, trial: int) -> dict[str, list[str]]:
  try:
    # The paths are valid only on the machine that wrote the list, and persons
    # are renumbered in every list, so both are read from the file name.
    splits: Any = json.loads((root / listed).read_bytes())
    return {
      side: [
        str(path).replace('\\', '/').rpartition('/')[2]
        for path, _, _ in splits[trial][side]
      ]
      for side in ('train', 'query', 'gallery')
    }
  except FileNotFoundError:
    raise errors.DataError(
      f'no file {listed}', str(root), layout.HELP
    ) from None
  except (ValueError, TypeError, LookupError) as error:
    raise errors.DataError(
      f'no list of splits: {error}', str(root / listed), layout.HELP
    ) from error


def _write(root: Path, photos: Photos) -> None:
  import h5py
  from scipy import io

  shots = min(len(photos.shots), IMAGES // 2)
  (root / 'cuhk03_release').mkdir(parents=True)
  with h5py.File(root / 'cuhk03_release/cuhk-03.mat', 'w') as mat:
    for boxes in BOXES:
      # Boxes drawn by hand are slightly tighter.
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
  config = _config(photos, shots)
  for boxes in BOXES:
    io.savemat(root / f'cuhk03_new_protocol_config_{boxes}.mat', config)


def _table(mat: Any, images: np.ndarray, edge: int) -> Any:
  cells = np.empty((IMAGES, len(images)), object)
  for image, person in np.ndindex(cells.shape):
    camera, shot = divmod(image, IMAGES // 2)
    if shot < images.shape[2]:
      pixels = images[person, camera, shot][edge:, edge:]
      # MATLAB stores columns first.
      data, empty = np.ascontiguousarray(pixels.T), False
    else:
      # MATLAB stores an empty cell as its two dimensions, with an attribute.
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


def _config(photos: Photos, shots: int) -> dict[str, np.ndarray]:
  """Split of the new protocol, with a first shot of each person as query."""
  names, labels, cameras = [], [], []
  rows: dict[str, list[int]] = {'train': [], 'query': [], 'gallery': []}
  train = photos.halves()[0]
  for person, camera, shot in photos.views(2):
    if shot < shots:
      pair, number = person % PAIRS + 1, person // PAIRS + 1
      image = IMAGES // 2 * camera + shot + 1
      names.append(f'{pair}_{number:03d}_{camera + 1}_{image:02d}.png')
      labels.append(person + 1)
      cameras.append(camera + 1)
      split = 'gallery' if shot else 'query'
      rows['train' if person in train else split].append(len(names))
  return {
    'filelist': np.array(names, object)[:, None],
    'labels': np.array(labels)[:, None],
    'camId': np.array(cameras)[:, None],
    **{f'{k}_idx': np.array(v)[:, None] for k, v in rows.items()},
  }


CLASSIC = Dataset(
  name='cuhk03',
  title='CUHK03, classic protocol',
  read=read_classic,
  counts={
    'all': {
      'train': Count(None, 1367, 2),
      'query+gallery': Count(None, 100, 2),
    },
    'last': divided((None, 1367, 2), (None, 100, 2), (None, 100, 2)),
  },
  protocol='cuhk03_classic',
  page=_PAGE,
  miniature=_write,
  folders=('CUHK03',),
  options={
    'query': ('all', 'last'),
    'boxes': BOXES,
    'trial': tuple(range(20)),
  },
  extract=extract,
  note='20 splits of 1,367 and 100 persons',
  named=r'^(images_(detected|labeled)/)?[1-5]_\d{3}_[12]_\d\d\.png',
)
NEW = Dataset(
  name='cuhk03-np',
  title='CUHK03, new protocol',
  read=read_new,
  counts={
    'detected': divided((7365, 767, 2), (1400, 700, 2), (5332, 700, 2)),
    'labeled': divided((7368, 767, 2), (1400, 700, 2), (5328, 700, 2)),
  },
  protocol='market',
  page=_PAGE + '; the split files are with the code of Zhong et al.',
  miniature=_write,
  folders=('CUHK03-NP', 'cuhk03', 'CUHK03'),
  options={'boxes': BOXES},
  extract=extract,
  note='name the kind of boxes: detected and labeled differ by points of mAP',
)
