"""Features by camera: by hand, by scikit-learn, and through a test."""

import numpy as np
import pytest
import toy_run
from sklearn import preprocessing

from fedreid_jax import errors
from fedreid_jax.config import schema, validation
from fedreid_jax.data import federation
from fedreid_jax.evaluation import camera_norm
from fedreid_jax.evaluation.evaluators import retrieval
from fedreid_jax.evaluation.options import Evaluation


def test_by_hand():
  """Camera 0: (2, 1) and (8, 9), mean (5, 5), deviations 3 and 4."""
  features = np.float32([[2, 1], [1, 0], [8, 9], [1, 2]])
  cameras = np.array([0, 7, 0, 7])
  found = camera_norm.normalise(features, cameras, 'centre')
  np.testing.assert_allclose(
    found, [[-0.6, -0.8], [0, -1], [0.6, 0.8], [0, 1]], atol=1e-6
  )
  found = camera_norm.normalise(features, cameras, 'standardise')
  half = 0.5**0.5
  np.testing.assert_allclose(
    found, [[-half, -half], [0, -1], [half, half], [0, 1]], atol=1e-5
  )


@pytest.mark.parametrize('rule', camera_norm.RULES)
def test_cameras_of_one_offset_and_scale_agree(rule):
  """An offset of a camera disappears; a scale only where it is standardised."""
  rng = np.random.default_rng(0)
  cameras = np.repeat([3, 1, 2], 50)
  features = rng.normal(size=(150, 6)).astype(np.float32)
  offsets = rng.normal(size=(4, 6)) * 5
  scales = 1 + rng.random((4, 6))
  plain = camera_norm.normalise(features, cameras, rule)
  moved = features + offsets[cameras].astype(np.float32)
  np.testing.assert_allclose(
    camera_norm.normalise(moved, cameras, rule), plain, atol=1e-4
  )
  scaled = (features * scales[cameras]).astype(np.float32)
  same = np.allclose(
    camera_norm.normalise(scaled, cameras, rule), plain, atol=1e-4
  )
  assert same == (rule == 'standardise')
  np.testing.assert_allclose(np.linalg.norm(plain, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize('rule', camera_norm.RULES)
def test_scikit_learn_agrees(rule):
  rng = np.random.default_rng(1)
  cameras = rng.integers(0, 4, 200)
  features = rng.normal(3, 2, (200, 5)).astype(np.float32)
  features[:, 2] = 7  # a dead channel
  expected = np.zeros((200, 5))
  for camera in range(4):
    own = cameras == camera
    scaler = preprocessing.StandardScaler(with_std=rule == 'standardise')
    expected[own] = scaler.fit_transform(features[own].astype(np.float64))
  np.testing.assert_allclose(
    camera_norm.normalise(features, cameras, rule),
    preprocessing.normalize(expected),
    atol=1e-4,
  )


def test_a_camera_with_one_image_has_the_moments_of_all():
  features = np.float32([[0, 4], [0, 0], [4, 0], [4, 4], [9, 2]])
  found = camera_norm.normalise(features, np.array([0, 0, 0, 0, 1]), 'centre')
  # The mean of all is (3.4, 2).
  np.testing.assert_allclose(found[4], [1, 0], atol=1e-6)
  alone = camera_norm.normalise(features[:1], np.array([0]), 'standardise')
  np.testing.assert_array_equal(alone, [[0, 0]])


def domain(cameras, modalities=None):
  people = np.tile(np.arange(6), 2).astype(np.int32)
  kinds = np.zeros(12) if modalities is None else modalities
  return federation.Images(
    'mall',
    lambda: np.zeros((12, 1, 1, 3), np.uint8),
    people,
    np.asarray(cameras, np.int32),
    np.asarray(kinds, np.int32),
  )


def test_places_of_both_modalities_are_two_cameras():
  """Images of LLCM have numbers of places that both modalities share."""
  features = np.float32([[k, -k] for k in range(12)])
  kinds = np.repeat([0, 1], 6)
  images = domain(np.ones(12), kinds)
  np.testing.assert_array_equal(
    camera_norm.of_images(features, images, 'centre'),
    camera_norm.normalise(features, kinds, 'centre'),
  )


@pytest.mark.parametrize('rule', ['', *camera_norm.RULES])
def test_persons_of_another_camera_are_found(rule):
  """A camera moves its features by more than persons differ.

  Of two images by the query's camera and by another one, person k is at k in
  one direction, and the camera is far in another.
  """
  angle = np.tile(np.arange(6) * np.pi / 3, 2)
  cameras = np.repeat([0, 1], 6)
  features = np.stack([np.cos(angle), np.sin(angle)], 1)
  features = (features + 9 * cameras[:, None]).astype(np.float32)
  target = federation.split_target(domain(cameras), cameras == 0)
  config = Evaluation(camera_norm=rule)
  found = retrieval.evaluate(
    toy_run.model_of(config, lambda _: features), target
  )
  assert (found['rank1'] == 100.0) == bool(rule)


def test_a_test_of_classes_is_refused():
  config = schema.default()
  config.data.sources = config.data.targets = ('plaza',)
  config.evaluation.camera_norm, config.data.task = 'centre', 'classification'
  with pytest.raises(errors.ConfigError, match='evaluation.camera_norm'):
    validation.validate(config)
