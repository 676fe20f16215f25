import math

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.models import deen, reid, resnet
from fedreid_jax.models.forward import ForwardCtx

MODALITIES = jnp.array([0, 1, 1, 0])
KEY = jax.random.key(0)


@pytest.fixture(scope='module', autouse=True)
def _shallow():
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))
    yield


def images():
  values = np.random.default_rng(0).standard_normal((4, 16, 8, 3))
  return jnp.asarray(values, jnp.float32)


def train(model, variables, batch, key, mask):
  return model.apply(
    variables,
    batch,
    ForwardCtx(True, mask, MODALITIES),
    rngs={'dropout': key},
    mutable=['batch_stats'],
  )


@pytest.fixture(scope='module')
def network(_shallow):
  """A tiny network, its variables, and a training pass."""
  backbone = deen.DEEN('resnet18', 1 / 16, small_stem=True, last_stride=1)
  model = reid.ReIDNet(backbone, 5, 'gap', 'bnneck')
  variables = compiled.init(model, images(), train=False)
  run = jax.jit(
    lambda key: train(model, variables, images(), key, jnp.ones(4, bool))
  )
  return model, variables, run


def awake(variables):
  """The variables with every zero vector at one, as after some training."""
  params = jax.tree.map(
    lambda leaf: (
      leaf + np.float32(1) if not leaf.any() and leaf.ndim == 1 else leaf
    ),
    variables['params'],
  )
  return variables | {'params': params}


def test_parameters_at_full_size_are_those_published():
  """The 41.23 M of Jiang et al., L2RW: with neck, without classifier."""
  model = reid.ReIDNet(
    deen.DEEN('resnet50', last_stride=1), 395, 'gap', 'bnneck'
  )
  shapes = jax.eval_shape(
    lambda key: model.init(key, jnp.zeros((2, 64, 32, 3)), ForwardCtx(False)),
    KEY,
  )['params']
  count = {
    name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    for name, tree in (shapes | shapes['backbone']).items()
  }
  assert count['backbone'] + count['neck'] == 41_228_832
  assert count['dee'] == 14_682_112
  blocks = [n for name, n in count.items() if name.startswith('mfa')]
  assert len(blocks) == 6 and sum(blocks) == 3_025_056


@pytest.mark.slow
def test_three_embeddings_in_training_one_in_evaluation(network):
  model, variables, run = network
  outputs, _ = run(KEY)
  every = outputs.extras['copies']
  assert every.feature.shape == (12, 32) and every.logits.shape == (12, 5)
  for whole, first in zip(every[:3], outputs[:3], strict=True):
    np.testing.assert_array_equal(whole[:4], first)
  plain = jax.eval_shape(
    lambda v: model.apply(v, images(), ForwardCtx(False, None, MODALITIES)),
    variables,
  )
  assert plain.feature.shape == (4, 32) and plain.extras == {}


def test_the_untrained_trunk_is_undisturbed(network):
  """Blocks of MFA are identities at first, to the bit."""
  model, variables, _ = network
  trunk = reid.ReIDNet(
    resnet.ResNet('resnet18', 1 / 16, True, 1, modality_specific_stages=1),
    5,
    'gap',
    'bnneck',
  )
  ctx = ForwardCtx(False, modalities=MODALITIES)
  backbone = {
    name: leaf
    for name, leaf in variables['params']['backbone'].items()
    if not name.startswith(('mfa', 'dee'))
  }
  kept = variables | {'params': variables['params'] | {'backbone': backbone}}
  np.testing.assert_array_equal(
    jax.jit(lambda v, x: model.apply(v, x, ctx))(variables, images()).embedding,
    jax.jit(lambda v, x: trunk.apply(v, x, ctx))(kept, images()).embedding,
  )


@pytest.mark.parametrize('kind', ['channel', 'position'])
def test_blocks_are_exact_identities_at_first(kind):
  x, earlier = maps((3, 4, 2, 6), (3, 8, 4, 4))
  block = (
    deen.ChannelNonLocal(2) if kind == 'channel' else deen.PositionNonLocal()
  )
  init = jax.jit(block.init_with_output, static_argnames='train')
  for training in (True, False):
    out, _ = init(KEY, x, earlier, train=training)
    np.testing.assert_array_equal(out, x)


def maps(*shapes):
  rng = np.random.default_rng(3)
  return [np.float32(rng.normal(size=s)) for s in shapes]


def awake_block(block, x, earlier):
  """Output and parameters of a block in evaluation, scale of its norm one."""
  variables = awake(compiled.init(block, x, earlier, train=False))
  params = variables['params']
  kernels = {
    name: (leaf['kernel'][0, 0], leaf['bias'])
    for name, leaf in params.items()
    if 'kernel' in leaf
  }
  out = compiled.apply(block, variables, x, earlier, train=False)
  return out, kernels, params['bn']


def pointwise(x, kernel, stride=1):
  return x[:, ::stride, ::stride] @ kernel[0] + kernel[1]


def normalised(y, bn):
  return y / np.sqrt(1 + 1e-5) * bn['scale'] + bn['bias']


@pytest.mark.parametrize('stride', [1, 2])
def test_channel_block_with_the_stride_last_as_released(stride):
  x, earlier = maps((2, 4, 2, 6), (2, 4 * stride, 2 * stride, 4))
  block = deen.ChannelNonLocal(stride)
  out, k, bn = awake_block(block, x, earlier)
  theta = pointwise(x, k['theta']).reshape(2, -1, 4)
  phi = pointwise(earlier, k['phi'], stride).reshape(2, -1, 4)
  g = pointwise(earlier, k['g'])
  attention = theta.transpose(0, 2, 1) @ phi / 4
  y = np.stack([g[i] @ attention[i].T for i in range(2)])
  expected = x + normalised(pointwise(y, k['out'], stride), bn)
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_position_block_with_the_matrix_of_all_pairs():
  x, earlier = maps((2, 4, 2, 6), (2, 8, 4, 4))
  out, k, bn = awake_block(deen.PositionNonLocal(), x, earlier)
  theta = pointwise(x, k['theta']).reshape(2, 8, 2)
  phi = pointwise(earlier, k['phi']).reshape(2, 32, 2)
  g = pointwise(earlier, k['g']).reshape(2, 32, 2)
  attention = theta @ phi.transpose(0, 2, 1) / 32
  y = (attention @ g).reshape(2, 4, 2, 2)
  expected = x + normalised(pointwise(y, k['out']), bn)
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_expansion_equals_shifted_products():
  (x,) = maps((2, 5, 4, 8))
  module = deen.Expansion()
  out, variables = jax.device_get(jax.jit(module.init_with_output)(KEY, x))
  params = variables['params']
  assert params['squeeze1_1']['kernel'].shape == (3, 3, 8, 2)
  expected = [x]
  for branch in (1, 2):
    total = 0
    for d in (1, 2, 3):
      kernel = params[f'squeeze{branch}_{d}']['kernel']
      padded = np.pad(x, ((0, 0), (d, d), (d, d), (0, 0)))
      for i in range(3):
        for j in range(3):
          shifted = padded[:, i * d : i * d + 5, j * d : j * d + 4]
          total = total + shifted @ kernel[i, j] / 3
    leaf = params[f'expand{branch}']
    back = np.maximum(total, 0) @ leaf['kernel'][0, 0] + leaf['bias']
    expected.append(back)
  np.testing.assert_allclose(
    out, np.concatenate(expected), rtol=1e-4, atol=1e-5
  )


def test_a_key_decides_the_dropout(network):
  _, _, run = network
  jax.tree.map(np.testing.assert_array_equal, run(KEY), run(KEY))
  other = run(jax.random.key(1))[0].feature
  assert (np.asarray(other) != run(KEY)[0].feature).any()


@pytest.mark.slow
def test_padding_changes_no_bit_and_all_parameters_learn(network):
  model, variables, _ = network
  variables = awake(variables)
  mask = jnp.array([True, True, True, False])

  @jax.jit
  def step(batch):
    def loss(params):
      outputs, updated = train(
        model, variables | {'params': params}, batch, KEY, mask
      )
      every = outputs.extras['copies'].logits
      real = jnp.where(jnp.tile(mask, 3)[:, None], every, 0)
      return jnp.square(real - 1).sum(), (real, updated)

    return jax.value_and_grad(loss, has_aux=True)(variables['params'])

  clean = jax.device_get(step(images()))
  for poison in (jnp.nan, 7.0):
    other = np.array(images())
    other[3] = poison
    poisoned = step(other)
    jax.tree.map(np.testing.assert_array_equal, clean, poisoned)
  for path, leaf in jax.tree_util.tree_leaves_with_path(clean[1]):
    name = jax.tree_util.keystr(path)
    assert np.isfinite(leaf).all(), name
    # Normalisation takes away what a bias before it adds.
    assert leaf.any() or name.endswith("['out']['bias']"), name


def test_every_part_may_be_modality_specific():
  """The last part has three rows of each image in training."""
  backbone = deen.DEEN('resnet18', 1 / 16, True, 1, modality_specific_stages=5)

  def run(x):
    variables = backbone.init(KEY, x, ForwardCtx(False, None, MODALITIES))
    return train(backbone, variables, x, KEY, None)[0]

  maps, _ = jax.eval_shape(run, images())
  assert len(maps) == 3 * len(MODALITIES)
