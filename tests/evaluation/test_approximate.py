"""An approximate index against the exact search, where FAISS is installed."""

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.evaluation import approximate, distances
from fedreid_jax.evaluation.approximate import Recall

pytest.importorskip('faiss', reason='pip install .[search]')

SIZE = 12_000


@pytest.fixture(scope='module')
def vectors():
  """Vectors of 600 persons with 20 images each, in clusters."""
  rng = np.random.default_rng(0)
  centres = rng.standard_normal((600, 24))
  return np.float32(
    np.repeat(centres, 20, 0) + 0.3 * rng.standard_normal((SIZE, 24))
  )


@pytest.fixture(scope='module', params=distances.METRICS)
def built(request, vectors):
  done = []
  made = approximate.build(vectors, request.param, done.append)
  assert sum(done) == SIZE
  return made, request.param


@pytest.mark.slow
def test_most_of_the_nearest_are_found_with_exact_distances(built, vectors):
  made, metric = built
  rng = np.random.default_rng(1)
  queries = vectors[::400] + np.float32(0.1) * rng.standard_normal(
    (30, 24), np.float32
  )
  labels = np.arange(SIZE)
  exact = fr.Gallery(vectors, labels, metric=metric)
  near = fr.Gallery(vectors, labels, metric=metric, index=made)
  wanted, far, _ = exact.search(queries, 10)
  rows, found, names = near.search(queries, 10)
  hits = np.mean(
    [np.isin(a, b).mean() for a, b in zip(wanted, rows, strict=True)]
  )
  assert hits > 0.9
  np.testing.assert_array_equal(names, rows)
  assert (np.diff(found, axis=1) >= 0).all()
  for row, one, value in zip(rows, found, queries, strict=True):
    every = fr.Gallery(vectors[row], row, metric=metric).search([value], 10)
    np.testing.assert_allclose(every[1][0], one, atol=2e-4)
  assert (found >= far - 2e-4).all()


@pytest.mark.slow
def test_the_recall_is_that_of_vectors_without_themselves(built, vectors):
  made, metric = built
  assert made.recall[1:] == (10, 100) and made.recall.share > 0.9
  rng = np.random.default_rng(5)
  chosen = rng.choice(SIZE, 300, replace=False)
  labels = np.arange(SIZE)
  wanted = fr.Gallery(vectors, labels, metric=metric).search(
    vectors[chosen], 11
  )[0][:, 1:]
  found = fr.Gallery(vectors, labels, metric=metric, index=made).search(
    vectors[chosen], 11
  )[0][:, 1:]
  share = np.mean(
    [np.isin(a, b).mean() for a, b in zip(wanted, found, strict=True)]
  )
  assert made.recall.share == pytest.approx(share, abs=0.05)
  assert '10 nearest of 100 images' in str(made.recall)


@pytest.mark.slow
def test_fewer_candidates_find_less(built, vectors, monkeypatch):
  made, metric = built
  made._codes.nprobe = 1
  rng = np.random.default_rng(0)
  poor = approximate._measure(made, vectors, metric, rng).share
  made._codes.nprobe = approximate.PROBED
  assert poor < made.recall.share


@pytest.mark.slow
def test_an_index_is_written_and_read(built, vectors, tmp_path):
  made, metric = built
  made.save(tmp_path / 'a.ivfpq')
  again = approximate.load(tmp_path / 'a.ivfpq', SIZE, made.recall)
  for one, other in zip(
    made.search(vectors[:5], vectors, 4, metric),
    again.search(vectors[:5], vectors, 4, metric),
    strict=True,
  ):
    np.testing.assert_array_equal(one, other)
  with pytest.raises(errors.IntegrityError, match='12,000 vectors of 7'):
    approximate.load(tmp_path / 'a.ivfpq', 7, made.recall)
  (tmp_path / 'b.ivfpq').write_bytes(b'none')
  with pytest.raises(errors.IntegrityError, match='no index'):
    approximate.load(tmp_path / 'b.ivfpq', SIZE, made.recall)


@pytest.mark.slow
def test_what_is_not_found_is_missing(built, vectors):
  made, metric = built
  made._codes.nprobe = 1
  gallery = fr.Gallery(vectors, np.arange(SIZE), metric=metric, index=made)
  rows, found, labels = gallery.search(vectors[:2], SIZE + 5)
  made._codes.nprobe = approximate.PROBED
  missing = rows == -1
  assert missing.any(1).all() and not missing[:, 0].any()
  assert np.isinf(found[missing]).all() and (labels[missing] == -1).all()
  assert np.isfinite(found[~missing]).all()


@pytest.mark.slow
def test_cameras_are_searched_exactly(built, vectors):
  made, metric = built
  cameras = np.arange(SIZE) % 2
  labels = np.arange(SIZE)
  given = {'cameras': cameras, 'metric': metric}
  one = fr.Gallery(vectors, labels, index=made, **given)
  other = fr.Gallery(vectors, labels, **given)
  for a, b in zip(
    one.search(vectors[:3], 5, cameras=[0, 1, 0]),
    other.search(vectors[:3], 5, cameras=[0, 1, 0]),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


def test_few_vectors_and_unknown_kinds_are_refused():
  few = np.zeros((50, 4), np.float32)
  with pytest.raises(errors.DataError, match='50 vectors.*10,000'):
    approximate.build(few, 'euclidean')
  with pytest.raises(errors.ConfigError, match='unknown index'):
    approximate.check('hnsw')
  approximate.check('ivfpq')


@pytest.mark.parametrize(
  'width, size', [(128, 32), (512, 64), (2048, 64), (30, 6), (7, 1), (3, 1)]
)
def test_codes_divide_vectors_evenly(width, size):
  assert approximate._bytes(width) == size and width % size == 0


def test_a_recall_in_words():
  assert str(Recall(0.98712, 10, 100)) == (
    '0.987 of the 10 nearest of 100 images of the gallery'
  )
