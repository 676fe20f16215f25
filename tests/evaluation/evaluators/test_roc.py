"""TPR at FPR by hand, by brute force and by scikit-learn."""

import itertools

import numpy as np
import pytest
import toy_run
from sklearn import metrics as sklearn_metrics

from fedreid_jax import errors
from fedreid_jax.data import federation, protocols
from fedreid_jax.evaluation import gallery
from fedreid_jax.evaluation.evaluators import roc
from fedreid_jax.evaluation.options import Evaluation


def curve(same, different):
  return roc.roc(lambda: [(np.float32(same), np.float32(different))])


def target(identities, cameras, num_queries, protocol=''):
  people = np.asarray(identities, np.int32)
  images = federation.Images(
    'mall',
    lambda: np.zeros((len(people), 1, 1, 3), np.uint8),
    people,
    np.asarray(cameras, np.int32),
    np.zeros(len(people), np.int32),
  )
  is_query = np.arange(len(people)) < num_queries
  return federation.split_target(images, is_query, protocol)


def evaluate(features, test, **fields):
  config = Evaluation(**fields)
  return roc.evaluate(toy_run.model_of(config, lambda _: features), test)


def test_a_worked_example():
  """Two queries on a line, at 0 (person 0) and at 10 (person 1), camera 0.

  The image of person 0 by camera 0 is hidden from the first query. The squared
  distances of the first query are 1 and 16 of its own person and 4 of person 1;
  those of the second query are 64 of its own person, and 81, 36 and 25 of
  person 0: two times three pairs. The thresholds 1, 16 and 64 accept 1, 2 and
  3 right pairs, and 0, 1 and 3 wrong ones (4; 4, 36 and 25) of 4.
  """
  test = target([0, 1, 0, 0, 0, 1], [0, 0, 1, 1, 0, 1], 2)
  features = np.float32([[0], [10], [1], [4], [5], [2]])
  found = evaluate(features, test)
  assert found == pytest.approx(
    dict.fromkeys((f'TPR_at_FPR_{r}' for r in roc.RATES), 100 / 3)
    | dict.fromkeys((f'TNR_at_FNR_{r}' for r in roc.RATES), 25.0)
    | {'EER': 100 / 3}
  )
  (trial,) = test.trials
  labels = gallery.labels_of(test.images, trial)
  rows = np.square(features[trial.query] - features[trial.gallery].T)
  parts = [
    *roc.split(
      np.split(rows, 2),
      labels,
      gallery.Gallery(labels, protocols.get('market')),
    )
  ]
  same, different = (np.concatenate(side) for side in zip(*parts, strict=True))
  assert same.tolist() == [1, 16, 64]
  assert different.tolist() == [4, 81, 36, 25]
  points = curve(same, different)
  assert points.threshold.tolist() == [1, 16, 64]
  assert points.fpr.tolist() == [0, 0.25, 0.75]
  np.testing.assert_allclose(points.fnr, [2 / 3, 1 / 3, 0])


def test_pairs_at_one_distance_are_accepted_together():
  """One of 100 wrong pairs may be accepted, but not the two at distance 2."""
  same, different = [1, 2, 2, 5], [2, 2, *range(100, 198)]
  assert roc.metrics(curve(same, different))['TPR_at_FPR_1e-2'] == 25.0
  different[0] = 99
  assert roc.metrics(curve(same, different))['TPR_at_FPR_1e-2'] == 100.0
  assert roc.metrics(curve(same, different))['TPR_at_FPR_1e-3'] == 25.0


@pytest.mark.parametrize('size', [100, 300, 700])
def test_a_rate_of_counts_is_reached_exactly(size):
  """1 - 0.99 is more than 0.01, and 1 of 100 is not."""
  near, far = np.zeros(size - size // 100), np.full(size // 100, 2.0)
  found = roc.metrics(curve([*near, *far], [1.0]))
  assert found['TNR_at_FNR_1e-2'] == 100.0
  found = roc.metrics(curve([1.0], [*(3 - near), *(2 - far)]))
  assert found['TPR_at_FPR_1e-2'] == 100.0


def pairs_by_loops(features, test, places=()):
  """Yields (same person, distance) of every valid pair."""
  own, (trial,) = test.images, test.trials
  for query, image in itertools.product(trial.query, trial.gallery):
    person = own.identities[query] == own.identities[image]
    cameras = own.cameras[query], own.cameras[image]
    if person and cameras[0] == cameras[1] and not places:
      continue
    if cameras in places or own.identities[image] == -1:
      continue
    yield person, float(np.square(features[query] - features[image]).sum())


@pytest.mark.parametrize('protocol', ['', 'sysu'])
@pytest.mark.parametrize('seed', range(3))
def test_rates_are_those_of_scikit_learn(seed, protocol):
  """Small whole numbers, so that distances are exact and many are equal."""
  rng = np.random.default_rng(seed)
  people = rng.integers(-1, 9, 430)
  people[:150] = rng.integers(0, 9, 150)
  cameras = rng.integers(1, 5, 430)
  centres = rng.integers(-6, 6, (10, 3))
  features = np.float32(centres[people] + rng.integers(-3, 4, (430, 3)))
  test = target(people, cameras, 150, protocol)
  found = evaluate(features, test)
  places = ((3, 2), (2, 3)) if protocol else ()
  same, distance = map(
    np.array, zip(*pairs_by_loops(features, test, places), strict=True)
  )
  assert len(distance) > 20_000
  fpr, tpr, _ = sklearn_metrics.roc_curve(
    same, -distance, drop_intermediate=False
  )
  # As fast-reid calls it: different persons are the positive pairs.
  fnr, tnr, _ = sklearn_metrics.roc_curve(
    ~same, distance, drop_intermediate=False
  )
  expected = {'EER': np.maximum(fpr, 1 - tpr).min()}
  for name, rate in roc.RATES.items():
    expected[f'TPR_at_FPR_{name}'] = tpr[fpr <= rate].max()
    expected[f'TNR_at_FNR_{name}'] = tnr[fnr <= rate].max()
  assert found == pytest.approx({n: 100 * x for n, x in expected.items()})
  assert 0 < found['TPR_at_FPR_1e-3'] < found['TPR_at_FPR_1e-2'] < 100
  assert found == evaluate(features, test, rerank=True)


def test_the_parts_of_the_pairs_change_nothing():
  rng = np.random.default_rng(0)
  same, different = rng.integers(0, 50, 90), rng.integers(20, 90, 4000)
  parts = [*zip(np.split(same, 3), np.split(different, (7, 7)), strict=True)]
  whole = curve(same, different)
  for found, expected in zip(roc.roc(lambda: parts), whole, strict=True):
    np.testing.assert_array_equal(found, expected)


def test_several_trials_have_a_mean_and_a_deviation():
  test = target([0, 1, 0, 1], [0, 0, 1, 1], 2)
  features = np.float32([[0], [3], [1], [2]])
  (trial,) = test.trials
  other = trial._replace(query=trial.query[:1])
  twice = test._replace(trials=(trial, other))
  first, second = (
    evaluate(features, test._replace(trials=(one,)))['TPR_at_FPR_1e-2']
    for one in twice.trials
  )
  found = evaluate(features, twice)
  assert found['TPR_at_FPR_1e-2'] == pytest.approx((first + second) / 2)
  assert found['TPR_at_FPR_1e-2_std'] == pytest.approx(abs(first - second) / 2)


@pytest.mark.parametrize('same, different', [([], [1.0]), ([1.0], [])])
def test_one_kind_of_pairs_has_no_curve(same, different):
  with pytest.raises(errors.DataError, match='pairs of one person'):
    curve(same, different)
