"""CUHK-SYSU (Xiao et al., CVPR 2017): persons cropped from scenes.

`Image/SSM/s1.jpg` is a scene. `annotation/test/train_test/Train.mat` and
`TestG50.mat` hold the boxes of persons. In the test of re-identification, each
of 2,900 persons has one query, and the ground-truth boxes of all these persons
are ranked.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.data import decoder
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import Dataset, Extract, Record, divided

FOLDER = 'annotation/test/train_test'


def extract(root: Path) -> Extract:
  """Returns a reader of crops; `part` is (left, top, width, height)."""

  def one(record: Record) -> UInt8[np.ndarray, 'H W 3']:
    left, top, width, height = record.part
    with decoder.open_image(root / record.path) as scene:
      box = left, top, left + width, top + height
      return np.asarray(scene.crop(box).convert('RGB'))

  return one


def read(root: Path) -> list[Record]:
  """Reads the data set."""
  found: dict[tuple, Record] = {}

  def add(scene: dict[str, Any], person: int, split: str) -> None:
    box = tuple(int(v) for v in np.ravel(scene['idlocate']))
    # A scene without the person has an empty box.
    if len(box) == 4:
      name = f'Image/SSM/{scene["imname"]}'
      record = Record(name, person, 0, 0, split, box)
      # The gallery of one person can hold the query of another. Queries are
      # added first and stay queries.
      found.setdefault((name, box), record)

  tests = _structs(root, 'TestG50')
  for test in tests:
    for query in _list(test['Query']):
      add(query, _person(root, query), 'query')
  for test in tests:
    person = _person(root, _list(test['Query'])[0])
    for scene in _list(test['Gallery']):
      add(scene, person, 'gallery')
  for one in _structs(root, 'Train'):
    for scene in _list(one['scene']):
      add(scene, _person(root, one), 'train')
  layout.require(root, (record.path for record in found.values()))
  return list(found.values())


def _structs(root: Path, variable: str) -> list[dict[str, Any]]:
  table = layout.matlab(
    root, f'{FOLDER}/{variable}.mat', variable, simplify_cells=True
  )
  if not isinstance(_list(table)[0], dict):
    raise errors.DataError(
      f'no table {variable}', str(root / FOLDER), layout.HELP
    )
  return _list(table)


def _list(value: Any) -> list[Any]:
  """Makes a list of structs; MATLAB stores a list of one as its element."""
  return list(value) if isinstance(value, list | np.ndarray) else [value]


def _person(root: Path, struct: dict[str, Any]) -> int:
  return layout.parse(r'p?(\d+)', str(struct['idname']), root)[0]


def write(root: Path, photos: Photos) -> None:
  """Writes scenes of two persons and the annotation of both halves."""
  from scipy import io

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
  folder = root / FOLDER
  folder.mkdir(parents=True)
  people = np.empty((len(train), 1), object)
  for row, person in enumerate(train):
    people[row, 0] = {
      'idname': f'p{person + 1}',
      'nAppear': len(scenes[person]),
      'scene': _struct_array(scenes[person]),
    }
  io.savemat(folder / 'Train.mat', {'Train': people})
  # A scene without the person has an empty box.
  elsewhere = {'idlocate': np.zeros((0, 0)), 'ishard': np.zeros((0, 0))}
  tests = []
  for person in test:
    first, *others = scenes[person]
    unrelated = scenes[test[test.index(person) - 2]][0]['imname']
    others.append({'imname': unrelated, **elsewhere})
    query = {**first, 'idname': f'p{person + 1}'}
    tests.append({'Query': query, 'Gallery': _struct_array(others)})
  io.savemat(folder / 'TestG50.mat', {'TestG50': _struct_array(tests)})


def _struct_array(rows: list[dict]) -> np.ndarray:
  array = np.empty((1, len(rows)), [(name, object) for name in rows[0]])
  for place, row in enumerate(rows):
    array[0, place] = tuple(row.values())
  return array


DATASET = Dataset(
  name='cuhk-sysu',
  title='CUHK-SYSU, re-identification subset',
  read=read,
  counts={None: divided((None, 5532, 1), (2900, 2900, 1), (5447, 2900, 1))},
  protocol='cuhk_sysu',
  page='the CUHK-SYSU person search page (Chinese University of Hong Kong and '
  'Sun Yat-sen University), by e-mail',
  miniature=write,
  folders=('CUHK-SYSU', 'dataset'),
  extract=extract,
  note='no cameras: every image is of camera 0',
  named=r'Image/SSM/s\d+\.jpg',
)
