"""Evaluation from features equals evaluation from a distance matrix."""

import jax.numpy as jnp
import numpy as np
import pytest
import toy_run

from fedreid_jax import errors, evaluate_ranking, evaluate_retrieval
from fedreid_jax.data import federation, protocols
from fedreid_jax.evaluation.evaluators import retrieval
from fedreid_jax.evaluation.options import Evaluation


def make_data(num_queries=140, num_gallery=200, num_ids=12, width=8, noise=1.0):
  rng = np.random.default_rng(0)
  centres = rng.standard_normal((num_ids, width))
  ids = rng.integers(0, num_ids, num_queries + num_gallery)
  cameras = rng.integers(1, 7, num_queries + num_gallery)
  features = centres[ids] + noise * rng.standard_normal((ids.size, width))
  features = features.astype(np.float32)
  q = num_queries
  return (
    features[:q],
    features[q:],
    ids[:q],
    ids[q:],
    cameras[:q],
    cameras[q:],
  )


def exact_distance(query, gallery, metric):
  query, gallery = query.astype(np.float64), gallery.astype(np.float64)
  if metric == 'cosine':
    query = query / np.linalg.norm(query, axis=1, keepdims=True)
    gallery = gallery / np.linalg.norm(gallery, axis=1, keepdims=True)
    return 1 - query @ gallery.T
  return np.linalg.norm(query[:, None] - gallery[None, :], axis=-1)


@pytest.mark.parametrize('metric', ['euclidean', 'cosine'])
@pytest.mark.parametrize('protocol', protocols.PROTOCOLS)
def test_equals_the_ranking_of_exact_distances(protocol, metric):
  query, gallery, *labels = make_data()
  expected = evaluate_ranking(
    exact_distance(query, gallery, metric), *labels, protocol=protocol
  )
  result = evaluate_retrieval(
    query, gallery, *labels, metric=metric, protocol=protocol
  )
  # float32 products may swap two neighbours of 28,000 distances.
  assert result == pytest.approx(expected, abs=0.01)
  assert 0 < result['mAP'] < 100


@pytest.mark.parametrize('rerank', [False, True])
@pytest.mark.parametrize('protocol', ['market', 'cuhk03_classic', 'sysu'])
def test_the_chunk_does_not_change_a_bit(protocol, rerank):
  first, *others = (
    evaluate_retrieval(*make_data(), protocol=protocol, chunk=c, rerank=rerank)
    for c in (1, 7, 256)
  )
  assert others == [first, first]


def test_features_may_live_on_a_device():
  query, gallery, *labels = make_data()
  host = evaluate_retrieval(query, gallery, *labels)
  device = evaluate_retrieval(jnp.asarray(query), jnp.asarray(gallery), *labels)
  assert host == device


def test_scaling_by_a_power_of_two_is_exact_and_rotation_close():
  query, gallery, *labels = make_data()
  expected = evaluate_retrieval(query, gallery, *labels)
  assert expected == evaluate_retrieval(8 * query, 8 * gallery, *labels)
  rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))
  rotation = rotation.astype(np.float32)
  turned = evaluate_retrieval(query @ rotation, gallery @ rotation, *labels)
  assert turned['mAP'] == pytest.approx(expected['mAP'], abs=0.01)


def test_euclidean_and_cosine_agree_on_normalised_features():
  query, gallery, *labels = make_data()
  query /= np.linalg.norm(query, axis=1, keepdims=True)
  gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
  assert evaluate_retrieval(query, gallery, *labels)['mAP'] == pytest.approx(
    evaluate_retrieval(query, gallery, *labels, metric='cosine')['mAP'],
    abs=0.01,
  )


def test_a_collapsed_model_is_all_ties():
  query, gallery, *labels = make_data()
  result = evaluate_retrieval(
    np.ones_like(query), np.ones_like(gallery), *labels
  )
  right = (labels[0][:, None] == labels[1]) & (labels[2][:, None] != labels[3])
  assert result['ties'] == right.sum()


def test_features_that_do_not_fit_the_labels():
  query, gallery, *labels = make_data()
  with pytest.raises(errors.DataError, match='139 query and 200 gallery'):
    evaluate_retrieval(query[1:], gallery, *labels)
  with pytest.raises(errors.DataError, match='the same width'):
    evaluate_retrieval(query[:, 1:], gallery, *labels)
  with pytest.raises(errors.DataError, match='the same width'):
    evaluate_retrieval(query[:, 1:], gallery, *labels, rerank=True)


@pytest.mark.parametrize('rerank', [False, True])
def test_a_nan_feature_is_refused(rerank):
  query, gallery, *labels = make_data()
  gallery[3, 1] = np.nan
  with pytest.raises(errors.DataError, match='NaN'):
    evaluate_retrieval(query, gallery, *labels, rerank=rerank)


@pytest.fixture
def target():
  """A query of person 0, one of person 9 that nobody answers, a gallery."""
  identities = np.array([0, 9, 1, 0, 0], np.int32)
  cameras = np.array([0, 0, 1, 1, 1], np.int32)
  images = federation.Images(
    'mall',
    lambda: np.zeros((5, 1, 1, 3), np.uint8),
    identities,
    cameras,
    np.zeros(5, np.int32),
  )
  return federation.split_target(images, np.arange(5) < 2)


# Distances of the first query to the gallery: 1, 2, 3.
FOUND = np.array([[0.0], [5.0], [1.0], [2.0], [3.0]], np.float32)


@pytest.mark.parametrize(
  'precision, expected',
  [
    ('', (1 / 2 + 2 / 3) / 2),
    ('standard', (1 / 2 + 2 / 3) / 2),
    ('trapezoid', ((0 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2) / 2),
  ],
)
def test_precision_of_each_query(target, precision, expected):
  config = Evaluation(precision=precision)
  found = retrieval.evaluate(toy_run.model_of(config, lambda _: FOUND), target)
  (per_query,) = found['per_query']
  np.testing.assert_allclose(per_query, [expected, np.nan], rtol=1e-6)
  assert found['mAP'] == pytest.approx(100 * expected)
  assert (found['queries'], found['invalid_queries']) == (2, 1)
