"""Sampled galleries against a walk over real folders."""

import os
import random

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.evaluation.protocol import gallery_sampling


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
  drawn = gallery_sampling.sysu_agw_gallery(ids, cameras, names, trial, mode)
  folders = {'all': (1, 2, 4, 5), 'indoor': (1, 2)}[mode]
  assert names[drawn].tolist() == walk(tree, folders, np.unique(ids), trial)


def test_sampling_leaves_the_global_generator_alone(unchecked):
  # The check of a sequence draws the element that it looks at.
  random.seed(5)
  state = random.getstate()
  gallery_sampling.sysu_agw_gallery(*images(), trial=3)
  assert random.getstate() == state


def test_multi_shot_takes_ten_images_or_all():
  ids, cameras, names = images()
  drawn = gallery_sampling.sysu_agw_gallery(
    ids, cameras, names, 0, 'indoor', shots=10
  )
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
  drawn = gallery_sampling.sysu_official_gallery(
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
    gallery_sampling.sysu_official_gallery(
      [1, 1], [1, 1], ['a', 'b'], tables, trial=0
    )
  if table:
    fits = {(1, 1): np.array([[2, 1]])}
    with pytest.raises(errors.DataError, match='trial 1'):
      gallery_sampling.sysu_official_gallery(
        [1, 1], [1, 1], ['a', 'b'], fits, trial=1
      )


def test_llcm_infrared_gallery_has_no_camera_3():
  ids, cameras, names = images(num_cameras=9)
  for modality, without in (('visible', ()), ('infrared', (3,))):
    drawn = gallery_sampling.llcm_gallery(ids, cameras, names, 2, modality)
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
    lambda: gallery_sampling.sysu_agw_gallery([1], [1], ['a'], 0, 'outdoor'),
    lambda: gallery_sampling.llcm_gallery([1], [1], ['a'], 0, 'thermal'),
  ],
)
def test_unknown_modes_are_refused(call):
  with pytest.raises(errors.ConfigError, match='choose one of'):
    call()


def test_arrays_of_different_lengths_are_refused():
  with pytest.raises(errors.DataError, match='2 identities, 1 cameras'):
    gallery_sampling.sysu_agw_gallery([1, 2], [1], ['a', 'b'], 0)
