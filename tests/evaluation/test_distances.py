"""Blocks of distances against float64 NumPy, and their bits."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.evaluation import distances as distance_lib


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
