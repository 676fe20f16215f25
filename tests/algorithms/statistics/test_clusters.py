import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms.statistics import clusters
from fedreid_jax.losses import metric

cluster = pytest.importorskip('sklearn.cluster')


def points(seed, num, width=8, groups=6, spread=0.35):
  rng = np.random.default_rng(seed)
  centres = rng.normal(size=(groups, width))
  x = centres[rng.integers(0, groups, num)]
  x = x + spread * rng.normal(size=(num, width))
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype('f4')


def padded(x, more):
  """Features and their flags, with rows of padding."""
  rows = np.random.default_rng(1).normal(size=(more, x.shape[1]))
  everything = jnp.asarray(np.concatenate([x, rows]), jnp.float32)
  return everything, np.arange(len(everything)) < len(x)


def plain_jaccard(x, k1, k2):
  """The definition, with a loop over images and sets of neighbours."""
  squares = ((x[:, None].astype('f8') - x) ** 2).sum(-1)
  order = squares.argsort(1, kind='stable')

  def reciprocal(i, k):
    return {j for j in order[i][:k] if i in order[j][:k]}

  half = int(np.around(k1 / 2)) + 1
  encoded = np.zeros((len(x), len(x)))
  for i in range(len(x)):
    own = reciprocal(i, k1)
    found = set(own)
    for j in own:
      theirs = reciprocal(j, half)
      if len(theirs & own) > 2 / 3 * len(theirs):
        found |= theirs
    found = sorted(found)
    weights = np.exp(-squares[i, found])
    encoded[i, found] = weights / weights.sum()
  encoded = np.stack([encoded[order[i][:k2]].mean(0) for i in range(len(x))])
  low = np.minimum(encoded[:, None], encoded).sum(-1)
  high = np.maximum(encoded[:, None], encoded).sum(-1)
  return 1 - low / high


@pytest.mark.parametrize('k1, k2', [(12, 4), (7, 1), (30, 6)])
def test_jaccard_distances_are_those_of_the_definition(k1, k2):
  x, valid = padded(points(0, 50), 7)
  found = np.asarray(
    jax.jit(clusters.jaccard, static_argnums=(2, 3))(x, valid, k1, k2)
  )
  np.testing.assert_allclose(
    found[:50, :50], plain_jaccard(np.asarray(x[:50]), k1, k2), atol=2e-6
  )
  assert np.isinf(found[50:]).all() and np.isinf(found[:, 50:]).all()


@pytest.mark.parametrize('eps', [0.1, 0.25, 0.45, 0.8])
@pytest.mark.parametrize('least', [1, 4])
def test_dbscan_gives_the_numbers_of_scikit_learn(eps, least):
  for seed in range(5):
    x, valid = padded(points(seed, 60, spread=0.6), 5)
    squares = np.square(metric.pairwise_distance(x))
    found = clusters.dbscan(squares, valid, eps, least)
    own = cluster.DBSCAN(eps=eps, min_samples=least, metric='precomputed')
    expected = own.fit_predict(squares[:60, :60])
    np.testing.assert_array_equal(found[:60], expected)
    assert (np.asarray(found[60:]) == -1).all()


def test_a_long_chain_is_one_cluster():
  place = np.arange(100.0)
  distances = abs(place[:, None] - place)
  found = clusters.dbscan(distances, np.ones(100, bool), 1.0, 2)
  assert (np.asarray(found) == 0).all()


def plain_bottom_up(x, labels, merges, penalty):
  """Goes through all pairs in the order of their distances."""
  labels = list(labels)
  sizes = [labels.count(label) for label in labels]
  pairs = [
    (((x[i] - x[j]) ** 2).sum() + penalty * (sizes[i] + sizes[j]), i, j)
    for i in range(len(x))
    for j in range(i + 1, len(x))
  ]
  for _, i, j in sorted(pairs):
    if merges and labels[i] != labels[j]:
      low, high = sorted((labels[i], labels[j]))
      labels = [low if label == high else label for label in labels]
      merges -= 1
  return np.unique(labels, return_inverse=True)[1]


@pytest.mark.parametrize('penalty', [0.0, 0.05])
def test_bottom_up_merges_the_nearest_pairs(penalty):
  x, valid = padded(points(3, 30), 4)
  found = np.concatenate([np.arange(30), [30] * 4])
  expected = np.arange(30)
  for _ in range(4):
    found = clusters.bottom_up(x, found, valid, 6, penalty)
    expected = plain_bottom_up(np.asarray(x[:30], 'f8'), expected, 6, penalty)
    np.testing.assert_array_equal(found[:30], expected)
    assert (np.asarray(found[30:]) == -1).all()
  assert len(np.unique(expected)) == 6


def test_bottom_up_ends_with_one_cluster():
  x, valid = padded(points(4, 10), 2)
  found = clusters.bottom_up(x, np.arange(12), valid, 50, 0.0)
  assert found.tolist() == [0] * 10 + [-1] * 2


def test_means_of_clusters():
  x = np.array([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0], [7.0, 1.0]], 'f4')
  found = clusters.means(x, np.array([1, 1, -1, 0]))
  np.testing.assert_array_equal(found, [[7, 1], [2, 1], [0, 0], [0, 0]])
