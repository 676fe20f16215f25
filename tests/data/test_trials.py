"""Galleries against a walk over folders, and half splits."""

import json
import os
import random

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data.benchmark import trials
from fedreid_jax.evaluation.ranking import evaluate_ranking


def test_a_model_may_be_tested_on_its_own_trial_or_without_one():
  trials.check_regdb_trial(3, 3)
  trials.check_regdb_trial(10, None)


@pytest.mark.parametrize(
  ('trial', 'trained', 'error'),
  [
    (2, 1, errors.ConfigError),
    (0, None, errors.ConfigError),
    (11, 1, errors.ConfigError),
    (1, 11, errors.IntegrityError),
    (1, 'x', errors.IntegrityError),
  ],
)
def test_other_trials_are_refused(trial, trained, error):
  with pytest.raises(error):
    trials.check_regdb_trial(trial, trained)


def images(num_ids=9, num_cameras=6, seed=0):
  """Images in no order; about a third of the folders do not exist."""
  rng = np.random.default_rng(seed)
  rows = []
  for identity in range(3, 3 + num_ids):
    for camera in range(1, num_cameras + 1):
      if rng.random() < 0.65:
        for number in range(1, rng.integers(2, 24)):
          rows.append((identity, camera, number))
  rows = [rows[i] for i in rng.permutation(len(rows))]
  names = [f'cam{c}/{i:04d}/{n:04d}.jpg' for i, c, n in rows]
  ids, cameras, _ = np.asarray(rows).T
  return ids, cameras, np.asarray(names)


def walk(root, cameras, identities, trial):
  """The published sampling, restated on folders."""
  random.seed(trial)
  chosen = []
  for identity in sorted(f'{i:04d}' for i in identities):
    for camera in cameras:
      folder = os.path.join(root, f'cam{camera}', identity)
      if os.path.isdir(folder):
        files = sorted(folder + '/' + name for name in os.listdir(folder))
        chosen.append(os.path.relpath(random.choice(files), root))
  return chosen


@pytest.fixture(name='tree', scope='module')
def fixture_tree(tmp_path_factory):
  root = tmp_path_factory.mktemp('sysu')
  for name in images()[2]:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()
  return root


@pytest.fixture(autouse=True)
def _restore_the_global_generator():
  state = random.getstate()
  yield
  random.setstate(state)


@pytest.mark.parametrize('mode', ['all', 'indoor'])
@pytest.mark.parametrize('trial', range(10))
def test_agw_sampling_is_the_published_walk(tree, mode, trial):
  ids, cameras, names = images()
  drawn = trials.sysu_agw_gallery(ids, cameras, names, trial, mode)
  folders = {'all': (1, 2, 4, 5), 'indoor': (1, 2)}[mode]
  assert names[drawn].tolist() == walk(tree, folders, np.unique(ids), trial)


def test_sampling_leaves_the_global_generator_alone(unchecked):
  # The check of a sequence draws the element that it looks at.
  random.seed(5)
  state = random.getstate()
  trials.sysu_agw_gallery(*images(), trial=3)
  assert random.getstate() == state


def test_multi_shot_takes_ten_images_or_all():
  ids, cameras, names = images()
  drawn = trials.sysu_agw_gallery(ids, cameras, names, 0, 'indoor', shots=10)
  assert len(set(drawn.tolist())) == drawn.size
  for identity in np.unique(ids):
    for camera in range(1, 7):
      folder = (ids == identity) & (cameras == camera)
      expected = min(10, folder.sum()) if camera in (1, 2) else 0
      assert folder[drawn].sum() == expected


@pytest.mark.parametrize('shots', [1, 10])
def test_official_sampling_takes_the_head_of_the_published_row(shots):
  ids, cameras, names = images()
  rng = np.random.default_rng(1)
  tables = {}
  for identity in np.unique(ids):
    for camera in range(1, 7):
      count = np.count_nonzero((ids == identity) & (cameras == camera))
      tables[int(identity), camera] = np.stack(
        [rng.permutation(count) + 1 for _ in range(10)]
      )
  drawn = trials.sysu_official_gallery(
    ids, cameras, names, tables, trial=4, shots=shots
  )
  expected = [
    f'cam{camera}/{identity:04d}/{number:04d}.jpg'
    for identity in np.unique(ids)
    for camera in (1, 2, 4, 5)
    for number in tables[identity, camera][4][:shots]
  ]
  assert names[drawn].tolist() == expected


@pytest.mark.parametrize('table', [[], [[1, 3]], [[1]]])
def test_official_sampling_refuses_other_permutations(table):
  tables = {(1, 1): np.array(table)} if table else {}
  with pytest.raises(errors.DataError, match='identity 1, camera 1'):
    trials.sysu_official_gallery([1, 1], [1, 1], ['a', 'b'], tables, trial=0)
  if table:
    fits = {(1, 1): np.array([[2, 1]])}
    with pytest.raises(errors.DataError, match='trial 1'):
      trials.sysu_official_gallery([1, 1], [1, 1], ['a', 'b'], fits, trial=1)


def test_llcm_infrared_gallery_has_no_camera_3():
  ids, cameras, names = images(num_cameras=9)
  for modality, without in (('visible', ()), ('infrared', (3,))):
    drawn = trials.llcm_gallery(ids, cameras, names, 2, modality)
    pairs = list(zip(ids[drawn].tolist(), cameras[drawn].tolist(), strict=True))
    expected = sorted(
      {
        p
        for p in zip(ids.tolist(), cameras.tolist(), strict=True)
        if p[1] not in without
      }
    )
    assert pairs == expected


@pytest.mark.parametrize(
  'call',
  [
    lambda: trials.sysu_agw_gallery([1], [1], ['a'], 0, 'outdoor'),
    lambda: trials.llcm_gallery([1], [1], ['a'], 0, 'thermal'),
  ],
)
def test_unknown_modes_are_refused(call):
  with pytest.raises(errors.ConfigError, match='choose one of'):
    call()


def test_arrays_of_different_lengths_are_refused():
  with pytest.raises(errors.DataError, match='2 identities, 1 cameras'):
    trials.sysu_agw_gallery([1, 2], [1], ['a', 'b'], 0)


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
  splits = trials.draw_half_splits(ids, cameras)
  assert len(splits) == 10
  for split in splits:
    assert split.query.size == split.gallery.size == 6
    np.testing.assert_array_equal(ids[split.query], ids[split.gallery])
    assert (cameras[split.query] != cameras[split.gallery]).all()
    assert not set(ids[split.train]) & set(ids[split.query])
    assert split.train.size == 12
  assert len({tuple(ids[s.query]) for s in splits}) > 5


def test_an_odd_number_of_identities_rounds_down():
  splits = trials.draw_half_splits(*viper_like(193), num_splits=1)
  assert splits[0].query.size == 96


def test_distractors_are_in_every_gallery_and_in_no_other_part():
  ids, cameras = viper_like()
  ids = np.append(ids, [0, 50, 51])
  cameras = np.append(cameras, [1, 1, 1])
  splits = trials.draw_half_splits(
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
  split = trials.draw_half_splits(ids, cameras)[0]
  assert not set(split.query) & set(split.gallery)
  distance = (ids[split.query][:, None] != ids[split.gallery]).astype(float)
  labels = [array[part] for array in (ids, cameras) for part in split[1:]]
  result = evaluate_ranking(distance, *labels, protocol='single_shot')
  assert result['rank1'] == 100
  assert result['invalid_queries'] == 0


def test_a_split_depends_on_the_seed_and_its_number_only():
  ids, cameras = viper_like()
  ten = trials.draw_half_splits(ids, cameras, seed=3)
  assert same(
    ten[:4], trials.draw_half_splits(ids, cameras, num_splits=4, seed=3)
  )
  assert not same(ten, trials.draw_half_splits(ids, cameras, seed=4))


def test_described_splits_name_images_and_seed():
  names = [f'{k:02}.png' for k in range(8)]
  splits = trials.draw_half_splits([1, 1, 2, 2, 3, 3, 4, 4], [1, 2] * 4, seed=8)
  kept = json.loads(json.dumps(trials.describe_splits(splits, names, 8)))
  assert kept['seed'] == 8 and len(kept['splits']) == 10
  for split, named in zip(splits, kept['splits'], strict=True):
    assert [names[k] for k in split.query] == named['query']
    assert [names[k] for k in split.gallery] == named['gallery']
