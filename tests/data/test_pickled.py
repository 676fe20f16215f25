import ast
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import fedreid_jax
from fedreid_jax import errors
from fedreid_jax.data.datasets import pickled

# A pickle of Python 2, as CIFAR-10 is published: {'data': uint8 [[7, 8]]}.
PYTHON_2 = (
  b'\x80\x02}q\x01U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03'
  b'cnumpy\nndarray\nq\x04K\x00\x85q\x05U\x01bq\x06\x87q\x07Rq\x08('
  b'K\x01K\x01K\x02\x86q\tcnumpy\ndtype\nq\nU\x02u1q\x0bK\x00K\x01\x87q\x0c'
  b'Rq\r(K\x03U\x01|q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb'
  b'\x89U\x02\x07\x08q\x10tq\x11bs.'
)


class Attack:
  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (self.path,)


def test_round_trip(tmp_path):
  data = np.arange(24, dtype=np.uint8).reshape(2, 12)
  for number, array in enumerate((data, np.asfortranarray(data))):
    path = tmp_path / f'batch{number}'
    pickled.dump(path, {b'data': array, b'labels': [1, 2]})
    batch = pickled.load(path)
    np.testing.assert_array_equal(batch[b'data'], data)
    assert batch[b'labels'] == [1, 2]


def test_batches_of_python_2(tmp_path):
  (tmp_path / 'batch').write_bytes(PYTHON_2)
  assert pickled.load(tmp_path / 'batch')[b'data'].tolist() == [[7, 8]]


@pytest.mark.parametrize('protocol', range(6))
def test_nothing_else_is_called(tmp_path, protocol):
  target = tmp_path / 'owned'
  content = {'data': Attack(str(target))}
  (tmp_path / 'batch').write_bytes(pickle.dumps(content, protocol))
  with pytest.raises(errors.DataError) as caught:
    pickled.load(tmp_path / 'batch')
  assert 'unpickle: it asks for posix.mkdir' in caught.value.line()
  assert not target.exists()


@pytest.mark.parametrize(
  ('content', 'why'),
  [
    ([1, 2], 'it is no dict'),
    ({b'data': np.arange(3)}, 'an array of anything but bytes'),
    ({b'data': np.array([{}], object)}, 'an array of anything but bytes'),
  ],
)
def test_other_contents(tmp_path, content, why):
  (tmp_path / 'batch').write_bytes(pickle.dumps(content))
  with pytest.raises(errors.DataError, match=why):
    pickled.load(tmp_path / 'batch')


def test_damaged_files(tmp_path):
  good = pickle.dumps({b'data': np.zeros(9, np.uint8)})
  for bad in (
    b'',
    good[:20],
    good[:-1],
    b'junk',
    good.replace(b'_recon', b'_'),
  ):
    (tmp_path / 'batch').write_bytes(bad)
    with pytest.raises(errors.DataError, match='refused to unpickle'):
      pickled.load(tmp_path / 'batch')


def test_only_one_module_imports_pickle():
  found = set()
  root = Path(fedreid_jax.__file__).parent
  for path in root.rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module or '']
      if {n.partition('.')[0] for n in names} & {'pickle', 'dill', 'marshal'}:
        found.add(path.relative_to(root).as_posix())
  # The other one catches the error with which PyTorch refuses to unpickle.
  error_only = root / 'apps/deploy/conversion.py'
  assert found == {
    'data/datasets/pickled.py',
    'apps/deploy/conversion.py',
  }
  assert error_only.read_text().count('pickle.') == 1
  assert 'except pickle.UnpicklingError' in error_only.read_text()
