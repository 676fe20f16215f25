"""Normalisation that does not mix images."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.models import networks
from fedreid_jax.models.layers import norm


def draw(seed, *shape):
  return np.float32(np.random.default_rng(seed).standard_normal(shape))


def autodiff(x, scale, bias, mask):
  """Batch normalisation whose gradient JAX derives."""
  mean, var = norm.moments(x, mask)
  return (x - mean) * jax.lax.rsqrt(var + norm.EPSILON) * scale + bias


@pytest.mark.parametrize('shape', [(6, 5), (4, 3, 2, 5)])
@pytest.mark.parametrize('masked', [False, True])
def test_gradient_equals_the_automatic_one(shape, masked):
  x, direction = 3 + 2 * draw(0, *shape), draw(1, *shape)
  scale, bias = 1 + draw(2, 5), draw(3, 5)
  mask = jnp.asarray(np.arange(shape[0]) < 3) if masked else None

  @jax.jit
  def both(*arrays):
    _, vjp = jax.vjp(lambda *a: norm.standardize(*a, mask)[0], *arrays)
    _, oracle = jax.vjp(lambda *a: autodiff(*a, mask), *arrays)
    return vjp(direction), oracle(direction)

  for a, b in zip(*both(x, scale, bias), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_worked_statistics():
  """Values 1, 3, 5, 7: mean 4, biased variance 5."""
  x = np.float32([[1], [3], [5], [7], [99]])
  mask = np.array([True] * 4 + [False])
  layer = norm.BatchNorm()
  variables = compiled.init(layer, x, train=False)
  y, updated = compiled.apply(
    layer,
    variables,
    x,
    arrays={'mask': mask},
    train=True,
    mutable=('batch_stats',),
  )
  np.testing.assert_allclose(y[:4, 0], np.array([-3, -1, 1, 3]) / 5**0.5, 1e-5)
  np.testing.assert_allclose(updated['batch_stats']['mean'], [0.4], 1e-6)
  np.testing.assert_allclose(updated['batch_stats']['var'], [1.4], 1e-6)
  y = compiled.apply(layer, variables | updated, x, train=False)
  np.testing.assert_allclose(y[0], [0.6 / 1.4**0.5], 1e-4)


def test_variance_survives_a_large_mean():
  x = 1e4 + draw(0, 4096, 1)
  variance = jax.jit(norm.moments)(x)[1]
  np.testing.assert_allclose(variance, x.std() ** 2, rtol=1e-3)


def test_batch_without_a_real_sample_stays_finite():
  x, mask = draw(0, 4, 3), jnp.zeros(4, bool)

  def loss(x):
    y, mean, var = norm.standardize(x, jnp.ones(3), jnp.zeros(3), mask)
    return y.sum(), (mean, var)

  gradient, (mean, var) = jax.jit(jax.grad(loss, has_aux=True))(x)
  assert np.isfinite(gradient).all()
  np.testing.assert_array_equal([mean, var], np.zeros((2, 3)))


def test_a_step_without_a_real_sample_leaves_the_running_statistics():
  layer, x = norm.BatchNorm(), draw(0, 4, 3)
  old = {'mean': draw(1, 3), 'var': 1 + draw(2, 3) ** 2}
  variables = compiled.init(layer, x, train=False)

  def step(num):
    _, updated = compiled.apply(
      layer,
      variables | {'batch_stats': old},
      x,
      arrays={'mask': np.arange(4) < num},
      train=True,
      mutable=('batch_stats',),
    )
    return updated['batch_stats']

  kept, moved = step(0), step(1)
  for name, value in old.items():
    np.testing.assert_array_equal(kept[name], value)
    assert (moved[name] != value).all()


def test_affine_parameters_are_optional():
  layer = norm.BatchNorm(affine=False)
  variables = jax.eval_shape(
    lambda: layer.init(jax.random.key(0), jnp.ones((2, 3)), train=False)
  )
  assert set(variables) == {'batch_stats'}


def test_relu_keeps_nan_and_has_no_gradient_at_zero():
  x = np.float32([-1, 0, 2, np.nan])
  np.testing.assert_array_equal(jax.jit(norm.relu)(x), [0, 0, 2, np.nan])
  gradient = jax.jit(jax.grad(lambda x: norm.relu(x).sum()))(x[:3])
  np.testing.assert_array_equal(gradient, [0, 0, 1])


@pytest.mark.parametrize(
  'channels, groups', [(4, 4), (32, 32), (48, 24), (128, 32), (37, 1)]
)
def test_groups_divide_the_channels(channels, groups):
  assert norm.num_groups(channels) == groups


def test_a_group_is_normalised_for_each_image():
  x = 1e3 + draw(0, 3, 5, 2, 64)
  layer = norm.layer('group', 'bn')
  variables = compiled.init(layer, x, train=True)
  assert {*variables['params']} == {'scale', 'bias'}
  assert 'batch_stats' not in variables
  y = compiled.apply(layer, variables, x, train=True).reshape(3, 10, 32, 2)
  np.testing.assert_allclose(y.mean(axis=(1, 3)), 0, atol=1e-3)
  np.testing.assert_allclose(y.std(axis=(1, 3)), 1, rtol=1e-3)


def test_features_without_positions_are_one_group():
  x = 5 + draw(0, 3, 8)
  layer = norm.layer('group', 'bn', affine=False)
  y = compiled.apply(layer, {}, x, train=True)
  np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-5)
  np.testing.assert_allclose(y.std(axis=1), 1, rtol=1e-3)


def test_frozen_statistics_are_those_of_evaluation():
  x = 3 + draw(1, 4, 2, 2, 3)
  frozen = norm.layer('frozen', 'bn')
  variables = compiled.init(frozen, x, train=False)
  stats = {'mean': draw(2, 3), 'var': 1 + draw(3, 3) ** 2}
  variables = {**variables, 'batch_stats': stats}
  y, updated = compiled.apply(
    frozen, variables, x, train=True, mutable=('batch_stats', 'moments')
  )
  wanted = compiled.apply(norm.BatchNorm(), variables, x, train=False)
  np.testing.assert_array_equal(y, wanted)
  np.testing.assert_array_equal(updated['batch_stats']['var'], stats['var'])
  assert not updated.get('moments')


def network(**fields):
  config = toy.toy_config()
  config = toy.replaced(config, {'model': toy.replaced(config.model, fields)})
  return networks.wrap(networks.build(config.model, 3), (16, 16, 1))


@pytest.mark.parametrize('kind', ['batch', 'frozen', 'group'])
@pytest.mark.parametrize(
  'fields',
  [
    {'neck': 'bnneck'},
    pytest.param(
      {'name': 'resnet18', 'width': 0.125, 'small_stem': True},
      marks=pytest.mark.slow,
    ),
  ],
)
def test_only_statistics_of_the_batch_mix_images(kind, fields):
  model = network(norm=kind, **fields)
  variables = jax.jit(model.init)(jax.random.key(0))
  x = draw(0, 4, 16, 16, 1)
  forward = jax.jit(lambda x: model.apply(variables, x, train=True))
  one, stats = forward(x)
  other, _ = forward(np.concatenate([x[:1], 2 * x[1:]]))
  same = np.allclose(one.embedding[0], other.embedding[0], atol=1e-5)
  assert same == (kind != 'batch')
  has_stats = any(n.startswith('batch_stats/') for n in variables)
  assert has_stats == (kind != 'group')
  kept = [np.array_equal(stats[n], variables[n]) for n in stats]
  assert all(kept) == (kind != 'batch')


def test_networks_that_have_batch_normalisation_only():
  with pytest.raises(errors.ConfigError, match='model.norm'):
    network(norm='group', name='resnet32')
