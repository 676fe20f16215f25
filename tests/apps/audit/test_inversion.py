import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import toy_run

from fedreid_jax.apps.audit import inversion
from fedreid_jax.apps.audit.inversion import Search, Weights
from fedreid_jax.core.types import Outputs

LIMITS = jnp.asarray([-2.0]), jnp.asarray([2.0])
SHAPE = (3, *toy.IMAGE_SHAPE)


@pytest.fixture(scope='module')
def network():
  return toy_run.network()


@pytest.fixture(scope='module')
def means():
  rng = np.random.default_rng(1)
  return rng.uniform(0, 1, (3, 8)).astype(np.float32)


def images(num=3, seed=2):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(num, *toy.IMAGE_SHAPE)).astype(np.float32)


def watch(model, variables, x):
  return jax.jit(functools.partial(inversion.watch, model))(variables, x)


def by_hand(x, kernel):
  """The 3x3 convolution of one input channel, in NumPy."""
  padded = np.pad(x[..., 0], ((0, 0), (1, 1), (1, 1)))
  height, width = x.shape[1:3]
  return sum(
    padded[:, i : i + height, j : j + width, None] * kernel[i, j, 0]
    for i in range(3)
    for j in range(3)
  )


def test_statistics_are_those_of_what_a_layer_normalises(network):
  model, variables = network
  outputs, seen = watch(model, variables, images())
  assert list(seen) == ['backbone/bn1', 'backbone/bn2']  # not the neck's
  kernel = np.asarray(variables['params/backbone/conv1/kernel'])
  maps = by_hand(images(), kernel).reshape(-1, 4)
  np.testing.assert_allclose(seen['backbone/bn1'][0], maps.mean(0), atol=1e-5)
  np.testing.assert_allclose(seen['backbone/bn1'][1], maps.var(0), rtol=1e-4)
  apply = functools.partial(model.apply, train=False)
  plain, _ = jax.jit(apply)(variables, images())
  np.testing.assert_array_equal(outputs.feature, plain.feature)


def test_variation_of_four_pixels():
  x = np.asarray([[1.0, 2.0], [4.0, 9.0]]).reshape(1, 2, 2, 1)
  sideways, down = np.hypot(1, 5), np.hypot(3, 7)
  expected = sideways + down + 8 + 2  # 9 - 1 and 4 - 2
  both = jax.jit(jax.value_and_grad(inversion.variation))
  np.testing.assert_allclose(both(x)[0], expected, rtol=1e-6)
  np.testing.assert_array_equal(both(np.ones((1, 2, 2, 1)))[1], 0)


def test_objective_by_hand(network, means):
  model, variables = network
  weights = Weights(0.3, 0.2, 0.1, 10.0)
  goal = inversion.identities(means, np.asarray([2, 0, 1]))
  loss = inversion.make_loss(model, variables, goal, weights)
  total, parts = jax.jit(loss)(images())
  outputs, seen = watch(model, variables, images())
  gap = 0.0
  for name, factor in (('backbone/bn1', 10), ('backbone/bn2', 1)):
    for k, kind in enumerate(('mean', 'var')):
      running = variables[f'batch_stats/{name}/{kind}']
      gap += factor * np.linalg.norm(seen[name][k] - running)
  expected = {
    'identity': goal.loss(outputs),
    'variation': float(jax.jit(inversion.variation)(images())),
    'size': np.linalg.norm(images().reshape(3, -1), axis=1).mean(),
    'statistics': gap,
  }
  for name, value in expected.items():
    np.testing.assert_allclose(parts[name], value, rtol=1e-4, err_msg=name)
  whole = np.dot([1, 0.3, 0.2, 0.1], list(expected.values()))
  np.testing.assert_allclose(total, whole, rtol=1e-4)


@pytest.fixture(scope='module')
def loss(network, means):
  goal = inversion.identities(means, np.arange(3))
  return inversion.make_loss(*network, goal, Weights())


@pytest.mark.slow
def test_the_loss_falls_and_the_seed_decides(loss):
  search = Search((20, 20))
  found, noise = inversion.optimise(loss, SHAPE, LIMITS, search)
  assert found.shape == noise.shape == SHAPE
  value = jax.jit(loss)
  assert float(value(found)[0]) < 0.7 * float(value(noise)[0])
  assert float(abs(found).max()) <= 2
  again, _ = inversion.optimise(loss, SHAPE, LIMITS, search)
  np.testing.assert_array_equal(found, again)
  other, _ = inversion.optimise(loss, SHAPE, LIMITS, search._replace(seed=1))
  assert not np.array_equal(found, other)


def test_half_the_resolution_has_pixels_of_two_by_two(loss):
  found, noise = inversion.optimise(loss, SHAPE, LIMITS, Search((3, 0)))
  blocks = np.asarray(found).reshape(3, 4, 2, 4, 2)
  np.testing.assert_array_equal(blocks, blocks[:, :, :1, :, :1] + 0 * blocks)
  assert not np.array_equal(found, noise)


def test_odd_sizes(loss):
  found, _ = inversion.optimise(loss, (3, 9, 11, 1), LIMITS, Search((1, 0)))
  assert found.shape == (3, 9, 11, 1)


def test_the_best_is_kept():
  """Of a loss that only rises with every step the first image is the best."""

  def up(x):
    return -x.sum(), {}

  def uphill(x):  # the gradient lies: it leads away from the least loss
    return jax.lax.stop_gradient(2 * x.sum()) - x.sum(), {}

  wide = jnp.asarray([-99.0]), jnp.asarray([99.0])
  down, noise = inversion.optimise(uphill, (1, 4, 4, 1), wide, Search((0, 5)))
  np.testing.assert_array_equal(down, noise)
  rise, _ = inversion.optimise(up, (1, 4, 4, 1), wide, Search((0, 5)))
  assert (rise > noise).all()


def features(num=3, seed=3):
  return np.random.default_rng(seed).normal(size=(num, 8)).astype(np.float32)


def outputs(rows, embedding=None):
  rows = jnp.asarray(rows)
  other = rows if embedding is None else jnp.asarray(embedding)
  return Outputs(feature=rows, embedding=other, logits=rows)


@pytest.mark.parametrize('scale', [0.0, 30.0])
def test_cross_entropy_with_the_means_as_classifier(scale):
  rng = np.random.default_rng(1)
  means = rng.uniform(0, 1, (3, 8)).astype(np.float32)
  labels = np.asarray([2, 0, 1])
  goal = inversion.identities(means, labels, scale=scale)
  assert (goal.name, goal.num_images) == ('identity', 3)
  feature, rows = features(), means
  if scale:
    feature = scale * feature / np.linalg.norm(feature, axis=1)[:, None]
    rows = rows / np.linalg.norm(rows, axis=1)[:, None]
  odds = np.exp((feature @ rows.T).astype(np.float64))
  picked = odds[np.arange(3), labels] / odds.sum(1)
  np.testing.assert_allclose(
    goal.loss(outputs(features())), -np.log(picked).mean(), rtol=1e-4
  )


def test_features_by_hand():
  wanted, found = features(), features(seed=6)
  goal = inversion.features(wanted)
  assert (goal.name, goal.num_images) == ('feature', 3)
  gaps = np.square(found - wanted).sum(1) / np.square(wanted).sum(1)
  np.testing.assert_allclose(
    goal.loss(outputs(found)), 10 * gaps.mean(), rtol=1e-5
  )
  np.testing.assert_array_equal(goal.loss(outputs(wanted)), 0)


def test_a_feature_of_zeros_is_finite():
  goal = inversion.features(np.zeros((1, 8), np.float32))
  assert np.isfinite(goal.loss(outputs(features(1))))


def test_the_space_chooses_the_features():
  both = outputs(features(seed=7), features())
  goal = inversion.identities(features(), np.arange(3), 'embedding')
  same = inversion.identities(features(), np.arange(3)).loss(
    outputs(features())
  )
  np.testing.assert_allclose(goal.loss(both), same)
  assert inversion.features(features(), 'embedding').loss(both) == 0
  assert inversion.features(features()).loss(both) > 0
