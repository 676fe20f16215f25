import dataclasses

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from flax import traverse_util

from fedreid_jax import errors
from fedreid_jax.models import networks, resnet
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.options import Model


def make(num_classes=6, **changes):
  config = Model(
    name='convnet',
    modality_specific_stages=0,
    width=0.0625,
    small_stem=True,
    last_stride=1,
    features=(4, 6),
    pool='gap',
    neck='bnneck',
    norm='batch',
    bottleneck=7,
    dropout=0.5,
    classifier_bias=False,
    dtype='float32',
  )
  return networks.build(dataclasses.replace(config, **changes), num_classes)


@pytest.fixture(params=['convnet', 'resnet18'])
def name(request, monkeypatch):
  """A small network of each family."""
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1)))
  return request.param


def images(num=4, size=(8, 8, 3)):
  values = np.random.default_rng(0).standard_normal((num, *size))
  return np.float32(values)


def apply(model, variables, *inputs, **given):
  """Outputs in evaluation; arrays are given by name."""
  return compiled.apply(model, variables, *inputs, arrays=given, train=False)


def measured(model, variables, *inputs, **given):
  """Outputs and new statistics in training; arrays are given by name."""
  return compiled.apply(
    model,
    variables,
    *inputs,
    arrays=given,
    train=True,
    mutable=('batch_stats',),
  )


def shapes_of(model, size=(8, 8, 3)):
  return jax.eval_shape(
    lambda key: model.init(key, jnp.zeros((2, *size)), ForwardCtx(False)),
    jax.random.key(0),
  )


@pytest.mark.parametrize(
  'name, trunk, features',
  [
    ('resnet18', 11_176_512, 512),
    ('resnet34', 21_284_672, 512),
    ('resnet50', 23_508_032, 2048),
    ('resnet101', 42_500_160, 2048),
  ],
)
def test_parameter_counts_are_those_of_torchvision(name, trunk, features):
  model = make(name=name, width=1.0, small_stem=False)
  outputs, variables = jax.eval_shape(
    lambda key: model.init_with_output(
      key, jnp.zeros((2, 64, 32, 3)), ForwardCtx(False)
    ),
    jax.random.key(0),
  )
  assert toy.num_parameters(variables['params']['backbone']) == trunk
  assert outputs.feature.shape == (2, features)


def test_stack_a_shares_24_56_million_parameters():
  model = make(
    751, name='resnet50', width=1.0, neck='bottleneck', bottleneck=512
  )
  model = model.clone(backbone=resnet.ResNet('resnet50'))
  params = shapes_of(model, (64, 32, 3))['params']
  assert toy.num_parameters(params['neck']) == 1_050_112
  shared = toy.num_parameters(params) - toy.num_parameters(params['classifier'])
  assert shared == 23_508_032 + 1_050_112 == 24_558_144


@pytest.mark.parametrize('last_stride, size', [(1, (4, 2)), (2, (2, 1))])
def test_last_stride_keeps_a_finer_map(last_stride, size):
  backbone = resnet.ResNet('resnet18', 0.0625, False, last_stride)
  (maps, _), _ = jax.eval_shape(
    lambda key: backbone.init_with_output(
      key, jnp.zeros((2, 64, 32, 3)), ForwardCtx(False)
    ),
    jax.random.key(0),
  )
  assert maps.shape == (2, *size, 32)


@pytest.mark.parametrize(
  'neck, names, embedding',
  [
    ('none', set(), 6),
    ('bn', set(), 6),
    ('bnneck', {'bn/scale', 'bn/bias'}, 6),
    ('bottleneck', {'bn/scale', 'bn/bias', 'fc/kernel', 'fc/bias'}, 7),
    ('mapping', {'bn/scale', 'bn/bias', 'fc/kernel', 'fc/bias'}, 7),
  ],
)
def test_parameter_paths_and_shapes(neck, names, embedding):
  model = make(neck=neck, classifier_bias=True)
  variables = shapes_of(model)
  params = traverse_util.flatten_dict(variables['params'], sep='/')
  assert {n for n in params if n.startswith('neck/')} == {
    f'neck/{n}' for n in names
  }
  assert params['classifier/kernel'].shape == (embedding, 6)
  assert params['classifier/bias'].shape == (6,)
  assert 'backbone/conv1/kernel' in params
  roots = {name.split('/')[0] for name in params}
  assert roots <= {'backbone', 'neck', 'classifier'}


def test_initial_classifier_and_necks_have_the_published_deviations():
  model = make(500, neck='bottleneck', bottleneck=512, features=(4, 256))
  params = compiled.init(model, images(), train=False)['params']
  assert float(params['classifier']['kernel'].std()) == pytest.approx(
    1e-3, rel=0.02
  )
  scale = params['neck']['bn']['scale']
  assert float(scale.mean()) == pytest.approx(1, abs=5e-3)
  assert float(scale.std()) == pytest.approx(0.02, rel=0.2)
  # Kaiming normal, fan out: 2 / 512.
  assert float(params['neck']['fc']['kernel'].std()) == pytest.approx(
    (2 / 512) ** 0.5, rel=0.02
  )


def test_mapping_is_the_bottleneck_rectified():
  variables = compiled.init(make(neck='bottleneck'), images(), train=False)
  linear, rectified = (
    apply(make(neck=neck), variables, images()).embedding
    for neck in ('bottleneck', 'mapping')
  )
  assert (linear < 0).any()
  np.testing.assert_array_equal(rectified, np.maximum(linear, 0))


@pytest.mark.parametrize('neck', ['bottleneck', 'mapping'])
def test_training_drops_features_only_with_a_key(neck):
  model = make(neck=neck, bottleneck=64)
  variables = compiled.init(model, images(), train=False)

  def embed(network, rngs):
    return measured(network, variables, images(), rngs=rngs)[0].embedding

  whole = embed(model, {})
  dropped = embed(model, {'dropout': jax.random.key(1)})
  np.testing.assert_array_equal(whole, embed(model.clone(dropout=0.0), {}))
  kept = dropped != 0
  np.testing.assert_allclose(dropped[kept], 2 * whole[kept], rtol=1e-6)
  # Half of them; a rectified feature may be zero already.
  alive = (whole != 0).sum()
  assert 0.35 * alive < kept.sum() < 0.65 * alive


def test_padded_identities_score_a_large_negative():
  model = make()
  variables = compiled.init(model, images(), train=False)

  @jax.jit
  def logits(num):
    return model.apply(
      variables, jnp.asarray(images()), ForwardCtx(False), num
    ).logits

  free = apply(model, variables, images())
  for num in (2, 6):
    found = logits(num)
    np.testing.assert_allclose(found[:, :num], free.logits[:, :num], atol=1e-6)
    np.testing.assert_array_equal(found[:, num:], np.full((4, 6 - num), -1e9))
  again = compiled.apply(model, variables, free.embedding, 2, method='classify')
  np.testing.assert_allclose(again, logits(2), atol=1e-6)


@pytest.mark.parametrize(
  'name, neck',
  [('convnet', 'bottleneck'), ('resnet18', 'bnneck')],
  indirect=['name'],
)
def test_padded_samples_change_no_bit_whatever_they_hold(name, neck):
  model = make(name=name, neck=neck, dropout=0.0)
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
        rngs={'dropout': jax.random.key(1)},
      )
      real = jnp.where(mask[:, None], outputs.logits, 0)
      return jnp.square(real - 1).sum(), (outputs, updated)

    return jax.value_and_grad(loss, has_aux=True)(variables['params'])

  batch = images()
  clean = step(batch)
  for poison in (jnp.nan, 7.0):
    poisoned = batch.copy()
    poisoned[3] = poison
    jax.tree.map(np.testing.assert_array_equal, clean, step(poisoned))
  jax.tree.map(lambda leaf: np.isfinite(leaf).all() or pytest.fail(), clean)


def test_masked_batch_equals_the_smaller_batch():
  model = make()
  variables = compiled.init(model, images(), train=False)
  padded, padded_stats = measured(
    model, variables, images(), mask=np.arange(4) < 3
  )
  small, small_stats = measured(model, variables, images()[:3])
  np.testing.assert_allclose(padded.logits[:3], small.logits, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    padded_stats,
    small_stats,
  )


def test_bfloat16_keeps_float32_parameters_statistics_and_outputs(name):
  exact, half = make(name=name), make(name=name, dtype='bfloat16')
  variables = compiled.init(half, images(), train=False)
  outputs, updated = measured(half, variables, images())
  for leaf in jax.tree.leaves((variables, outputs, updated)):
    assert leaf.dtype == jnp.float32
  maps = jax.eval_shape(
    lambda x: half.bind(variables).backbone(x, ForwardCtx(False))[0], images()
  )
  assert maps.dtype == jnp.bfloat16
  expected = apply(exact, variables, images())
  found = apply(half, variables, images())
  np.testing.assert_allclose(found.feature, expected.feature, atol=0.05)


def test_an_unknown_network_is_refused():
  with pytest.raises(errors.ConfigError, match='did you mean resnet50'):
    make(name='resnet20')


@pytest.mark.parametrize('absent', [0, 1])
def test_a_modality_without_images_keeps_its_running_statistics(
  absent, monkeypatch
):
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1,)))
  model = make(name='resnet18', modality_specific_stages=1)
  variables = compiled.init(model, images(), train=False)
  modalities = np.full(4, 1 - absent, np.int32)
  _, updated = measured(model, variables, images(), modalities=modalities)
  for name in ('bn1', 'infrared_bn1'):
    before = variables['batch_stats']['backbone'][name]
    after = updated['batch_stats']['backbone'][name]
    kept = [np.array_equal(before[n], x) for n, x in after.items()]
    assert kept == [name.startswith('infrared') == bool(absent)] * 2
