"""Normalisation that does not mix images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.models import functional, networks
from fedreid_jax.models.layers import norm, norm_kinds


def draw(seed, *shape):
  values = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(values, jnp.float32)


@pytest.mark.parametrize(
  'channels, groups', [(4, 4), (32, 32), (48, 24), (128, 32), (37, 1)]
)
def test_groups_divide_the_channels(channels, groups):
  assert norm_kinds.num_groups(channels) == groups


def test_a_group_is_normalised_for_each_image():
  x = 1e3 + draw(0, 3, 5, 2, 64)
  layer = norm_kinds.layer('group', 'bn')
  variables = layer.init(jax.random.key(0), x, train=True)
  assert {*variables['params']} == {'scale', 'bias'}
  assert 'batch_stats' not in variables
  y = np.asarray(layer.apply(variables, x, train=True)).reshape(3, 10, 32, 2)
  np.testing.assert_allclose(y.mean(axis=(1, 3)), 0, atol=1e-3)
  np.testing.assert_allclose(y.std(axis=(1, 3)), 1, rtol=1e-3)


def test_features_without_positions_are_one_group():
  x = 5 + draw(0, 3, 8)
  layer = norm_kinds.layer('group', 'bn', affine=False)
  y = np.asarray(layer.apply({}, x, train=True))
  np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-5)
  np.testing.assert_allclose(y.std(axis=1), 1, rtol=1e-3)


def test_frozen_statistics_are_those_of_evaluation():
  x = 3 + draw(1, 4, 2, 2, 3)
  frozen = norm_kinds.layer('frozen', 'bn')
  variables = frozen.init(jax.random.key(0), x, train=False)
  stats = {'mean': draw(2, 3), 'var': 1 + draw(3, 3) ** 2}
  variables = {**variables, 'batch_stats': stats}
  y, updated = frozen.apply(
    variables, x, train=True, mutable=['batch_stats', 'moments']
  )
  wanted = norm.BatchNorm().apply(variables, x, train=False)
  np.testing.assert_array_equal(y, wanted)
  np.testing.assert_array_equal(updated['batch_stats']['var'], stats['var'])
  assert not updated.get('moments')


def network(**fields):
  config = toy.toy_config()
  config.model.update(fields)
  return functional.wrap(networks.build(config.model, 3), (16, 16, 1))


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
  other, _ = forward(x.at[1:].multiply(2.0))
  same = np.allclose(one.embedding[0], other.embedding[0], atol=1e-5)
  assert same == (kind != 'batch')
  has_stats = any(n.startswith('batch_stats/') for n in variables)
  assert has_stats == (kind != 'group')
  kept = [np.array_equal(stats[n], variables[n]) for n in stats]
  assert all(kept) == (kind != 'batch')


@pytest.mark.parametrize(
  'fields', [{'variant': 'snr'}, {'name': 'resnet32'}, {'variant': 'agw'}]
)
def test_networks_that_have_batch_normalisation_only(fields):
  with pytest.raises(errors.ConfigError, match='model.norm'):
    network(norm='group', **fields)
