"""Metamorphic laws: changes that keep a metric, and changes that move it."""

import numpy as np
import pytest

from fedreid_jax.evaluation.protocol import protocols
from fedreid_jax.evaluation.ranking import evaluate_ranking

SEEDS = range(5)
RANKS = (1, 2, 3, 5, 10, 20)
METRICS = ('mAP', 'mINP', *(f'rank{rank}' for rank in RANKS))
NAMES = [n for n in protocols.PROTOCOLS if n != 'cuhk03_classic']


def instance(seed, num_queries=8, num_gallery=40):
  rng = np.random.default_rng([11, seed])
  return (
    rng.random((num_queries, num_gallery)),
    rng.integers(0, 5, num_queries),
    rng.integers(0, 5, num_gallery),
    rng.integers(1, 5, num_queries),
    rng.integers(1, 5, num_gallery),
  )


def evaluate(parts, protocol='market'):
  result = evaluate_ranking(*parts, protocol=protocol, ranks=RANKS)
  return {name: result[name] for name in METRICS}


def append(parts, distance, ids, cameras):
  return (
    np.concatenate([parts[0], distance], axis=1),
    parts[1],
    np.append(parts[2], ids),
    parts[3],
    np.append(parts[4], cameras),
  )


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('seed', SEEDS)
def test_order_labels_and_scale_do_not_matter(name, seed):
  distance, q_ids, g_ids, q_cams, g_cams = instance(seed)
  expected = evaluate(instance(seed), name)
  rng = np.random.default_rng(seed)
  p = rng.permutation(len(g_ids))
  assert expected == evaluate(
    (distance[:, p], q_ids, g_ids[p], q_cams, g_cams[p]), name
  )
  p = rng.permutation(len(q_ids))
  permuted = evaluate((distance[p], q_ids[p], g_ids, q_cams[p], g_cams), name)
  assert permuted == pytest.approx(expected, abs=1e-12)
  names = np.asarray([905, 3, 71, 12, 0])
  assert expected == evaluate(
    (distance, names[q_ids], names[g_ids], q_cams, g_cams), name
  )
  for monotone in (2 * distance + 3, distance**2, np.exp(distance)):
    assert expected == evaluate((monotone, q_ids, g_ids, q_cams, g_cams), name)


@pytest.mark.parametrize('seed', SEEDS)
def test_junk_and_same_camera_images_do_not_matter(seed):
  parts = instance(seed)
  expected = evaluate(parts)
  rng = np.random.default_rng(seed)
  junk = rng.random((8, 6))
  assert expected == evaluate(append(parts, junk, [-1] * 6, [1] * 6))
  one = tuple(
    part[:1] if i in (0, 1, 3) else part for i, part in enumerate(parts)
  )
  own = append(one, junk[:1], [one[1][0]] * 6, [one[3][0]] * 6)
  assert evaluate(one) == evaluate(own)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('seed', SEEDS)
def test_far_distractors_do_not_matter_and_near_ones_do(name, seed):
  parts = instance(seed)
  ids, cameras = [77, 78, 79], [1, 4, 5]
  far = append(parts, np.full((8, 3), 2.0) + np.arange(3), ids, cameras)
  assert evaluate(far, name) == evaluate(parts, name)
  near = evaluate(append(parts, -1.0 - np.ones((8, 3)), ids, cameras), name)
  assert near['rank1'] == 0
  assert near['mAP'] < evaluate(parts, name)['mAP']


@pytest.mark.parametrize('name', NAMES)
def test_duplicated_queries_do_not_matter(name):
  distance, q_ids, g_ids, q_cams, g_cams = instance(0)
  twice = (
    np.tile(distance, (2, 1)),
    np.tile(q_ids, 2),
    g_ids,
    np.tile(q_cams, 2),
    g_cams,
  )
  assert evaluate(twice, name) == pytest.approx(
    evaluate(instance(0), name), abs=1e-12
  )


@pytest.mark.parametrize('name', ['regdb', 'cuhk_sysu', 'single_shot'])
def test_perfect_and_reversed_lists_have_closed_forms(name):
  ids = np.repeat(np.arange(4), 3)
  cameras = np.ones(12, int)
  wrong = (ids[None, :] != np.arange(4)[:, None]).astype(float)
  labels = (np.arange(4), ids, np.zeros(4, int), cameras)
  assert set(evaluate((wrong, *labels), name).values()) == {100.0}
  worst = evaluate((1 - wrong, *labels), name)
  # Nine wrong images come first: hits at positions 9, 10, 11.
  assert worst['mAP'] == pytest.approx(100 / 3 * (1 / 10 + 2 / 11 + 3 / 12))
  assert worst['mINP'] == pytest.approx(100 * 3 / 12)
  assert worst['rank5'] == 0


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('seed', SEEDS)
def test_the_cmc_curve_never_falls(name, seed):
  result = evaluate(instance(seed), name)
  curve = [result[f'rank{rank}'] for rank in RANKS]
  assert curve == sorted(curve)


def test_one_right_answer_has_average_precision_of_one_over_its_rank():
  for rank in range(1, 9):
    ids = np.zeros(8, int)
    ids[rank - 1] = 1
    result = evaluate(([np.arange(8.0)], [1], ids, [0], np.ones(8, int)))
    assert result['mAP'] == pytest.approx(100 / rank)
    assert result['mINP'] == pytest.approx(100 / rank)


def test_random_distances_score_their_expectation():
  # E[AP] of a random order with R right of P images, summed over positions:
  # the image at position i is right with R/P, and then i-1 others before it
  # are right with (R-1)/(P-1) each.
  num_images, num_right = 40, 8
  i = np.arange(1, num_images + 1)
  ratio = (num_right - 1) / (num_images - 1)
  expected = 100 * np.mean((1 + (i - 1) * ratio) / i)
  ids = (np.arange(num_images) < num_right).astype(int)
  scores = []
  for seed in range(200):
    distance = np.random.default_rng(seed).random((4, num_images))
    labels = ([1] * 4, ids, [0] * 4, np.ones(num_images, int))
    scores.append(evaluate((distance, *labels))['mAP'])
  error = np.std(scores) / np.sqrt(len(scores))
  assert abs(np.mean(scores) - expected) < 5 * error
