"""CrossStyle: worked numbers, NumPy, PyTorch, padding and both networks."""

import functools
from typing import Any

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import crossstyle
from fedreid_jax.config import recipes, validation
from fedreid_jax.models import networks
from fedreid_jax.models.layers import styles
from fedreid_jax.training import build

KEY = jax.random.key(0)
SHAPE = (5, 4, 3, 6)
ORDER = np.array([3, 0, 4, 1, 2])


def maps(seed=0, shape=SHAPE):
  values = np.random.default_rng(seed).normal(0.5, 1.0, shape)
  scale = np.arange(1, shape[0] + 1)[:, None, None, None]  # styles differ
  return (np.maximum(values, 0) * scale).astype('f4')


def in_numpy(x, order):
  """The equation, in float64."""
  x = np.asarray(x, np.float64)
  mean = x.mean((1, 2), keepdims=True)
  std = np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
  return std[order] * (x - mean) / std + mean[order]


def crossed_with(*arrays):
  return jax.device_get(jax.jit(styles.crossed_with)(*arrays))


def cross(x, seed=0, mask=None, train=True, **fields):
  module = styles.CrossStyle(**fields)
  rngs = {} if seed is None else {'dropout': jax.random.key(seed)}
  arrays = {'mask': mask, 'rngs': rngs}
  return compiled.apply(module, {}, x, arrays=arrays, train=train)


def test_a_worked_pair():
  """Styles (2, 1) and (6, 3): each image has the values of the other."""
  x = np.float32([[1, 3], [9, 3]]).reshape(2, 2, 1, 1)
  found = crossed_with(x, np.array([1, 0]))
  np.testing.assert_allclose(found.reshape(2, 2), [[3, 9], [3, 1]], rtol=1e-4)


def test_exchange_equals_the_definition():
  found = crossed_with(maps(), ORDER)
  np.testing.assert_allclose(found, in_numpy(maps(), ORDER), atol=1e-4)
  # The inverse permutation, which would exchange both roles, is another result.
  inverse = np.argsort(ORDER)
  assert abs(found - in_numpy(maps(), inverse)).max() > 0.1
  np.testing.assert_allclose(
    crossed_with(maps(), np.arange(5)), maps(), atol=1e-4
  )


def test_statistics_have_a_gradient():
  """The derivative of the equation by differences; MixStyle has another."""
  x, step = maps(), np.random.default_rng(1).normal(size=SHAPE)
  ahead, behind = (
    np.sin(in_numpy(x + sign * 1e-5 * step, ORDER)).sum() for sign in (1, -1)
  )

  def total(x):
    return jnp.sin(styles.crossed_with(x, jnp.asarray(ORDER))).sum()

  slope = (compiled.grad(total)(x) * step).sum()
  np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-3)


def test_value_and_gradient_equal_those_of_pytorch():
  torch = pytest.importorskip('torch', reason='pip install torch')
  x = torch.tensor(np.array(maps()).transpose(0, 3, 1, 2), requires_grad=True)
  mean = x.mean(dim=[2, 3], keepdim=True)
  std = (x.var(dim=[2, 3], keepdim=True, unbiased=False) + 1e-5).sqrt()
  wanted = (x - mean) / std * std[ORDER] + mean[ORDER]
  torch.sin(wanted).sum().backward()

  def total(x):
    found = styles.crossed_with(x, jnp.asarray(ORDER))
    return jnp.sin(found).sum(), found

  gradient, found = jax.jit(jax.grad(total, has_aux=True))(maps())
  np.testing.assert_allclose(
    found, wanted.detach().numpy().transpose(0, 2, 3, 1), atol=1e-4
  )
  np.testing.assert_allclose(
    gradient, x.grad.numpy().transpose(0, 2, 3, 1), atol=1e-4
  )


def test_styles_are_exchanged_in_training_with_a_key_only():
  x, always = maps(), {'probability': 1.0}
  np.testing.assert_array_equal(cross(x, train=False, **always), x)
  np.testing.assert_array_equal(cross(x, seed=None, **always), x)
  np.testing.assert_array_equal(cross(x, probability=0.0), x)
  # The means that images receive are a permutation of those of the batch.
  found = cross(x, 1, **always).mean((1, 2))
  own = np.abs(found[:, None] - x.mean((1, 2))).max(-1).argmin(1)
  assert sorted(own) == [0, 1, 2, 3, 4] and list(own) != [0, 1, 2, 3, 4]


def test_a_batch_is_changed_with_the_probability():
  changed = [bool((cross(maps(), s) != maps()).any()) for s in range(60)]
  assert 18 <= sum(changed) <= 42


@pytest.mark.parametrize('poison', [np.nan, 1e3])
def test_padded_images_give_and_receive_no_style(poison):
  mask = np.array([True, True, True, True, False])
  fields = {'mask': mask, 'probability': 1.0}
  poisoned = maps()
  poisoned[4] = poison
  for seed in range(5):
    clean = cross(maps(), seed, **fields)
    other = cross(poisoned, seed, **fields)
    np.testing.assert_array_equal(clean[:4], other[:4])
    # The means are those of real images.
    away = clean[:4].mean((1, 2))[:, None] - maps()[:4].mean((1, 2))
    assert np.abs(away).max(-1).min(1).max() < 1e-3


def test_defaults_are_those_of_the_comparisons():
  config = recipes.recipe('crossstyle')
  assert config.crossstyle.to_dict() == {'probability': 0.5, 'stages': (1,)}
  base = recipes.recipe('dfh')
  assert config.loss == base.loss and config.optim == base.optim


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'crossstyle.stages': ()}, 'no stage exchanges'),
    ({'crossstyle.stages': (5,)}, 'stage 5 of a network with 4'),
    (
      {'crossstyle.stages': (2,), 'model.name': 'vit'},
      'stage 2 of a network with 1',
    ),
  ],
)
def test_configurations_that_cannot_run(changes, message):
  config = recipes.recipe('crossstyle')
  config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


def test_options_of_the_component_reach_its_network():
  model = toy.toy_config().model
  made = crossstyle.make(crossstyle.Options(probability=0.25, stages=(2,)))
  network: Any = networks.build(model, 3)
  assert made.network
  (rule,) = made.network(network).backbone.plugins
  assert rule(1, 0, 1, 8) is None and rule(2, 0, 2, 8) is None
  assert rule(2, 1, 2, 8).probability == 0.25


@pytest.mark.slow
@pytest.mark.parametrize('network', ['convnet', 'vit'])
def test_a_network_exchanges_styles_in_training_only(network):
  def built(probability):
    config = validation.validate(
      recipes.recipe(
        'crossstyle',
        f'smoke,model.name={network},crossstyle.probability={probability}',
      )
    )
    return build.network(config, 4, (32, 16, 3))

  never, always = built(0.0), built(1.0)
  variables = jax.jit(never.init)(KEY)
  assert variables.keys() == jax.eval_shape(always.init, KEY).keys()
  images = np.random.default_rng(0).normal(size=(6, 32, 16, 3)).astype('f4')

  def feature(model, train):
    run = jax.jit(functools.partial(model.apply, train=train))
    return np.asarray(run(variables, images, key=KEY)[0].feature)

  np.testing.assert_array_equal(feature(never, False), feature(always, False))
  assert abs(feature(never, True) - feature(always, True)).max() > 1e-3
