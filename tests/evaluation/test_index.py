"""The search of a gallery against NumPy over all distances."""

import sys

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import index


@pytest.fixture(params=['product', 'faiss'])
def backend(request):
  """Both searches, FAISS where it is installed."""
  if request.param == 'faiss':
    pytest.importorskip('faiss', reason='pip install .[search]')
  return request.param


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
def test_ties_are_in_the_order_of_the_gallery(backend, k):
  points = np.array([[2], [1], [1], [3], [1], [0], [1], [1]], np.float32)
  gallery = fr.Gallery(points, range(8), backend=backend)
  indices, distances, _ = gallery.search([[1.0]], k)
  assert indices[0].tolist() == [1, 2, 4, 6, 7, 0, 5, 3][:k]
  assert distances[0].tolist() == [0, 0, 0, 0, 0, 1, 1, 2][:k]


@pytest.mark.parametrize('metric', distance_lib.METRICS)
@pytest.mark.parametrize('tile', [64, 1000])
def test_many_ties_as_numpy_ranks_them(monkeypatch, backend, metric, tile):
  """Sums of whole numbers have no rounding, so that ties are exact.

  The 16 numbers of a vector are 1 or -1: its length is 4, and there are 17
  distances only, each of them of many of the 150 vectors.
  """
  monkeypatch.setattr(index, 'TILE', tile)
  queries, points = np.sign(vectors(30, 0, 16)), np.sign(vectors(150, 1, 16))
  points[70:90] = points[3]  # more copies than are asked for
  queries[0] = points[3]
  every = brute(queries, points, metric)
  order = np.argsort(every, axis=1, kind='stable')
  gallery = fr.Gallery(points, range(150), metric=metric, backend=backend)
  for k in (1, 15, 150):
    indices, distances, _ = gallery.search(queries, k)
    np.testing.assert_array_equal(indices, order[:, :k])
    np.testing.assert_allclose(
      distances, np.take_along_axis(every, order[:, :k], 1), rtol=1e-6
    )


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

  def counting(*args, **more):
    for block in blocks(*args, **more):
      shapes.append(block.shape)
      yield block

  monkeypatch.setattr(distance_lib, 'squared_blocks', counting)
  fr.Gallery(vectors(50, 1), range(50)).search(vectors(300, 0))
  assert shapes == [(128, 50), (128, 50), (44, 50)]


@pytest.mark.parametrize('metric', distance_lib.METRICS)
@pytest.mark.parametrize('size', [63, 64, 65, 128, 150])
def test_tiles_do_not_change_what_is_found(monkeypatch, metric, size):
  queries, gallery = vectors(5, 0), vectors(size, 1)
  gallery[[3, 40]] = gallery[20]  # ties, in several tiles
  whole = fr.Gallery(gallery, range(size), metric=metric).search(queries, 30)
  monkeypatch.setattr(index, 'TILE', 16)
  tiled = fr.Gallery(gallery, range(size), metric=metric).search(queries, 30)
  np.testing.assert_array_equal(tiled[0], whole[0])
  np.testing.assert_allclose(tiled[1], whole[1], rtol=1e-5, atol=1e-6)
  near = fr.Gallery(gallery, range(size), metric=metric).search(gallery[3:4], 3)
  assert near[0].tolist() == [[3, 20, 40]]


def test_own_cameras_in_tiles(monkeypatch):
  monkeypatch.setattr(index, 'TILE', 4)
  points = np.arange(10, dtype=np.float32)[:, None]
  gallery = fr.Gallery(points, range(10), cameras=np.arange(10) % 2)
  found = gallery.search([[0.0], [9.0]], k=6, cameras=[0, 1])[0]
  assert found.tolist() == [[1, 3, 5, 7, 9, -1], [8, 6, 4, 2, 0, -1]]


def test_no_more_than_a_tile_of_the_gallery_is_compared(monkeypatch):
  shapes = []
  blocks = distance_lib.squared_blocks

  def counting(queries, gallery, metric, middle):
    shapes.append(gallery.shape)
    return blocks(queries, gallery, metric, middle=middle)

  monkeypatch.setattr(distance_lib, 'squared_blocks', counting)
  monkeypatch.setattr(index, 'TILE', 32)
  fr.Gallery(vectors(70, 1), range(70)).search(vectors(3, 0))
  assert shapes == [(32, 19)] * 3  # the last one is padded


def test_vectors_on_a_disk_are_not_copied(tmp_path):
  np.save(tmp_path / 'v.npy', vectors(70, 1))
  stored = np.load(tmp_path / 'v.npy', mmap_mode='r')
  gallery = fr.Gallery(stored, range(70))
  assert np.shares_memory(gallery.vectors, stored)
  assert gallery.search(vectors(70, 1)[5:6], 1)[0].tolist() == [[5]]


@pytest.mark.parametrize('metric', distance_lib.METRICS)
@pytest.mark.parametrize('tile', [16, 1000])
def test_faiss_finds_the_same(monkeypatch, metric, tile):
  pytest.importorskip('faiss', reason='pip install .[search]')
  monkeypatch.setattr(index, 'TILE', tile)
  queries, gallery = vectors(40, 0), vectors(150, 1)
  options = {'labels': np.arange(150) % 7, 'metric': metric}
  product = fr.Gallery(gallery, **options)
  faiss = fr.Gallery(gallery, backend='faiss', **options)
  assert (product.backend, faiss.backend) == ('product', 'faiss')
  for k in (1, 20, 200):
    ours, theirs = product.search(queries, k), faiss.search(queries, k)
    np.testing.assert_array_equal(theirs[0], ours[0])
    np.testing.assert_allclose(theirs[1], ours[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(theirs[2], ours[2])
    assert theirs[1].dtype == np.float32
  assert faiss.search(queries[:0], 2)[0].shape == (0, 2)


def test_faiss_leaves_cameras_to_products():
  pytest.importorskip('faiss', reason='pip install .[search]')
  points = np.arange(4, dtype=np.float32)[:, None]
  gallery = fr.Gallery(points, range(4), [0, 0, 1, 1], backend='faiss')
  assert gallery.search([[0.0]], 3)[0].tolist() == [[0, 1, 2]]
  assert gallery.search([[0.0]], 3, cameras=[0])[0].tolist() == [[2, 3, -1]]


@pytest.mark.parametrize('there', [False, True])
def test_faiss_is_chosen_for_large_galleries_if_it_is_there(monkeypatch, there):
  monkeypatch.setattr(index, 'installed', lambda: there)
  monkeypatch.setattr(index, 'LARGE', 10)
  chosen = [
    fr.Gallery(vectors(size, 0), range(size), backend='auto').backend
    for size in (9, 10)
  ]
  assert chosen == ['product', 'faiss' if there else 'product']
  assert fr.Gallery(vectors(10, 0), range(10)).backend == 'product'


def test_a_missing_faiss_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'faiss', None)
  with pytest.raises(errors.ConfigError, match=r'fedreid_jax\[search\]'):
    fr.Gallery(vectors(3, 0), range(3), backend='faiss')


def test_no_queries():
  found = fr.Gallery([[0.0]], [0]).search(np.zeros((0, 1)), 2)
  assert [x.shape for x in found] == [(0, 2)] * 3


@pytest.mark.parametrize(
  ('given', 'error'),
  [
    ({'metric': 'manhattan'}, errors.ConfigError),
    ({'backend': 'annoy'}, errors.ConfigError),
    ({'vectors': np.float32(1)}, errors.DataError),
    ({'vectors': np.zeros((0, 2)), 'labels': []}, errors.DataError),
    ({'vectors': np.zeros(3)}, errors.DataError),
    ({'vectors': np.full((3, 2), np.nan)}, errors.DataError),
    ({'vectors': np.full((3, 2), 1e19)}, errors.DataError),
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


@pytest.mark.parametrize('backend', ['product', 'faiss'])
@pytest.mark.parametrize('offset', [0, 1000])
def test_a_query_of_the_gallery_is_at_zero(monkeypatch, backend, offset):
  monkeypatch.setattr(index, 'TILE', 32)
  gallery = vectors(100, 1) + np.float32(offset)
  found = fr.Gallery(gallery, range(100), backend=backend).search(gallery, 4)
  exact = np.linalg.norm(
    gallery[:, None].astype(np.float64) - gallery[None], axis=-1
  )
  np.testing.assert_array_equal(found[0], np.argsort(exact, axis=1)[:, :4])
  np.testing.assert_allclose(found[1], np.sort(exact, axis=1)[:, :4], rtol=1e-5)
  assert (found[1][:, 0] == 0).all()
