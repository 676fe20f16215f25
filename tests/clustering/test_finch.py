import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csgraph

from fedreid_jax.clustering import finch

clusters_of = jax.jit(jax.vmap(finch.first_neighbour_clusters))


def first_members(labels):
  """Names every cluster by its lowest row."""
  return np.array([np.flatnonzero(labels == label)[0] for label in labels])


def by_adjacency(features):
  """Components of the paper's eq. 1, worked out in float64."""
  features = np.asarray(features, 'f8')
  unit = features / np.linalg.norm(features, axis=1, keepdims=True)
  distance = 1 - unit @ unit.T
  np.fill_diagonal(distance, np.inf)
  nearest = distance.argmin(axis=1)
  row = np.arange(len(features))
  linked = (
    (nearest[:, None] == row)
    | (row[:, None] == nearest)
    | (nearest[:, None] == nearest)
  )
  return first_members(csgraph.connected_components(linked)[1])


@pytest.mark.parametrize('num', range(2, 13))
def test_five_hundred_random_cases(num):
  rng = np.random.default_rng(num)
  cases = rng.standard_normal((46, num, 8)).astype('f4')
  found = np.asarray(clusters_of(cases))
  assert found.dtype == np.int32
  for features, labels in zip(cases, found, strict=True):
    np.testing.assert_array_equal(labels, by_adjacency(features))
    assert np.unique(labels, return_counts=True)[1].min() >= 2


def test_length_of_a_row_does_not_matter():
  rng = np.random.default_rng(0)
  features = rng.standard_normal((9, 8))
  scaled = features * 10.0 ** rng.integers(-4, 5, (9, 1))
  found = finch.first_neighbour_clusters(jnp.asarray(scaled))
  np.testing.assert_array_equal(found, by_adjacency(features))


def test_a_chain_of_nearest_neighbours_is_one_cluster():
  """Every row's nearest is the one before: the longest path there is."""
  angles = np.cumsum(0.9 ** np.arange(12))[::-1] * 0.2
  rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  nearest = by_adjacency(rows)
  assert not nearest.any()
  assert not finch.first_neighbour_clusters(rows).any()


def test_planted_pairs_and_a_single_row():
  rows = jnp.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]])
  assert finch.first_neighbour_clusters(rows).tolist() == [0, 1, 0, 1]
  assert finch.first_neighbour_clusters(rows[:1]).tolist() == [0]


def test_equal_rows_are_one_cluster():
  assert not finch.first_neighbour_clusters(jnp.ones((7, 3))).any()


@pytest.mark.parametrize('wrong', [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_alone(wrong):
  rows = jnp.array([[1, 0], [0, 1], [wrong, 1], [1, 0.1], [0.1, 1]])
  found = finch.first_neighbour_clusters(rows)
  assert found.tolist() == [0, 1, 2, 0, 1]


def test_rows_that_are_not_valid_are_alone_whatever_they_hold():
  """Even nan; the others are clustered as if they were not there."""
  rng = np.random.default_rng(1)
  for _ in range(20):
    features = rng.standard_normal((8, 4)).astype('f4')
    valid = rng.random(8) < 0.6
    features[~valid] = rng.choice([np.nan, np.inf, 0.0, 1.0], (8, 4))[~valid]
    run = functools.partial(jax.jit(finch.first_neighbour_clusters), features)
    found, kept = np.asarray(run(valid)), np.flatnonzero(valid)
    assert (found[~valid] == np.flatnonzero(~valid)).all()
    if len(kept) > 1:
      np.testing.assert_array_equal(
        found[kept], kept[by_adjacency(features[kept])]
      )
