import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax.models import reid
from fedreid_jax.models.backbones import resnet32
from fedreid_jax.models.forward import ForwardCtx


def images(num=4, size=8):
  values = np.random.default_rng(0).standard_normal((num, size, size, 3))
  return jnp.asarray(values, jnp.float32)


def network(**changes):
  backbone = resnet32.CifarResNet(**({'features': (3, 4, 6)} | changes))
  return reid.ReIDNet(backbone, 10, neck_kind='none', classifier_bias=True)


def test_resnet32_has_464_154_parameters():
  """Counted from the table of He et al.: 31 convolutions and a linear layer.

  A convolution has 9 d d' weights and its normalisation 2 d'; option A
  shortcuts have none.
  """
  channels = [3] + [16] * 11 + [32] * 10 + [64] * 10
  assert len(channels) - 1 + 1 == 32
  expected = sum(
    9 * before + 2
    for before, after in zip(channels, channels[1:], strict=False)
    for _ in range(after)
  )
  model = reid.ReIDNet(
    resnet32.CifarResNet(), 10, neck_kind='none', classifier_bias=True
  )
  params = jax.eval_shape(
    lambda key: model.init(key, images(2, 32), ForwardCtx(False)),
    jax.random.key(0),
  )['params']
  assert toy.num_parameters(params['backbone']) == expected == 463_504
  assert toy.num_parameters(params['classifier']) == 64 * 10 + 10
  assert toy.num_parameters(params) == 464_154


def test_stages_halve_the_map():
  backbone = resnet32.CifarResNet()
  (maps, extras), _ = jax.eval_shape(
    lambda key: backbone.init_with_output(
      key, images(2, 32), ForwardCtx(False)
    ),
    jax.random.key(0),
  )
  assert maps.shape == (2, 8, 8, 64)
  assert extras == {}


def test_a_shortcut_subsamples_and_leaves_new_channels_zero():
  """A block whose convolutions are zero is its shortcut."""
  block = resnet32.Block(5, 2, jnp.float32)
  x = images(2, 6)
  variables = compiled.init(block, x, train=False)
  params = jax.tree.map(np.zeros_like, variables['params'])
  found = compiled.apply(block, variables | {'params': params}, x, train=False)
  expected = np.zeros((2, 3, 3, 5), np.float32)
  expected[..., :3] = np.maximum(np.asarray(x)[:, ::2, ::2], 0)
  np.testing.assert_array_equal(found, expected)


def test_padded_samples_change_no_bit_whatever_they_hold():
  model = network(features=(3, 4), blocks=1)
  variables = compiled.init(model, images(), train=False)
  mask = jnp.asarray([True, True, True, False])

  @jax.jit
  def step(batch):
    def loss(params):
      outputs, updated = model.apply(
        variables | {'params': params},
        batch,
        ForwardCtx(True, mask),
        mutable=['batch_stats'],
      )
      real = jnp.where(mask[:, None], outputs.logits, 0)
      return jnp.square(real - 1).sum(), updated

    return jax.value_and_grad(loss, has_aux=True)(variables['params'])

  clean = step(images())
  for poison in (jnp.nan, 7.0):
    other = np.array(images())
    other[3] = poison
    poisoned = step(other)
    jax.tree.map(np.testing.assert_array_equal, clean, poisoned)
  for leaf in jax.tree.leaves(clean):
    assert np.isfinite(leaf).all()


@pytest.mark.parametrize('blocks, layers', [(1, 8), (3, 20)])
def test_depth_is_six_times_the_blocks_and_two(blocks, layers):
  params = jax.eval_shape(
    lambda key: network(blocks=blocks).init(key, images(), ForwardCtx(False)),
    jax.random.key(0),
  )['params']
  kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
  assert len(kernels) == layers
