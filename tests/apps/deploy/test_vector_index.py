"""The files of an approximate index beside those of vectors."""

import json

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.deploy import vector_index
from fedreid_jax.evaluation import approximate

pytest.importorskip('faiss', reason='pip install .[search]')


@pytest.fixture
def rows(monkeypatch):
  monkeypatch.setattr(approximate, 'FEWEST', 300)
  rng = np.random.default_rng(0)
  return rng.standard_normal((600, 8), np.float32)


def opened(path, rows, metric='euclidean'):
  """Returns the index and whether it was built."""
  built = []
  found = vector_index.opened(path, rows, metric, 'ivfpq', built.append)
  return found, bool(built)


def test_an_index_is_built_once_for_the_same_vectors(rows, tmp_path):
  path = tmp_path / 'vectors.npy'
  first, built = opened(path, rows)
  assert built
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    'vectors.ivfpq',
    'vectors.ivfpq.json',
  ]
  again, built = opened(path, rows)
  assert not built and again.recall == first.recall
  np.testing.assert_array_equal(
    first.search(rows[:3], rows, 5, 'euclidean')[0],
    again.search(rows[:3], rows, 5, 'euclidean')[0],
  )
  assert opened(path, rows, 'cosine')[1]
  assert opened(path, rows)[1]
  other = rows.copy()
  other[-1] += 1
  assert opened(path, other)[1]


def test_a_damaged_description_builds_and_damaged_codes_refuse(rows, tmp_path):
  path = tmp_path / 'vectors.npy'
  opened(path, rows)
  described = tmp_path / 'vectors.ivfpq.json'
  good = described.read_text()
  for text in ('', '[]', json.dumps({'recall': 3})):
    described.write_text(text)
    assert opened(path, rows)[1]
    assert described.read_text() == good
  (tmp_path / 'vectors.ivfpq').write_bytes(b'nothing')
  with pytest.raises(errors.IntegrityError, match='vectors.ivfpq'):
    opened(path, rows)


def test_a_folder_of_images_keeps_no_index(rows, tmp_path):
  assert opened(None, rows)[1]
  assert not [*tmp_path.iterdir()]
