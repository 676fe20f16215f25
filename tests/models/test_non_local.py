import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.models import reid, resnet
from fedreid_jax.models.layers import non_local

KEY = jax.random.key(0)


def maps(num=3, channels=6):
  values = np.random.default_rng(0).standard_normal((num, 4, 2, channels))
  return jnp.asarray(values, jnp.float32)


def scattered(variables):
  """The same variables, every one of them a random number."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.uniform(0.2, 0.8, x.shape), jnp.float32),
    variables,
  )


@pytest.mark.parametrize('train', [False, True])
def test_at_the_start_the_block_is_an_exact_identity(train):
  block, x = non_local.NonLocal(2), maps()
  variables = block.init(KEY, x, train=False)
  y = block.apply(
    variables, x, train=train, mutable=['batch_stats'] if train else []
  )[0]
  np.testing.assert_array_equal(y, x)


def test_the_scale_learns_from_the_start():
  block, x = non_local.NonLocal(), maps()
  variables = block.init(KEY, x, train=False)

  def loss(params):
    y, _ = block.apply(
      variables | {'params': params}, x, train=True, mutable=['batch_stats']
    )
    return (y**3).sum()

  gradient = jax.jit(jax.grad(loss))(variables['params'])
  assert (np.abs(gradient['bn']['scale']) > 1e-3).all()


@pytest.mark.parametrize('inter', [1, 3])
def test_every_position_adds_products_with_all_others(inter):
  """The attention of all pairs of positions, written out."""
  block, x = non_local.NonLocal(inter), maps()
  variables = scattered(block.init(KEY, x, train=False))
  own, stats = variables['params'], variables['batch_stats']['bn']

  def project(values, name):
    return values @ np.asarray(own[name]['kernel'])[0, 0] + own[name]['bias']

  expected = []
  for image in np.asarray(x, np.float64):
    flat = image.reshape(8, 6)
    attention = project(flat, 'theta') @ project(flat, 'phi').T / 8
    y = project(attention @ project(flat, 'g'), 'w')
    y = (y - stats['mean']) / np.sqrt(stats['var'] + 1e-5)
    y = y * own['bn']['scale'] + own['bn']['bias']
    expected.append((flat + y).reshape(4, 2, 6))
  np.testing.assert_allclose(
    block.apply(variables, x, train=False), expected, rtol=2e-5, atol=2e-5
  )


def test_padded_images_change_nothing():
  block, x = non_local.NonLocal(), maps()
  variables = scattered(block.init(KEY, x, train=False))
  mask = jnp.array([True, True, False])

  def run(x):
    return block.apply(
      variables, x, train=True, mask=mask, mutable=['batch_stats']
    )

  (y, stats), (other, same) = run(x), run(x.at[2].set(1e3))
  np.testing.assert_array_equal(y[:2], other[:2])
  jax.tree.map(np.testing.assert_array_equal, stats, same)


@pytest.mark.parametrize(
  'depth, expected',
  [
    ('resnet50', {(2, 2), (2, 3), (3, 3), (3, 4), (3, 5)}),
    ('resnet101', {(2, 2), (2, 3), (3, 20), (3, 21), (3, 22)}),
    ('resnet18', {(2, 0), (2, 1), (3, 0), (3, 1)}),
  ],
)
def test_blocks_come_after_the_last_of_two_stages(depth, expected):
  rule = non_local.plugins()
  found = {
    (stage, block)
    for stage, num in enumerate(resnet.DEPTHS[depth][1], start=1)
    for block in range(num)
    if rule(stage, block, num, 8) is not None
  }
  assert found == expected


@pytest.mark.parametrize(
  'private, expected', [(0, 23_540_815), (1, 23_550_351)]
)
def test_parameters_of_agw(private, expected):
  """23.55 million in L2RW's table 2, with a stem for each modality."""
  backbone = resnet.ResNet(
    last_stride=1, modality_specific_stages=private, plugins=non_local.plugins()
  )
  model = reid.ReIDNet(backbone, 4, pooling='gem', neck_kind='bnneck')
  shapes = jax.eval_shape(
    lambda: model.init(KEY, jnp.zeros((2, 64, 32, 3)), train=False)
  )['params']
  shapes.pop('classifier')
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == expected
  assert sum('non_local' in name for name in shapes['backbone']) == 5
