import math

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from fedreid_jax.losses import style as style_loss
from fedreid_jax.models import reid, resnet
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import inserted

KEY = jax.random.key(0)


def maps(num=3, channels=6):
  values = np.random.default_rng(0).standard_normal((num, 4, 2, channels))
  return np.float32(values)


def scattered(variables):
  """The same variables, every one of them a random number."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: np.float32(rng.uniform(0.2, 0.8, x.shape)),
    variables,
  )


@pytest.mark.parametrize('train', [False, True])
def test_at_the_start_the_block_is_an_exact_identity(train):
  block, x = inserted.NonLocal(2), maps()
  variables = init(block, x)
  kept = ('batch_stats',) if train else ()
  y, _ = compiled.apply(block, variables, x, train=train, mutable=kept)
  np.testing.assert_array_equal(y, x)


def test_the_scale_learns_from_the_start():
  block, x = inserted.NonLocal(), jnp.asarray(maps())
  variables = init(block, x)

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
  block, x = inserted.NonLocal(inter), maps()
  variables = scattered(init(block, x))
  own, stats = variables['params'], variables['batch_stats']['bn']

  def project(values, name):
    return values @ own[name]['kernel'][0, 0] + own[name]['bias']

  expected = []
  for image in x.astype(np.float64):
    flat = image.reshape(8, 6)
    attention = project(flat, 'theta') @ project(flat, 'phi').T / 8
    y = project(attention @ project(flat, 'g'), 'w')
    y = (y - stats['mean']) / np.sqrt(stats['var'] + 1e-5)
    y = y * own['bn']['scale'] + own['bn']['bias']
    expected.append((flat + y).reshape(4, 2, 6))
  np.testing.assert_allclose(
    compiled.apply(block, variables, x, train=False),
    expected,
    rtol=2e-5,
    atol=2e-5,
  )


def test_padded_images_change_nothing():
  block, x = inserted.NonLocal(), maps()
  variables = scattered(init(block, x))
  mask = np.array([True, True, False])

  def run(x):
    return compiled.apply(
      block,
      variables,
      x,
      arrays={'mask': mask},
      train=True,
      mutable=('batch_stats',),
    )

  poisoned = x.copy()
  poisoned[2] = 1e3
  (y, stats), (other, same) = run(x), run(poisoned)
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
  rule = inserted.after_last_blocks()
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
    last_stride=1,
    modality_specific_stages=private,
    plugins=(inserted.after_last_blocks(),),
  )
  model = reid.ReIDNet(backbone, 4, pooling='gem', neck_kind='bnneck')
  shapes = jax.eval_shape(
    lambda: model.init(KEY, jnp.zeros((2, 64, 32, 3)), ForwardCtx(False))
  )['params']
  shapes.pop('classifier')
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == expected
  assert sum('non_local' in name for name in shapes['backbone']) == 5


def maps_style(seed=0, size=(3, 4, 2, 32)):
  values = np.random.default_rng(seed).normal(0.5, 1.0, size)
  return np.float32(np.maximum(values, 0))


def init(module, x, seed=0):
  return compiled.init(module, x, seed=seed, train=False)


def apply(module, variables, x, train=True):
  return compiled.apply(module, variables, x, train=train)


def trained(seed=1, num_classes=None):
  """A module and parameters as training might leave them."""
  module = inserted.SNR(2, num_classes)
  variables = init(module, maps_style(), seed)
  rng = np.random.default_rng(seed)
  return module, jax.tree.map(
    lambda x: x + rng.normal(0, 0.3, x.shape).astype(x.dtype), variables
  )


def by_definition(variables, x):
  """All maps formed one by one, (F~+, averages of F~, F~+ and F~-)."""
  p = variables['params']
  mean = x.mean((1, 2), keepdims=True)
  var = x.var((1, 2), keepdims=True)
  normalised = (x - mean) / jnp.sqrt(var + 1e-5) * p['scale'] + p['bias']
  residual = x - normalised
  hidden = residual.mean((1, 2)) @ p['reduce']['kernel'] + p['reduce']['bias']
  hidden = jnp.maximum(hidden, 0)
  gate = hidden @ p['expand']['kernel'] + p['expand']['bias']
  gate = (1 / (1 + jnp.exp(-gate)))[:, None, None]
  plus = normalised + gate * residual
  minus = normalised + (1 - gate) * residual
  return plus, [f.mean((1, 2)) for f in (normalised, plus, minus)]


def test_equals_the_definition():
  module, variables = trained()
  found, extras = apply(module, variables, maps_style())
  expected, averages = jax.jit(by_definition)(variables, maps_style())
  np.testing.assert_allclose(found, expected, atol=2e-5)
  assert set(extras) == {'snr_2'}
  assert extras['snr_2'].logits is None
  for average, wanted in zip(extras['snr_2'][:3], averages, strict=True):
    np.testing.assert_allclose(average, wanted, atol=2e-5)


def test_gradient_equals_that_of_the_definition():
  module, variables = trained()
  weights = jnp.asarray(np.random.default_rng(5).normal(size=(3, 3, 32)))

  def ours(variables, x):
    found, extras = module.apply(variables, x, train=True)
    averages = jnp.stack(extras['snr_2'][:3])
    return jnp.sin(found).sum() + (weights * jnp.sin(averages)).sum()

  def theirs(variables, x):
    found, averages = by_definition(variables, x)
    averages = jnp.stack(averages)
    return jnp.sin(found).sum() + (weights * jnp.sin(averages)).sum()

  found = jax.jit(jax.grad(ours, (0, 1)))(variables, maps_style())
  expected = jax.jit(jax.grad(theirs, (0, 1)))(variables, maps_style())
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4 * abs(b).max()),
    found,
    expected,
  )


@pytest.mark.parametrize('affine', ['initial', 'trained'])
def test_an_open_gate_is_the_identity_and_a_closed_one_normalises(affine):
  module, variables = trained()
  if affine == 'initial':
    variables = init(module, maps_style())
  params = variables['params']

  def run(bias):
    expand = {
      'kernel': params['expand']['kernel'],
      'bias': np.full(32, bias, np.float32),
    }
    changed = {'params': params | {'expand': expand}}
    found, extras = apply(module, changed, maps_style())
    return found, extras['snr_2']

  opened, averages = run(1e3)
  np.testing.assert_array_equal(opened, maps_style())
  np.testing.assert_array_equal(averages.contaminated, averages.normalised)
  closed, averages = run(-1e3)
  x = np.asarray(maps_style(), np.float64)
  x = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(
    x.var((1, 2), keepdims=True) + 1e-5
  )
  expected = x * params['scale'] + params['bias']
  np.testing.assert_allclose(closed, expected, atol=1e-5)
  np.testing.assert_array_equal(averages.enhanced, averages.normalised)


def test_at_first_normalised_averages_have_no_direction():
  """Their cosines count as 0, not as that of rounding errors."""
  module = inserted.SNR(1)
  variables = init(module, maps_style())
  _, extras = apply(module, variables, maps_style())
  np.testing.assert_array_equal(extras['snr_1'].normalised, 0)

  def loss(params):
    x = jnp.asarray(maps_style())
    _, extras = module.apply({'params': params}, x, train=True)
    return style_loss.distance(
      jax.random.key(0),
      *extras['snr_1'][:3],
      jnp.asarray([0, 0, 1]),
      jnp.ones(3, bool),
    )

  value, gradient = jax.jit(jax.value_and_grad(loss))(variables['params'])
  assert 0 < value < 8 * np.log(2)
  for leaf in jax.tree.leaves(gradient):
    assert np.isfinite(leaf).all()
    assert abs(leaf).max() < 10


def test_maps_without_contrast_stay_finite():
  module, variables = trained()

  def total(x):
    found, extras = module.apply(variables, x, train=True)
    return found.sum() + sum(f.sum() for f in extras['snr_2'][:3])

  run = jax.jit(jax.value_and_grad(total))
  for level in (0, 4):
    value, gradient = run(np.full((2, 3, 3, 32), level, np.float32))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_an_image_is_normalised_alone_in_training_and_in_a_test():
  module, variables = trained(num_classes=4)
  together, extras = apply(module, variables, maps_style())
  alone, own = apply(module, variables, maps_style()[1:2], train=False)
  np.testing.assert_allclose(together[1:2], alone, atol=1e-6)
  assert extras['snr_2'].logits.shape == (3, 3, 4)
  np.testing.assert_allclose(
    extras['snr_2'].logits[:, 1:2], own['snr_2'].logits, atol=1e-5
  )


def test_half_precision_keeps_its_type_and_exact_averages():
  module, variables = trained()
  half, extras = apply(module, variables, maps_style().astype(jnp.bfloat16))
  assert half.dtype == jnp.bfloat16
  exact, _ = apply(module, variables, maps_style())
  np.testing.assert_allclose(half.astype(jnp.float32), exact, atol=0.1)
  assert all(f.dtype == jnp.float32 for f in extras['snr_2'][:3])


def test_resnet50_with_modules_has_three_percent_more_parameters():
  """2 D of the affine, D^2/16 + D/16 and D^2/16 + D of the gate."""
  backbone = resnet.ResNet('resnet50', plugins=(inserted.after_stages(),))
  shapes = jax.eval_shape(
    lambda key: backbone.init(
      key, jnp.zeros((2, 64, 32, 3)), ForwardCtx(False)
    ),
    jax.random.key(0),
  )
  flat = traverse_util.flatten_dict(shapes['params'], sep='/')
  own = {n: math.prod(v.shape) for n, v in flat.items() if n[:4] == 'snr_'}
  assert {name.split('/')[0] for name in own} == {
    f'snr_{stage}' for stage in (1, 2, 3, 4)
  }
  expected = sum(
    2 * d + d * d // 16 + d // 16 + d * d // 16 + d
    for d in (256, 512, 1024, 2048)
  )
  assert sum(own.values()) == expected == 708_080
  total = sum(math.prod(v.shape) for v in flat.values())
  assert total == 23_508_032 + expected


def test_only_the_last_block_of_a_stage_has_a_module():
  plugins = inserted.after_stages()
  assert plugins(3, 0, 2, 8) is None
  module = plugins(3, 1, 2, 8)
  assert isinstance(module, inserted.SNR)
  assert module.name == 'snr_3'
  assert plugins(1, 0, 1, 8) is not None


@pytest.fixture
def network(monkeypatch):
  """A ResNet of one tiny stage, with its module and classifier."""
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1,)))
  backbone = resnet.ResNet(
    'resnet18', 0.0625, True, plugins=(inserted.after_stages(5),)
  )
  return reid.ReIDNet(backbone, 5)


def images():
  values = np.random.default_rng(0).standard_normal((6, 8, 8, 3))
  return np.float32(values)


def test_padded_samples_change_no_bit_in_a_network(network):
  variables = init(network, images())
  labels = jnp.asarray([0, 1, 0, 1, 2, 0])
  mask = jnp.arange(6) < 5

  @jax.jit
  def step(batch):
    def loss(params):
      outputs, updated = network.apply(
        variables | {'params': params},
        batch,
        ForwardCtx(True, mask),
        mutable=['batch_stats'],
      )
      total = jnp.where(mask[:, None], outputs.logits, 0).sum()
      features = outputs.extras['snr_1']
      key = jax.random.key(1)
      total += style_loss.distance(key, *features[:3], labels, mask)
      total += style_loss.entropy(features.logits, mask)
      return total, updated

    return jax.value_and_grad(loss, has_aux=True)(variables['params'])

  clean = step(images())
  for poison in (jnp.nan, 7.0):
    other = images()
    other[5] = poison
    poisoned = step(other)
    jax.tree.map(np.testing.assert_array_equal, clean, poisoned)
  for leaf in jax.tree.leaves(clean):
    assert np.isfinite(leaf).all()


def test_a_test_does_not_pay_for_the_extras(network):
  variables = init(network, images())

  def flops(read):
    run = jax.jit(lambda v, x: read(network.apply(v, x, ForwardCtx(False))))
    return run.lower(variables, images()).compile().cost_analysis()['flops']

  embedding = flops(lambda outputs: outputs.embedding)
  logits = flops(lambda o: (o.embedding, o.extras['snr_1'].logits))
  assert logits - embedding >= 2 * 3 * 6 * 4 * 5
