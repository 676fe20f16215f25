"""CUHK03 (Li et al., CVPR 2014), classic and new (Zhong et al., CVPR 2017).

All images are in `cuhk03_release/cuhk-03.mat`, an HDF5 file. It has five pairs
of cameras, each a table of persons by ten images, 1 to 5 of one camera and 6 to
10 of the other, both for detected boxes and for boxes drawn by hand. The
classic protocol tests on 100 persons of one of 20 lists. The new protocol is
given by `cuhk03_new_protocol_config_detected.mat` (or `_labeled`), or as
folders of images in the layout of Market-1501. For both protocols the files
that torchreid extracts are read, too.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.core import extras
from fedreid_jax.data.datasets import cuhk03_extracted as extracted
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.cuhk03_extracted import BOXES
from fedreid_jax.data.datasets.records import Count, Dataset, Extract, Record
from fedreid_jax.data.fixtures import cuhk03 as miniature

FILES = ('cuhk03_release/cuhk-03.mat', 'cuhk-03.mat')
ACCEPTED = (
  f'accepted are {FILES[0]}, images_detected with splits_*.json as torchreid '
  'writes them, or, new protocol, detected/bounding_box_train'
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
      extras.command('datasets'),
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


def extract(root: Path) -> Extract:
  """Returns a reader of images; `part` is (boxes, pair, person, image)."""
  mat = open_container(root)[1]
  lock = threading.Lock()  # HDF5 is not thread-safe

  def one(record: Record) -> UInt8[np.ndarray, 'H W 3']:
    boxes, pair, person, image = record.part
    with lock:
      table = mat[mat[BOXES[boxes]][()].ravel()[pair - 1]]
      pixels = mat[table[image - 1, person - 1]][()]
    return np.ascontiguousarray(pixels.T)  # MATLAB stores columns first

  return one


def read_classic(
  root: Path, boxes: str, trial: int, query: str
) -> list[Record]:
  """Reads a classic split; `query` is 'all' or the 'last' of each camera."""
  if _is_extracted(root, boxes):
    records = extracted.read(root, boxes, 'classic', trial)
    return records if query == 'all' else _last_asks(records)
  name, mat = open_container(root)
  with mat:
    listed = mat[mat['testsets'][()].ravel()[trial]][()].T
    test = {tuple(row) for row in listed.astype(int).tolist()}
    records = []
    for pair, table in enumerate(mat[boxes][()].ravel(), 1):
      for person, row in enumerate(mat[table][()].T, 1):
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
  return not has_release and extracted.is_here(root, boxes)


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
  if (root / boxes / 'bounding_box_train').is_dir():
    folders = dict(
      train='bounding_box_train', query='query', gallery='bounding_box_test'
    )
    return [
      record
      for split, folder in folders.items()
      for record in layout.from_names(
        root, f'{boxes}/{folder}', r'(\d+)_c(\d+).*\.png', split, range(1, 3)
      )
    ]
  if _is_extracted(root, boxes):
    return extracted.read(root, boxes, 'new', 0)
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
      pair, person, camera, image = layout.parse(
        extracted.NAME, names[row][0], root
      )
      part = BOXES.index(boxes), pair, person, image
      records.append(
        Record(container, int(labels[row]), camera, 0, split, part)
      )
  return records


def expected_classic(boxes: str, trial: int, query: str) -> dict[str, Count]:
  """Returns the published counts."""
  del boxes, trial
  train = {'train': Count(None, 1367, 2)}
  if query == 'all':
    return train | {'query+gallery': Count(None, 100, 2)}
  return train | {
    'query': Count(None, 100, 2),
    'gallery': Count(None, 100, 2),
  }


def expected_new(boxes: str) -> dict[str, Count]:
  """Returns the published counts."""
  is_drawn = boxes == 'labeled'
  return {
    'train': Count(7368 if is_drawn else 7365, 767, 2),
    'query': Count(1400, 700, 2),
    'gallery': Count(5328 if is_drawn else 5332, 700, 2),
  }


_PAGE = (
  "the 'CUHK Person Re-identification Datasets' page of the Chinese "
  'University of Hong Kong'
)
CLASSIC = Dataset(
  name='cuhk03',
  title='CUHK03, classic protocol',
  read=read_classic,
  expected=expected_classic,
  protocol='cuhk03_classic',
  page=_PAGE,
  miniature=miniature.write_cuhk03,
  folders=('CUHK03',),
  options={
    'boxes': BOXES,
    'trial': tuple(range(20)),
    'query': ('all', 'last'),
  },
  extract=extract,
  note='20 splits of 1,367 and 100 persons',
)
NEW = Dataset(
  name='cuhk03-np',
  title='CUHK03, new protocol',
  read=read_new,
  expected=expected_new,
  protocol='market',
  page=_PAGE + '; the split files are with the code of Zhong et al.',
  miniature=miniature.write_cuhk03,
  folders=('CUHK03-NP', 'cuhk03', 'CUHK03'),
  options={'boxes': BOXES},
  extract=extract,
  note='name the kind of boxes: detected and labeled differ by points of mAP',
)
