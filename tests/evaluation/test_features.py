import jax
import numpy as np
import pytest
import toy

from fedreid_jax.data.images import augment
from fedreid_jax.evaluation import features
from fedreid_jax.models import functional, networks
from fedreid_jax.round.devices import placement


@pytest.fixture(scope='module')
def network():
  config = toy.toy_config()
  model = functional.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  transforms = augment.make(config.augment, (0.5,), (0.25,))
  return model, jax.jit(model.init)(jax.random.key(0)), transforms.test


def images(num=23):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (num, *toy.IMAGE_SHAPE), dtype=np.uint8)


def extract(network, devices=1, batch=4, flip=False, feature='embedding'):
  model, variables, view = network
  run = features.make_extractor(
    model,
    view,
    placement.make_mesh(devices),
    batch=batch,
    flip=flip,
    feature=feature,
  )
  return lambda pixels: run(variables, pixels)


def test_any_number_of_devices_gives_the_same_bits(network):
  one = extract(network)(images())
  assert one.shape == (23, 8) and one.dtype == np.float32
  for devices in (2, 4):
    np.testing.assert_array_equal(one, extract(network, devices)(images()))


def test_the_padded_tail_changes_nothing(network):
  run = extract(network)
  np.testing.assert_array_equal(run(images())[:5], run(images()[:5]))


def test_flip_is_the_mean_of_both_sides(network):
  plain, pixels = extract(network), images(8)
  mean = (plain(pixels) + plain(pixels[:, :, ::-1])) / 2
  both = extract(network, flip=True)(pixels)
  np.testing.assert_allclose(both, mean, rtol=1e-5, atol=1e-6)
  mirrored = extract(network, flip=True)(pixels[:, :, ::-1])
  np.testing.assert_allclose(both, mirrored, rtol=1e-5, atol=1e-6)


def test_feature_before_the_neck_is_another(network):
  before = extract(network, feature='feature')(images(4))
  assert (before >= 0).all()
  assert (before != extract(network)(images(4))).any()


@pytest.mark.slow
def test_each_modality_has_its_own_stem():
  config = toy.toy_config()
  config.model.name, config.model.width = 'resnet18', 1 / 32
  config.model.small_stem, config.model.modality_specific_stages = True, 1
  model = functional.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  variables = model.init(jax.random.key(0))
  transforms = augment.make(config.augment, (0.5,), (0.25,))
  run = features.make_extractor(
    model,
    transforms.test,
    placement.make_mesh(1),
    batch=4,
    flip=False,
    feature='feature',
  )
  pixels = images(4)
  visible = run(variables, pixels)
  kinds = np.array([0, 1, 0, 1], np.int32)
  both = run(variables, pixels, kinds)
  np.testing.assert_array_equal(both[kinds == 0], visible[kinds == 0])
  assert (both[kinds == 1] != visible[kinds == 1]).any(axis=1).all()


def test_each_modality_has_its_own_model(network):
  model, variables, view = network
  run = features.make_extractor(
    model,
    view,
    placement.make_mesh(1),
    batch=4,
    flip=False,
    feature='embedding',
  )
  other = {n: 1.5 * x for n, x in variables.items()}
  kinds = (np.arange(23) % 3 == 0).astype(np.int32)
  pixels = images()
  found = features.of_each(run, (variables, other), pixels, kinds)
  expected = [run(v, pixels, kinds) for v in (variables, other)]
  for kind in (0, 1):
    np.testing.assert_array_equal(
      found[kinds == kind], expected[kind][kinds == kind]
    )
  assert (expected[0] != expected[1]).any()
  alone = features.of_each(run, (variables, other), pixels, 0 * kinds)
  np.testing.assert_array_equal(alone, run(variables, pixels))
