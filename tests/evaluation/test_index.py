"""The search of a gallery against NumPy over all distances."""

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.evaluation import distances as distance_lib


def vectors(num, seed, width=19):
  rng = np.random.default_rng(seed)
  return rng.standard_normal((num, width), dtype=np.float32)


def brute(queries, gallery, metric):
  q, g = queries.astype(np.float64), gallery.astype(np.float64)
  if metric == 'cosine':
    q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, g))
    return 1 - q @ g.T
  return np.linalg.norm(q[:, None] - g[None], axis=-1)


@pytest.mark.parametrize('metric', distance_lib.METRICS)
@pytest.mark.parametrize('k', [1, 7, 70])
def test_the_nearest_of_all(metric, k):
  queries, gallery = vectors(300, 0), vectors(70, 1)
  people = np.arange(70) % 9
  found = fr.Gallery(gallery, people, metric=metric).search(queries, k)
  indices, distances, labels = found
  every = brute(queries, gallery, metric)
  expected = np.argsort(every, axis=1, kind='stable')[:, :k]
  np.testing.assert_array_equal(indices, expected)
  np.testing.assert_allclose(
    distances, np.take_along_axis(every, expected, 1), rtol=1e-4, atol=1e-5
  )
  np.testing.assert_array_equal(labels, people[expected])
  assert distances.dtype == np.float32 and indices.dtype == np.int64


@pytest.mark.parametrize('k', range(1, 9))
def test_ties_are_in_the_order_of_the_gallery(k):
  points = np.array([[2], [1], [1], [3], [1], [0], [1], [1]], np.float32)
  indices, distances, _ = fr.Gallery(points, range(8)).search([[1.0]], k)
  assert indices[0].tolist() == [1, 2, 4, 6, 7, 0, 5, 3][:k]
  assert distances[0].tolist() == [0, 0, 0, 0, 0, 1, 1, 2][:k]


def test_fewer_vectors_than_asked_for():
  gallery = fr.Gallery([[0.0], [2.0]], ['near', 'far'])
  indices, distances, labels = gallery.search([[0.0]], k=3)
  assert indices.tolist() == [[0, 1, -1]]
  assert distances.tolist() == [[0, 2, np.inf]]
  assert labels.tolist() == [['near', 'far', '']]
  assert len(gallery) == 2


def test_images_of_the_own_camera_are_left_out():
  gallery = fr.Gallery([[0.0], [1.0], [2.0]], [5, 6, 7], cameras=[0, 1, 0])
  queries = [[0.0], [0.0], [0.0]]
  indices, distances, labels = gallery.search(queries, 2, cameras=[0, 1, 2])
  assert indices.tolist() == [[1, -1], [0, 2], [0, 1]]
  assert distances.tolist() == [[1, np.inf], [0, 2], [0, 1]]
  assert labels.tolist() == [[6, -1], [5, 7], [5, 6]]


def test_no_more_than_a_block_of_distances_is_searched(monkeypatch):
  shapes = []
  blocks = distance_lib.squared_blocks

  def counting(*args):
    for block in blocks(*args):
      shapes.append(block.shape)
      yield block

  monkeypatch.setattr(distance_lib, 'squared_blocks', counting)
  fr.Gallery(vectors(50, 1), range(50)).search(vectors(300, 0))
  assert shapes == [(128, 50), (128, 50), (44, 50)]


def test_no_queries():
  found = fr.Gallery([[0.0]], [0]).search(np.zeros((0, 1)), 2)
  assert [x.shape for x in found] == [(0, 2)] * 3


@pytest.mark.parametrize(
  ('given', 'error'),
  [
    ({'metric': 'manhattan'}, errors.ConfigError),
    ({'vectors': np.zeros((0, 2)), 'labels': []}, errors.DataError),
    ({'vectors': np.zeros(3)}, errors.DataError),
    ({'vectors': np.full((3, 2), np.nan)}, errors.DataError),
    ({'labels': [1, 2]}, errors.DataError),
    ({'labels': [1.0, 2.0, 3.0]}, errors.DataError),
    ({'cameras': [1, 2]}, errors.DataError),
    ({'cameras': ['a', 'b', 'c']}, errors.DataError),
  ],
)
def test_errors_of_a_gallery(given, error):
  with pytest.raises(error):
    fr.Gallery(**{'vectors': np.zeros((3, 2)), 'labels': range(3)} | given)


@pytest.mark.parametrize(
  ('given', 'error'),
  [
    ({'k': 0}, errors.ConfigError),
    ({'queries': np.zeros((1, 3))}, errors.DataError),
    ({'queries': np.zeros(2)}, errors.DataError),
    ({'queries': np.full((1, 2), np.inf)}, errors.DataError),
    ({'cameras': [1]}, errors.DataError),
  ],
)
def test_errors_of_a_search(given, error):
  gallery = fr.Gallery(np.zeros((3, 2)), range(3))
  with pytest.raises(error):
    gallery.search(**{'queries': np.zeros((1, 2))} | given)
