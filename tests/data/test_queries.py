"""Queries of a target: who is one, and who can be found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedreid_jax import errors
from fedreid_jax.data import federation
from fedreid_jax.data.folder import queries


def domain(identities=(7, 7, 3, 3, 3), cameras=(0, 1, 0, 0, 1)):
  num = len(identities)
  return federation.Images(
    'd',
    lambda: np.zeros((num, 1, 1, 1), np.uint8),
    np.asarray(identities, np.int32),
    np.asarray(cameras, np.int32),
    np.zeros(num, np.int32),
  )


@pytest.mark.parametrize(
  'rule, expected, described',
  [
    ('first', [1, 0, 1, 0, 0], 'first image per identity'),
    (
      'first_per_camera',
      [1, 1, 1, 0, 1],
      'first image per identity and camera',
    ),
    ('camera=right', [0, 1, 0, 0, 1], 'all images of right'),
    ('camera=left+right', [1, 1, 1, 1, 1], 'all images of left+right'),
  ],
)
def test_fixed_rules(rule, expected, described):
  out = queries.choose(rule, domain(), ['left', 'right'], 0)
  assert out.mask.astype(int).tolist() == expected
  assert out.described == described


def test_without_cameras_the_first_is_that_of_an_identity():
  views = domain(cameras=range(5))
  out = queries.choose('first_per_camera', views, [], 0)
  assert out.mask.astype(int).tolist() == [1, 0, 1, 0, 0]
  assert out.described == 'first image per identity (no cameras)'


def chosen_of(pairs):
  return queries.choose('random', domain(*zip(*pairs, strict=True)), 'abcd', 0)


@pytest.mark.parametrize(
  'people, cameras, queries_, described',
  [
    # Twelve persons in four cameras with an image each: a query a person.
    (range(12), range(4), 12, 'identity (no camera has several of one)'),
    ([0, 1, 1], range(2), 4, 'identity and camera'),
  ],
)
def test_a_random_rule_says_what_it_chose(people, cameras, queries_, described):
  pairs = [(p, c) for p in people for c in cameras]
  if len({*people}) < len(people):  # an image of each camera is not enough
    pairs += pairs
  found = chosen_of(pairs)
  assert found.mask.sum() == queries_
  assert found.described == f'one random image per {described}'


def test_a_random_rule_with_some_of_both_says_so():
  """Person 0 has two images in camera 0; person 1 has none twice."""
  found = chosen_of([(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)])
  assert found.mask.sum() == 2
  assert found.described == (
    'one random image per identity and camera that has several of the '
    'identity, and one per identity without these (1)'
  )


def test_unknown_rule_and_camera():
  with pytest.raises(errors.ConfigError, match='query rule'):
    queries.choose('last', domain(), [], 0)
  with pytest.raises(errors.ConfigError, match="no camera 'up'"):
    queries.choose('camera=up', domain(), ['left'], 0)


images = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1)


@given(images, st.booleans(), st.integers(0, 9))
def test_every_random_query_has_a_match_and_everyone_with_one_is_asked(
  rows, has_cameras, seed
):
  people, cameras = (np.array(column) for column in zip(*rows, strict=True))
  views = cameras if has_cameras else np.arange(len(rows))
  target = domain(people, views)
  names = ['a', 'b', 'c', 'd'] if has_cameras else []
  can = {p for p in people.tolist() if len(np.unique(views[people == p])) > 1}
  if not can:
    with pytest.raises(errors.DataError, match='no identity of d has two'):
      queries.choose('random', target, names, seed)
    return
  mask = queries.choose('random', target, names, seed).mask
  assert {*people[mask].tolist()} == can
  for query in np.flatnonzero(mask):
    match = ~mask & (people == people[query]) & (views != views[query])
    assert match.any()
  pairs = list(zip(people[mask], views[mask], strict=True))
  assert len(set(pairs)) == len(pairs)
  if not has_cameras:
    assert mask.sum() == len(can)


def test_the_seed_draws_and_the_names_of_folders_do_not():
  target = domain([0] * 50 + [1] * 50, range(100))
  drawn = [
    np.flatnonzero(queries.choose('random', one, [], seed).mask).tolist()
    for seed, one in ((0, target), (0, target._replace(name='e')), (1, target))
  ]
  assert drawn[0] == drawn[1] != drawn[2]


def held_out(*args):
  return queries.held_out(*args, 'data.held_out')


def test_persons_are_held_out_whole_and_can_be_found():
  people = [p for p in range(20) for _ in range(1 if p < 5 else 3)]
  all_images = domain(people, range(len(people)))
  mask = held_out(all_images, False, 0.25, 0)
  tested = {*np.asarray(people)[mask].tolist()}
  assert len(tested) == 5 and min(tested) >= 5  # the others have one image
  assert not tested & {*np.asarray(people)[~mask].tolist()}
  again = [held_out(all_images, False, 0.25, seed) for seed in (0, 1)]
  np.testing.assert_array_equal(mask, again[0])
  assert (mask != again[1]).any()


def test_persons_of_one_camera_are_not_held_out():
  cameras = [0, 0, 0, 1, 0, 1, 0, 1]
  mask = held_out(domain([0, 0, 1, 1, 2, 2, 3, 3], cameras), True, 0.9, 0)
  assert not mask[:2].any() and mask[2:].all()


def test_one_is_no_plural():
  with pytest.raises(errors.DataError) as caught:
    held_out(domain([0, 0], [0, 0]), False, 0.5, 0)
  assert caught.value.what == '1 identity, of which 1 has two images'


@pytest.mark.parametrize('people', [[0, 0, 1, 1], [0, 0, 1, 2], [0]])
def test_too_few_persons(people):
  with pytest.raises(errors.DataError, match='at least three identities'):
    held_out(domain(people, range(len(people))), False, 0.5, 0)
