"""Half splits of the small sets and their files."""

import json

import numpy as np

from fedreid_jax.evaluation.protocol import half_splits
from fedreid_jax.evaluation.ranking import evaluate_ranking


def viper_like(num_ids=12):
  return np.tile(np.arange(num_ids), 2), np.repeat([0, 1], num_ids)


def same(first, second):
  return all(
    np.array_equal(a, b)
    for one, other in zip(first, second, strict=True)
    for a, b in zip(one, other, strict=True)
  )


def test_a_split_tests_half_of_the_identities_across_cameras():
  ids, cameras = viper_like()
  splits = half_splits.draw(ids, cameras)
  assert len(splits) == 10
  for split in splits:
    assert split.query.size == split.gallery.size == 6
    np.testing.assert_array_equal(ids[split.query], ids[split.gallery])
    assert (cameras[split.query] != cameras[split.gallery]).all()
    assert not set(ids[split.train]) & set(ids[split.query])
    assert split.train.size == 12
  assert len({tuple(ids[s.query]) for s in splits}) > 5


def test_an_odd_number_of_identities_rounds_down():
  splits = half_splits.draw(*viper_like(193), num_splits=1)
  assert splits[0].query.size == 96


def test_distractors_are_in_every_gallery_and_in_no_other_part():
  ids, cameras = viper_like()
  ids = np.append(ids, [0, 50, 51])
  cameras = np.append(cameras, [1, 1, 1])
  splits = half_splits.draw(
    ids, cameras, distractors=[24, 25, 26], num_test=4, query_camera=0
  )
  for split in splits:
    assert split.gallery[4:].tolist() == [24, 25, 26]
    assert split.query.size == 4
    assert (cameras[split.query] == 0).all()
    assert split.train.max() < 24


def test_one_camera_gives_two_images_and_a_protocol_that_ranks_them():
  ids = np.repeat(np.arange(6), 3)
  cameras = np.zeros(18, int)
  split = half_splits.draw(ids, cameras)[0]
  assert not set(split.query) & set(split.gallery)
  distance = (ids[split.query][:, None] != ids[split.gallery]).astype(float)
  labels = [array[part] for array in (ids, cameras) for part in split[1:]]
  result = evaluate_ranking(distance, *labels, protocol='single_shot')
  assert result['rank1'] == 100
  assert result['invalid_queries'] == 0


def test_a_split_depends_on_the_seed_and_its_number_only():
  ids, cameras = viper_like()
  ten = half_splits.draw(ids, cameras, seed=3)
  assert same(ten[:4], half_splits.draw(ids, cameras, num_splits=4, seed=3))
  assert not same(ten, half_splits.draw(ids, cameras, seed=4))


def test_described_splits_name_images_and_seed():
  names = [f'{k:02}.png' for k in range(8)]
  splits = half_splits.draw([1, 1, 2, 2, 3, 3, 4, 4], [1, 2] * 4, seed=8)
  kept = json.loads(json.dumps(half_splits.described(splits, names, 8)))
  assert kept['seed'] == 8 and len(kept['splits']) == 10
  for split, named in zip(splits, kept['splits'], strict=True):
    assert [names[k] for k in split.query] == named['query']
    assert [names[k] for k in split.gallery] == named['gallery']
