"""Blocks of distances against NumPy, and re-ranking against its equations."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation.evaluators.retrieval import evaluate_retrieval


def features(num_queries=300, num_gallery=70, width=19):
  rng = np.random.default_rng(0)
  return (
    rng.standard_normal((num_queries, width), dtype=np.float32),
    rng.standard_normal((num_gallery, width), dtype=np.float32),
  )


def all_rows(*args, **kwargs):
  return np.concatenate(list(distance_lib.squared_blocks(*args, **kwargs)))


def test_squared_euclidean_distances():
  query, gallery = features()
  difference = query[:, None].astype(np.float64) - gallery[None, :]
  np.testing.assert_allclose(
    all_rows(query, gallery), np.square(difference).sum(-1), rtol=1e-5
  )


@pytest.mark.parametrize('offset', [0, 1000, -3e4])
def test_a_common_mean_costs_no_digits(offset):
  query, gallery = (x + np.float32(offset) for x in features())
  difference = query[:, None].astype(np.float64) - gallery[None, :]
  np.testing.assert_allclose(
    all_rows(query, gallery), np.square(difference).sum(-1), rtol=1e-5
  )


def test_the_centre_keeps_equal_distances_equal():
  rng = np.random.default_rng(0)
  whole = np.float32(1000 + rng.integers(-3, 4, (500, 19)))
  difference = whole[:, None] - whole[None, :]
  np.testing.assert_array_equal(
    all_rows(whole, whole), np.square(difference).sum(-1)
  )
  # A mean within the spread is not subtracted: no bit changes.
  assert not distance_lib.centre(features()[1]).any()
  assert not distance_lib.centre(np.float32([[np.nan, 1], [1, 1]])).any()


def test_cosine_distances_are_half_the_squared_ones_of_normalised_features():
  query, gallery = features()
  unit = [f / np.linalg.norm(f, axis=1, keepdims=True) for f in features()]
  np.testing.assert_allclose(
    all_rows(query, gallery, 'cosine'), all_rows(*unit) / 2, atol=1e-6
  )


def test_a_zero_feature_has_a_defined_cosine_distance():
  query, gallery = features()
  rows = all_rows(np.zeros_like(query[:1]), gallery, 'cosine')
  np.testing.assert_array_equal(rows, np.ones((1, 70), np.float32))


@pytest.mark.parametrize('metric', distance_lib.METRICS)
def test_the_chunk_does_not_change_a_bit(metric):
  query, gallery = features()
  expected = all_rows(query, gallery, metric, 1)
  for chunk in (7, 256, 10_000):
    rows = all_rows(query, gallery, metric, chunk)
    np.testing.assert_array_equal(rows, expected)


def test_identical_images_are_at_distance_zero_not_below():
  query, _ = features()
  assert all_rows(query, query).min() >= 0


@pytest.mark.parametrize('blocks', [(1, 1), (256, 2), (257, 3)])
def test_no_more_than_a_chunk_is_in_flight(monkeypatch, blocks):
  chunk, expected = blocks
  query, gallery = features(num_queries=1000)
  compute, started = distance_lib._block, []

  def counting(*args):
    started.append(1)
    return compute(*args)

  monkeypatch.setattr(distance_lib, '_block', counting)
  ahead = []
  for number, _ in enumerate(
    distance_lib.squared_blocks(query, gallery, chunk=chunk)
  ):
    ahead.append(len(started) - number)
  assert max(ahead) == expected


@pytest.mark.parametrize(
  ('arguments', 'error'),
  [
    ({'metric': 'manhattan'}, errors.ConfigError),
    ({'chunk': 0}, errors.ConfigError),
    ({'gallery': np.zeros((4, 3))}, errors.DataError),
    ({'gallery': np.zeros(19)}, errors.DataError),
    ({'query': np.zeros(19)}, errors.DataError),
  ],
)
def test_errors(arguments, error):
  query, gallery = features()
  with pytest.raises(error):
    distance_lib.squared_blocks(
      **{
        'query': query,
        'gallery': gallery,
        **arguments,
      }
    )


def make_data(num_queries=25, num_gallery=60, seed=0):
  rng = np.random.default_rng(seed)
  ids = rng.integers(0, 8, num_queries + num_gallery)
  features = rng.standard_normal((8, 12))[ids]
  features = features + 0.9 * rng.standard_normal(features.shape)
  features = features.astype(np.float32)
  labels = (ids[:num_queries], ids[num_queries:])
  return features[:num_queries], features[num_queries:], *labels


def dense_rerank(query, gallery, metric, options):
  """Equations 1 to 12 with sets and matrices, in float64."""
  features = np.concatenate([query, gallery]).astype(np.float64)
  if metric == 'cosine':
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    distance = 1 - features @ features.T
  else:
    distance = np.square(features[:, None] - features[None, :]).sum(-1)
  distance = distance / distance.max(axis=1, keepdims=True)
  num_images = len(features)
  ranks = np.argsort(distance, axis=1, kind='stable')

  def reciprocal(i, k):
    return {
      int(j) for j in ranks[i, : k + 1] if i in ranks[j, : k + 1].tolist()
    }

  encodings = np.zeros((num_images, num_images))
  for i in range(num_images):
    members = reciprocal(i, options.k1)
    expanded = set(members)
    for j in members:
      theirs = reciprocal(j, int(np.around(options.k1 / 2)))
      if len(theirs & members) > 2 / 3 * len(theirs):
        expanded |= theirs
    columns = sorted(expanded)
    encodings[i, columns] = np.exp(-distance[i, columns])
    encodings[i] /= encodings[i].sum()
  averaged = np.stack([encodings[r[: options.k2]].mean(0) for r in ranks])
  num_queries = len(query)
  low = np.minimum(averaged[:num_queries, None], averaged[None, num_queries:])
  high = np.maximum(averaged[:num_queries, None], averaged[None, num_queries:])
  jaccard = 1 - low.sum(-1) / high.sum(-1)
  original = distance[:num_queries, num_queries:]
  weight = options.original_weight
  return (1 - weight) * jaccard + weight * original


@pytest.mark.parametrize('metric', ['euclidean', 'cosine'])
@pytest.mark.parametrize(
  'options',
  [
    distance_lib.Rerank(),
    distance_lib.Rerank(k1=5, k2=1, original_weight=0.0),
    distance_lib.Rerank(k1=7, k2=3, original_weight=0.5),
  ],
)
def test_matches_the_equations_up_to_the_scale_of_a_query(metric, options):
  query, gallery, *_ = make_data()
  blocks = distance_lib.reranked_blocks(query, gallery, metric, options=options)
  result = np.concatenate(list(blocks))
  expected = dense_rerank(query, gallery, metric, options)
  scale = result.max(axis=1) / expected.max(axis=1)
  np.testing.assert_allclose(result, expected * scale[:, None], rtol=2e-5)


@pytest.mark.parametrize('metric', ['euclidean', 'cosine'])
def test_lambda_one_returns_the_original_distances_bit_for_bit(metric):
  query, gallery, *_ = make_data()
  options = distance_lib.Rerank(original_weight=1.0)
  blocks = distance_lib.reranked_blocks(query, gallery, metric, options=options)
  original = distance_lib.squared_blocks(query, gallery, metric)
  np.testing.assert_array_equal(
    np.concatenate(list(blocks)), np.concatenate(list(original))
  )


def test_improves_clustered_features_and_keeps_the_counts():
  query, gallery, query_ids, gallery_ids = make_data(60, 200)
  labels = (query_ids, gallery_ids, np.zeros(60, int), np.ones(200, int))
  plain = evaluate_retrieval(query, gallery, *labels)
  better = evaluate_retrieval(query, gallery, *labels, rerank=True)
  same = evaluate_retrieval(
    query, gallery, *labels, rerank=distance_lib.Rerank(original_weight=1.0)
  )
  assert better['mAP'] > plain['mAP'] + 1
  assert same == plain


@pytest.mark.parametrize('copies', [1, 2])
def test_fewer_images_than_neighbours_and_identical_images(copies):
  query = np.ones((1, 4), np.float32)
  blocks = distance_lib.reranked_blocks(query, np.ones((copies, 4), np.float32))
  np.testing.assert_array_equal(next(iter(blocks)), np.zeros((1, copies)))


@pytest.mark.parametrize(
  'options',
  [
    distance_lib.Rerank(k1=0),
    distance_lib.Rerank(k2=0),
    distance_lib.Rerank(original_weight=1.5),
    distance_lib.Rerank(original_weight=float('nan')),
  ],
)
def test_options_out_of_range_are_refused(options):
  query, gallery, query_ids, gallery_ids = make_data()
  with pytest.raises(errors.ConfigError, match='lambda'):
    evaluate_retrieval(
      query,
      gallery,
      query_ids,
      gallery_ids,
      np.zeros(25, int),
      np.ones(60, int),
      rerank=options,
    )
