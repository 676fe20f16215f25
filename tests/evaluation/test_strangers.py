"""Distances of strangers: by hand, by loops, and by their share."""

import itertools

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import federation
from fedreid_jax.evaluation import strangers


def target(people, is_query, name='mall'):
  people = np.asarray(people, np.int32)
  images = federation.Images(
    name,
    lambda: np.zeros((len(people), 1, 1, 3), np.uint8),
    people,
    np.zeros(len(people), np.int32),
    np.zeros(len(people), np.int32),
  )
  return federation.split_target(images, np.asarray(is_query, bool))


def test_ranks_by_hand():
  """Strangers at 1, 2, 2 and 5: a tie counts as near, and one is added."""
  found = strangers.Calibration(np.float32([1, 2, 2, 5]), 4, ('mall',))
  ranks = [found.rank(x) for x in (0.5, 1.0, 1.5, 2.0, 4.9, 7.0)]
  assert ranks == [(1, 5), (2, 5), (2, 5), (4, 5), (4, 5), (5, 5)]
  assert found.text(0.5) == '1 of 5' and found.text(2.0) == '4 of 5'


def test_a_distance_in_double_precision_is_that_of_a_stranger():
  found = strangers.Calibration(np.float32([0.1]), 2, ('mall',))
  assert found.rank(0.1) == found.rank(float(np.float32(0.1))) == (2, 2)


def test_a_share_is_reached_as_often_as_it_says():
  """Strangers of the same kind have a share of at most r with probability r."""
  rng = np.random.default_rng(0)
  known = strangers.Calibration(np.sort(rng.random(99)), 20, ('mall',))
  ranks = np.array([known.rank(x)[0] for x in rng.random(4000)])
  many = [
    strangers.Calibration(np.sort(rng.random(99)), 20, ('mall',)).rank(x)[0]
    for x in rng.random(4000)
  ]
  for r in (5, 20, 60):
    assert (np.array(many) <= r).mean() == pytest.approx(r / 100, abs=0.02)
  assert ranks.min() == 1 and ranks.max() == 100


@pytest.mark.parametrize('seed', range(4))
def test_every_two_persons_count_once(seed):
  """Persons 0 to 6, some on one side only; -1 and -2 are nobody."""
  rng = np.random.default_rng(seed)
  people = rng.integers(-2, 7, 60)
  is_query = rng.random(60) < 0.2
  query, gallery = np.flatnonzero(is_query), np.flatnonzero(~is_query)
  one, other = strangers.pairs(people, query, gallery)
  assert is_query[one].all() and not is_query[other].any()
  expected = {
    frozenset((int(a), int(b)))
    for a, b in itertools.product(people[query], people[gallery])
    if a != b and min(a, b) >= 0
  }
  found = [
    frozenset((int(a), int(b)))
    for a, b in zip(people[one], people[other], strict=True)
  ]
  assert len(found) == len(set(found)) and set(found) == expected


def test_all_images_of_a_person_are_drawn():
  people = np.repeat(np.arange(30), 6)
  rows = np.arange(180)
  one, other = strangers.pairs(people, rows[rows % 6 < 2], rows[rows % 6 >= 2])
  assert len(one) == 30 * 29 // 2
  assert {*one % 6} == {0, 1} and {*other % 6} == {2, 3, 4, 5}
  again = strangers.pairs(people, rows[rows % 6 < 2], rows[rows % 6 >= 2])
  np.testing.assert_array_equal(again, (one, other))


def test_many_pairs_and_persons_are_drawn(monkeypatch):
  people = np.tile(np.arange(40), 2)
  rows = np.arange(80)
  one, other = strangers.pairs(people, rows[:40], rows[40:], most=100)
  assert len({*zip(one, other, strict=True)}) == 100
  # Persons of all numbers, not only the first ones.
  assert len({*people[one]} | {*people[other]}) > 30
  monkeypatch.setattr(strangers, 'MOST_PERSONS', 10)
  one, other = strangers.pairs(people, rows[:40], rows[40:])
  assert len({*people[one]}) <= 10 and len({*people[other]}) <= 10


@pytest.mark.parametrize(
  'metric, expected', [('euclidean', [5, 13]), ('cosine', [1, 2])]
)
def test_distances_are_those_of_a_search(metric, expected):
  """One pair in each of two tests: persons of different tests are no pair."""
  first = target([0, 1], [True, False])
  second = target([0, 1], [True, False], 'park')
  found = strangers.calibrate(
    [
      (first, np.float32([[3, 0], [0, 4]])),
      (second, np.float32([[5, 0], [-8, 0]])),
    ],
    metric,
  )
  np.testing.assert_allclose(found.distances, expected, rtol=1e-6)
  assert found.persons == 4 and found.domains == ('mall', 'park')


def test_a_test_of_one_person_has_no_strangers():
  one = target([3, 3, -1], [True, False, False])
  with pytest.raises(errors.DataError, match='no two persons'):
    strangers.calibrate([(one, np.zeros((3, 2), np.float32))], 'euclidean')
