"""Golden numbers, a slow oracle, laws and the errors of the ranking metrics."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from fedreid_jax import errors
from fedreid_jax.data import protocols
from fedreid_jax.evaluation import ranking
from fedreid_jax.evaluation.ranking import evaluate_ranking

# Two instances worked out with the released evaluators of the field.
G1 = {
  'distance': [
    [0.10, 0.50, 0.20, 0.70, 0.30, 0.80, 0.60, 0.40],
    [0.90, 0.15, 0.35, 0.05, 0.25, 0.45, 0.55, 0.65],
    [0.11, 0.22, 0.33, 0.44, 0.01, 0.05, 0.66, 0.77],
    [0.5, 0.4, 0.3, 0.2, 0.1, 0.6, 0.7, 0.8],
  ],
  'query_ids': [0, 1, 2, 3],
  'gallery_ids': [0, 0, 1, 1, 2, 2, 0, 3],
  'query_cameras': [0, 1, 0, 0],
  'gallery_cameras': [0, 1, 0, 1, 0, 1, 2, 0],
}
G2 = {
  'distance': [
    [0.2, 0.1, 0.05, 0.3, 0.15, 0.4, 0.6],
    [0.5, 0.4, 0.1, 0.3, 0.2, 0.25, 0.6],
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
    [0.5, 0.4, 0.3, 0.2, 0.1, 0.6, 0.05],
  ],
  'query_ids': [1, 2, 3, 4],
  'gallery_ids': [1, 1, 2, 2, 3, 3, 4],
  'query_cameras': [3, 3, 6, 3],
  'gallery_cameras': [1, 2, 2, 4, 1, 5, 2],
}
LLCM = {**G2, 'query_cameras': [1, 2, 5, 4]}


@pytest.mark.parametrize(
  ('case', 'protocol', 'invalid', 'cmc', 'mean_ap', 'mean_inp'),
  [
    (G1, 'market', 1, [1 / 3, 1 / 3, 2 / 3, 1, 1], 0.552778, 0.577778),
    (G1, 'fedreid_legacy', 1, [0.25, 0.25, 0.5, 0.75, 0.75], 0.347917, None),
    (G2, 'sysu', 1, [0, 2 / 3, 1], 0.366667, 0.388889),
    (G2, 'regdb', 0, [0.5, 0.75, 0.75], 0.629167, 0.583333),
    (LLCM, 'llcm', 0, [0.25, 0.75, 1], 0.508333, 0.508333),
  ],
)
def test_golden_instances(case, protocol, invalid, cmc, mean_ap, mean_inp):
  ranks = range(1, len(cmc) + 1)
  result = evaluate_ranking(**case, protocol=protocol, ranks=ranks)
  assert result['mAP'] == pytest.approx(100 * mean_ap, abs=1e-4)
  if mean_inp is not None:
    assert result['mINP'] == pytest.approx(100 * mean_inp, abs=1e-4)
  for rank, value in zip(ranks, cmc, strict=True):
    assert result[f'rank{rank}'] == pytest.approx(100 * value, abs=1e-9)
  assert result['queries'] == 4
  assert result['gallery'] == len(case['gallery_ids'])
  assert result['invalid_queries'] == invalid
  assert result['ties'] == 0


@pytest.mark.parametrize(
  ('protocol', 'per_query'),
  [
    ('market', [0.325, 1 / 3, 1.0, None]),
    ('fedreid_legacy', [0.225, 1 / 6, 1.0, 0.0]),
  ],
)
def test_golden_average_precision_of_each_query(protocol, per_query):
  for query, expected in enumerate(per_query):
    one = {
      name: values[query : query + 1]
      for name, values in G1.items()
      if not name.startswith('gallery')
    }
    one = {**one, **{k: v for k, v in G1.items() if k.startswith('gallery')}}
    if not expected:
      with pytest.raises(errors.DataError, match='has a match'):
        evaluate_ranking(**one, protocol=protocol)
      continue
    result = evaluate_ranking(**one, protocol=protocol)
    assert result['mAP'] == pytest.approx(100 * expected, abs=1e-9)


@pytest.mark.parametrize(
  ('hits', 'standard', 'trapezoid', 'penalty'),
  [
    ([1, 0, 1], 0.833333, 0.791667, 0.666667),
    ([0, 1], 0.5, 0.25, 0.5),
    ([1, 1, 0, 1, 0, 0, 1], 0.830357, 0.811012, 0.571429),
    ([0, 0, 1, 1], 0.416667, 0.291667, 0.5),
  ],
)
def test_average_precision_vectors(hits, standard, trapezoid, penalty):
  positions = np.flatnonzero(hits)
  for rule, expected in (('standard', standard), ('trapezoid', trapezoid)):
    precision = ranking.average_precision(positions, rule)
    assert precision == pytest.approx(expected, abs=1e-6)
  result = evaluate_ranking(
    [np.arange(len(hits))], [1], hits, [0], [1] * len(hits)
  )
  assert result['mAP'] == pytest.approx(100 * standard, abs=1e-4)
  assert result['mINP'] == pytest.approx(100 * penalty, abs=1e-4)


def slow_evaluation(
  distance, query_ids, gallery_ids, query_cameras, gallery_cameras, rules, ranks
):
  """The definitions for one query and one position at a time."""
  precisions, penalties, curves, invalid = [], [], [], 0
  for q, row in enumerate(distance):
    kept = []
    for g in sorted(range(len(row)), key=lambda g, row=row: (row[g], g)):
      same = gallery_ids[g] == query_ids[q]
      camera = gallery_cameras[g] == query_cameras[q]
      places = (query_cameras[q], gallery_cameras[g])
      if gallery_ids[g] == rules.junk_identity:
        continue
      if places in rules.common_places:
        continue
      if rules.same_camera and same and camera:
        continue
      kept.append(gallery_ids[g])
    hits = [identity == query_ids[q] for identity in kept]
    if not any(hits):
      invalid += 1
      if rules.count_invalid:
        precisions.append(0)
        penalties.append(0)
        curves.append([0 for _ in ranks])
      continue
    found, area, last = 0, 0.0, 0
    for position, hit in enumerate(hits):
      if hit:
        before = found / position if position else 1.0
        found, last = found + 1, position
        at_hit = found / (position + 1)
        area += (
          at_hit if rules.precision == 'standard' else (before + at_hit) / 2
        )
    precisions.append(area / found)
    penalties.append(found / (last + 1))
    listed = list(dict.fromkeys(kept)) if rules.cmc == 'identity' else kept
    first = listed.index(query_ids[q])
    curves.append([int(first < rank) for rank in ranks])
  return {
    'mAP': 100 * np.mean(precisions),
    'mINP': 100 * np.mean(penalties),
    **{
      f'rank{rank}': 100 * value
      for rank, value in zip(ranks, np.mean(curves, axis=0), strict=True)
    },
    'invalid_queries': invalid,
  }


def random_instance(seed, num_queries=7, num_gallery=24, levels=None):
  rng = np.random.default_rng(seed)
  distance = rng.random((num_queries, num_gallery))
  if levels:
    distance = np.floor(distance * levels)
  return (
    distance,
    rng.integers(0, 5, num_queries),
    rng.integers(-1, 5, num_gallery),
    rng.integers(1, 5, num_queries),
    rng.integers(1, 5, num_gallery),
  )


@pytest.mark.parametrize('levels', [None, 1, 3, 10])
@pytest.mark.parametrize(
  'protocol', [n for n in protocols.PROTOCOLS if n != 'cuhk03_classic']
)
def test_matches_the_definitions(protocol, levels):
  ranks = (1, 2, 5, 40)
  for seed in range(20):
    instance = random_instance(seed, levels=levels)
    expected = slow_evaluation(*instance, protocols.PROTOCOLS[protocol], ranks)
    result = evaluate_ranking(*instance, protocol=protocol, ranks=ranks)
    assert {name: result[name] for name in expected} == pytest.approx(
      expected, abs=1e-9
    )


def test_average_precision_matches_scikit_learn_without_ties():
  rng = np.random.default_rng(0)
  for _ in range(100):
    ids = rng.integers(0, 4, 30)
    distance = rng.permutation(30) / 30
    result = evaluate_ranking([distance], [0], ids, [0], np.ones(30, int))
    expected = sklearn_metrics.average_precision_score(ids == 0, -distance)
    assert result['mAP'] == pytest.approx(100 * expected, abs=1e-10)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data())
def test_any_distances_match_the_definitions(data):
  num_gallery = data.draw(st.integers(1, 12))
  ints = st.integers(0, 2)
  labels = st.lists(ints, min_size=num_gallery, max_size=num_gallery)
  values = st.floats(-2, 2, allow_subnormal=True, width=32) | st.sampled_from(
    [np.inf, 0.0, -0.0]
  )
  row = st.lists(values, min_size=num_gallery, max_size=num_gallery)
  gallery_ids, gallery_cameras = data.draw(labels), data.draw(labels)
  instance = (
    np.asarray(data.draw(st.lists(row, min_size=2, max_size=2)), np.float32),
    [gallery_ids[0], 1],
    gallery_ids,
    [9, 1],
    gallery_cameras,
  )
  rules = protocols.PROTOCOLS['market']
  expected = slow_evaluation(*instance, rules, (1, 3))
  result = evaluate_ranking(*instance, ranks=(1, 3))
  assert {name: result[name] for name in expected} == pytest.approx(
    expected, abs=1e-9
  )


def test_ties_follow_the_gallery_order_and_are_counted():
  # The match shares its distance with images 0 and 2: it is second.
  result = evaluate_ranking(
    [[0.5, 0.5, 0.5, 0.9]], [1], [0, 1, 0, 1], [0], [1, 1, 1, 1], ranks=(1, 2)
  )
  assert result['rank1'] == 0
  assert result['rank2'] == 100
  assert result['ties'] == 1
  assert result['mAP'] == pytest.approx(100 * (1 / 2 + 2 / 4) / 2)


def test_ties_among_right_answers_or_with_dropped_images_do_not_count():
  # Images 0 and 1 are right, image 2 is dropped: nothing depends on the rule.
  result = evaluate_ranking(
    [[0.5, 0.5, 0.5, 0.9]], [1], [1, 1, 1, 0], [0], [1, 1, 0, 1]
  )
  assert result['ties'] == 0
  assert result['mAP'] == 100


def test_a_short_list_pads_the_curve_with_its_last_value():
  result = evaluate_ranking(**G1, protocol='fedreid_legacy', ranks=(5, 50))
  assert result['rank50'] == result['rank5'] == 75


def test_junk_is_never_seen():
  with_junk = evaluate_ranking(
    [[0.1, 0.2, 0.3]], [1], [-1, 1, 0], [0], [1, 1, 1], ranks=(1,)
  )
  assert with_junk['rank1'] == 100


def expected_single_shot_curve(distance, ids, query, ranks):
  """Averages over every single-shot gallery there is."""
  folders = [np.flatnonzero(ids == i) for i in np.unique(ids)]
  steps = []
  for drawn in itertools.product(*folders):
    ordered = sorted(drawn, key=lambda g: (distance[g], g))
    first = [ids[g] for g in ordered].index(query)
    steps.append([first < rank for rank in ranks])
  return 100 * np.mean(steps, axis=0)


@pytest.mark.parametrize('levels', [None, 3])
def test_single_shot_curve_approaches_the_mean_over_all_galleries(levels):
  rng = np.random.default_rng(1)
  distance = rng.random(12)
  if levels:
    distance = np.floor(levels * distance)
  ids = np.asarray([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
  ranks = (1, 2, 3, 4)
  rules = protocols.PROTOCOLS['cuhk03_classic']._replace(repeats=20_000)
  result = evaluate_ranking(
    [distance], [0], ids, [0], np.ones(12, int), rules, ranks
  )
  expected = expected_single_shot_curve(distance, ids, 0, ranks)
  # Four standard errors of a proportion over 20,000 draws.
  assert [result[f'rank{r}'] for r in ranks] == pytest.approx(
    expected, abs=100 * 4 * 0.5 / np.sqrt(20_000)
  )


def test_single_shot_curve_depends_on_its_seed_only():
  instance = random_instance(3)

  def run(seed):
    return evaluate_ranking(*instance, protocol='cuhk03_classic', seed=seed)

  assert run(1) == run(1)
  assert run(1) != run(2)
  assert run(1)['mAP'] == run(2)['mAP']


def test_single_shot_curve_of_a_single_shot_gallery_is_the_plain_one():
  distance = np.random.default_rng(0).random((5, 6))
  labels = (np.arange(5), np.arange(6), np.zeros(5, int), np.ones(6, int))
  classic = evaluate_ranking(distance, *labels, protocol='cuhk03_classic')
  assert classic == evaluate_ranking(distance, *labels, protocol='market')


def change(**changes):
  return {**G1, **changes}


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (change(distance=np.zeros((4, 7))), 'need .4, 8.'),
    (change(distance=np.zeros(8)), 'need .4, 8.'),
    (change(distance=np.full((4, 8), np.nan)), 'NaN distance'),
    (change(query_ids=[0, 1, 2]), '3 identities but 4 cameras'),
    (change(gallery_ids=[]), 'gallery_ids'),
    (change(query_ids=[], query_cameras=[]), 'query_ids'),
    (change(gallery_ids=[0.5] * 8), 'give integers'),
    (change(query_ids=[7, 7, 7, 7]), 'none of 4 queries'),
    (change(query_ids=[-1, -1, -1, -1]), 'none of 4 queries'),
  ],
)
def test_data_errors(arguments, message):
  with pytest.raises(errors.DataError, match=message):
    evaluate_ranking(**arguments)


def test_one_nan_names_its_query():
  distance = np.asarray(G1['distance'])
  distance[2, 5] = np.nan
  with pytest.raises(errors.DataError, match='query 2'):
    evaluate_ranking(**change(distance=distance))


def test_rank_zero_is_refused():
  with pytest.raises(errors.ConfigError, match='ranks'):
    evaluate_ranking(**G1, ranks=(0, 1))


def test_integer_distances_and_half_precision_are_ranked():
  distance = np.random.default_rng(0).permutation(32).reshape(4, 8)
  whole = evaluate_ranking(**change(distance=distance))
  half = evaluate_ranking(**change(distance=distance.astype(np.float16)))
  assert whole == half


def slow_positions(distance, right, dropped):
  order = np.argsort(distance, kind='stable')
  order = order[~np.isin(order, dropped)]
  return np.flatnonzero(np.isin(order, right))


@pytest.mark.parametrize('levels', [0, 40])
@pytest.mark.parametrize('nearest', [False, True])
@pytest.mark.parametrize('number', [1, 7, 8])
def test_counted_and_sorted_matches_have_the_positions_of_an_argsort(
  monkeypatch, number, nearest, levels
):
  monkeypatch.setattr(ranking, 'counted_matches', lambda: 7)
  rng = np.random.default_rng(number)
  distance = rng.random(600, np.float32)
  images = rng.permutation(600)
  right, dropped = np.sort(images[:number]), images[-50:]
  if nearest:  # few distances are compared
    distance[right] *= 0.1
  if levels:
    distance = np.floor(levels * distance)
  answers = ranking.kept_positions(distance, right, dropped)
  expected = slow_positions(distance, right, dropped)
  np.testing.assert_array_equal(answers.positions, expected)
  kept = np.setdiff1d(np.arange(600), np.append(dropped, right))
  ties = np.count_nonzero(np.isin(distance[right], distance[kept]))
  assert answers.ties == ties


def test_the_choice_is_a_number_of_matches():
  assert ranking.counted_matches() > 0


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
