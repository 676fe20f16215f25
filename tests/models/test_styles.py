import functools

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax.algorithms import ccst, mixstyle
from fedreid_jax.models import networks
from fedreid_jax.models.layers import styles

KEY = jax.random.key(0)
SHAPE = (5, 4, 3, 6)


def maps(seed=0, shape=SHAPE):
  values = np.random.default_rng(seed).normal(0.5, 1.0, shape)
  return np.float32(np.maximum(values, 0))


def mixed_in_numpy(x, order, share):
  """The equation of the paper, in float64."""
  x = np.asarray(x, np.float64)
  mean = x.mean((1, 2), keepdims=True)
  std = np.sqrt(x.var((1, 2), keepdims=True) + 1e-6)
  share = np.asarray(share, np.float64)[:, :, None, None]
  new_mean = share * mean + (1 - share) * mean[order]
  new_std = share * std + (1 - share) * std[order]
  return new_std * (x - mean) / std + new_mean


ORDER = np.array([3, 0, 4, 1, 2])
SHARE = np.array([[0.0], [1.0], [0.25], [0.9], [0.5]], np.float32)


def mixed_with(*arrays):
  return jax.device_get(jax.jit(styles.mixed_with)(*arrays))


def test_a_worked_image():
  """Styles (2, 1) and (6, 3), mixed by halves, are (4, 2)."""
  x = np.float32([[1, 3], [3, 9]]).reshape(2, 2, 1, 1)
  found = mixed_with(x, np.array([1, 0]), np.full((2, 1), 0.5, np.float32))
  np.testing.assert_allclose(found.reshape(2, 2), [[2, 6], [2, 6]], rtol=1e-5)


def test_mixing_equals_the_definition():
  found = mixed_with(maps(), ORDER, SHARE)
  np.testing.assert_allclose(
    found, mixed_in_numpy(maps(), ORDER, SHARE), atol=1e-5
  )
  # An image with all of its own style is itself.
  np.testing.assert_allclose(found[1], maps()[1], atol=1e-6)
  # Another order or share is another result.
  for order, share in ((np.roll(ORDER, 1), SHARE), (ORDER, 1 - SHARE)):
    assert abs(found - mixed_in_numpy(maps(), order, share)).max() > 0.1


def test_value_and_gradient_equal_those_of_pytorch():
  """The statistics are detached, as in the released code."""
  torch = pytest.importorskip('torch', reason='pip install torch')
  x = torch.tensor(np.array(maps()).transpose(0, 3, 1, 2), requires_grad=True)
  mean = x.mean(dim=[2, 3], keepdim=True)
  # The released code divides by the number of positions minus 1.
  std = (x.var(dim=[2, 3], keepdim=True, unbiased=False) + 1e-6).sqrt()
  mean, std = mean.detach(), std.detach()
  share = torch.tensor(SHARE)[:, :, None, None]
  normal = (x - mean) / std
  wanted = normal * (std * share + std[ORDER] * (1 - share))
  wanted = wanted + (mean * share + mean[ORDER] * (1 - share))
  torch.sin(wanted).sum().backward()

  def total(x):
    found = styles.mixed_with(x, jnp.asarray(ORDER), jnp.asarray(SHARE))
    return jnp.sin(found).sum(), found

  gradient, found = jax.jit(jax.grad(total, has_aux=True))(maps())
  np.testing.assert_allclose(
    found, wanted.detach().numpy().transpose(0, 2, 3, 1), atol=1e-5
  )
  np.testing.assert_allclose(
    gradient, x.grad.numpy().transpose(0, 2, 3, 1), atol=1e-5
  )


def test_partners_are_a_permutation_of_the_real_images():
  mask = jnp.array([True, False, True, True, False, True])
  draw = jax.jit(jax.vmap(lambda key: styles.draw_partners(key, mask)))
  found = np.asarray(draw(jax.random.split(KEY, 200)))
  assert (np.sort(found, axis=1) == np.arange(6)).all()
  assert (found[:, [1, 4]] == [1, 4]).all()
  # Every real image is the partner of every other one.
  for row in (0, 2, 3, 5):
    assert set(found[:, row]) == {0, 2, 3, 5}


def mix(x, seed=0, mask=None, train=True, **fields):
  module = styles.MixStyle(**fields)
  rngs = {} if seed is None else {'dropout': jax.random.key(seed)}
  arrays = {'mask': mask, 'rngs': rngs}
  return compiled.apply(module, {}, x, arrays=arrays, train=train)


def test_maps_are_mixed_in_training_with_a_key_only():
  always = {'probability': 1.0, 'alpha': 1.0}
  np.testing.assert_array_equal(mix(maps(), train=False, **always), maps())
  np.testing.assert_array_equal(mix(maps(), seed=None, **always), maps())
  np.testing.assert_array_equal(mix(maps(), probability=0.0), maps())
  one, other = mix(maps(), 0, **always), mix(maps(), 1, **always)
  assert abs(one - maps()).max() > 0.1 and abs(one - other).max() > 0.1


def test_a_batch_is_mixed_with_the_probability():
  changed = [
    bool((mix(maps(), seed, alpha=1.0) != maps()).any()) for seed in range(60)
  ]
  assert 18 <= sum(changed) <= 42


def test_shares_are_drawn_for_each_image_from_the_beta_distribution():
  """Two images of constant styles 0 and 1: the new mean is the share."""
  x = np.tile(np.float32([0, 1]), 200)[:, None, None, None]
  x = np.broadcast_to(x, (400, 2, 2, 1))
  found = mix(x, probability=1.0)[:, 0, 0, 0]
  # With alpha 0.1 most shares are near 0 or 1, and both have a variance of
  # 1 / (4 (2 alpha + 1)).
  middle = ((found > 0.2) & (found < 0.8)).mean()
  assert 0 < middle < 0.2
  assert len(np.unique(found)) > 50


@pytest.mark.parametrize('poison', [jnp.nan, 1e3])
def test_padded_images_mix_with_none(poison):
  mask = np.array([True, True, True, True, False])
  fields = {'mask': mask, 'probability': 1.0, 'alpha': 1.0}
  poisoned = maps()
  poisoned[4] = poison
  clean, other = mix(maps(), **fields), mix(poisoned, **fields)
  np.testing.assert_array_equal(clean[:4], other[:4])


def test_half_precision_keeps_its_type():
  half = mix(maps().astype(jnp.bfloat16), probability=1.0, alpha=1.0)
  assert half.dtype == jnp.bfloat16
  exact = mix(maps(), probability=1.0, alpha=1.0)
  np.testing.assert_allclose(half.astype(jnp.float32), exact, atol=0.1)


def transferred(x, mean, std):
  path = f'{styles.STYLES}/backbone/{styles.TRANSFER}'
  given = styles.given(jnp.asarray(mean), jnp.asarray(std))
  assert given.keys() == {f'{path}/mean', f'{path}/std'}
  variables = {styles.STYLES: {n.rsplit('/')[-1]: v for n, v in given.items()}}
  return compiled.apply(styles.StyleTransfer(), variables, x, train=True)


def test_transfer_is_adaptive_instance_normalisation():
  torch = pytest.importorskip('torch', reason='pip install torch')
  rng = np.random.default_rng(1)
  mean = rng.normal(size=(5, 6)).astype('f4')
  std = rng.uniform(0.5, 2, (5, 6)).astype('f4')
  found, extras = transferred(maps(), mean, std)
  x = torch.tensor(np.array(maps()).transpose(0, 3, 1, 2))
  normal = torch.nn.functional.instance_norm(x, eps=1e-5)
  wanted = normal * torch.tensor(std)[:, :, None, None]
  wanted = (wanted + torch.tensor(mean)[:, :, None, None]).numpy()
  np.testing.assert_allclose(found, wanted.transpose(0, 2, 3, 1), atol=1e-4)
  own = extras[styles.TRANSFER].mean
  np.testing.assert_allclose(own, maps().mean((1, 2)), rtol=1e-6)
  swapped, _ = transferred(maps(), mean[::-1], std)
  assert abs(found - swapped).max() > 0.1


def test_without_a_given_style_or_with_the_own_one_maps_stay():
  module = styles.StyleTransfer()
  for train in (False, True):
    found, extras = compiled.apply(module, {}, maps(), train=train)
    np.testing.assert_array_equal(found, maps())
  own = extras[styles.TRANSFER]
  found, _ = transferred(maps(), own.mean, np.sqrt(own.var + 1e-5))
  np.testing.assert_allclose(found, maps(), atol=1e-5)


@pytest.mark.parametrize(
  'name, stages, places',
  [
    ('convnet', (1, 2), {'mixstyle_1', 'mixstyle_2'}),
    ('convnet', (2,), {'mixstyle_2'}),
    ('resnet18', (1, 3), {'mixstyle_1', 'mixstyle_3'}),
  ],
)
def test_modules_come_after_the_stages_that_are_given(name, stages, places):
  rule = styles.mix_after(stages=stages)
  blocks = 2 if name == 'resnet18' else 1
  found = {
    module.name
    for stage in range(1, 5)
    for block in range(blocks)
    if (module := rule(stage, block, blocks, 8))
  }
  assert found == places


@pytest.mark.slow
@pytest.mark.usefixtures('shallow')
@pytest.mark.parametrize('name', ['convnet', 'resnet18'])
def test_a_test_is_that_of_the_plain_network(name):
  """They have the same parameters, and the same outputs in evaluation."""
  config = toy.replaced(
    toy.toy_config(),
    {'model.name': name, 'model.width': 1 / 16, 'model.small_stem': True},
  )

  def network(*components):
    changes = [one.make().network for one in components]
    made = networks.build(config.model, 3, None, changes)
    return networks.wrap(made, (16, 16, 1))

  def outputs(model):
    apply = functools.partial(model.apply, train=False)
    return jax.jit(apply)(variables, maps(shape=(4, 16, 16, 1)))[0]

  plain = network()
  variables = jax.jit(plain.init)(KEY)
  expected = outputs(plain)
  for kind in (mixstyle, ccst):
    made = network(kind)
    assert variables.keys() == jax.eval_shape(made.init, KEY).keys()
    found = outputs(made)
    for field in ('feature', 'embedding', 'logits'):
      np.testing.assert_allclose(
        getattr(found, field), getattr(expected, field), atol=1e-5
      )


def test_options_of_a_component_reach_its_network():
  model = toy.toy_config().model
  mixes = mixstyle.make(
    mixstyle.Options(alpha=0.3, probability=1.0, stages=(2,))
  )
  transfers = ccst.make(ccst.Options(stage=2))
  changes = [mixes.network, transfers.network]
  mix, transfer = networks.build(model, 3, None, changes).backbone.plugins
  assert mix(1, 0, 1, 8) is None
  made = mix(2, 0, 1, 8)
  assert (made.alpha, made.probability) == (0.3, 1.0)
  assert transfer(1, 0, 1, 8) is None
  assert transfer(2, 0, 1, 8).name == styles.TRANSFER


def test_a_network_of_one_stage_pools_the_mean_of_the_given_style():
  config = toy.replaced(toy.toy_config(), {'model.features': (6,)})
  changes = [ccst.make().network]
  made = networks.build(config.model, 3, None, changes)
  model = networks.wrap(made, (16, 16, 1))
  rng = np.random.default_rng(2)
  mean = jnp.asarray(rng.normal(size=(4, 6)), jnp.float32)
  std = jnp.asarray(rng.uniform(0.5, 2, (4, 6)), jnp.float32)
  variables = {**jax.jit(model.init)(KEY), **styles.given(mean, std)}
  images = maps(shape=(4, 16, 16, 1))
  apply = jax.jit(model.apply, static_argnames='train')
  for train in (False, True):
    outputs, _ = apply(variables, images, train=train)
    np.testing.assert_allclose(outputs.feature, mean, atol=1e-4)
