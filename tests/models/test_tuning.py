"""Few parameters beside a frozen backbone."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import trees
from fedreid_jax.models import networks, tuning
from fedreid_jax.models.backbones import vit
from fedreid_jax.training import build

SHAPE = (16, 8, 3)


def configured(fields, recipe='fedpav:smoke'):
  return validation.validate(recipes.recipe(f'{recipe},{fields}', ''))


def pair(fields):
  """A tuned model, the whole one, and the initial variables of both."""
  config = configured(fields)
  plain = configured('data.height=16')
  plain = replace(plain, model=replace(config.model, tune='', trained=''))
  key = jax.random.key(config.seed)
  tuned, whole = (build.network(c, 5, SHAPE) for c in (config, plain))
  variables = jax.jit(lambda key: (tuned.init(key), whole.init(key)))(key)
  return config, tuned, whole, *jax.device_get(variables)


def outputs(model, variables, images):
  found, _ = jax.jit(model.apply, static_argnames='train')(
    variables, images, train=False
  )
  return jax.device_get(found.embedding)


@pytest.fixture(scope='module')
def images():
  rng = np.random.default_rng(0)
  return rng.normal(size=(3, *SHAPE)).astype(np.float32)


@pytest.mark.parametrize('fields', ['model.tune=lora', 'model.tune=adapter'])
def test_the_first_model_is_the_pretrained_one(fields, images):
  config, tuned, whole, own, variables = pair(fields)
  np.testing.assert_allclose(
    outputs(tuned, own, images), outputs(whole, variables, images), atol=1e-5
  )
  kernels = [n for n in variables if 'backbone' in n and 'kernel' in n]
  assert kernels and not {*kernels} & {*own}
  parts = own.keys() - variables.keys()
  assert {n.rpartition('_')[2] for n in parts} == (
    {'a', 'b'} if config.model.tune == 'lora' else {'adapter'}
  )
  # Classifier, neck and running statistics are variables as before.
  kept = {n for n in variables if not n.startswith('params/backbone/')}
  assert kept <= own.keys()


@pytest.mark.slow
def test_low_rank_matrices_are_added_to_kernels(images):
  config, tuned, whole, own, variables = pair(
    'model.tune=lora,model.tune_rank=2,model.tune_alpha=6.0'
  )
  rng = np.random.default_rng(1)
  changed = {
    n: rng.normal(size=x.shape).astype(np.float32) if 'lora' in n else x
    for n, x in own.items()
  }
  expected = dict(variables)
  for name in (n.removesuffix('_lora_a') for n in own if n.endswith('lora_a')):
    a, b = changed[f'{name}_lora_a'], changed[f'{name}_lora_b']
    kernel = np.asarray(variables[name])
    assert a.shape == (kernel[..., 0].size, 2)
    assert b.shape == (2, kernel.shape[-1])
    update = np.einsum('ir,ro->io', a, b).reshape(kernel.shape)
    expected[name] = kernel + 3.0 * update  # alpha / rank
  np.testing.assert_allclose(
    outputs(tuned, changed, images),
    outputs(whole, expected, images),
    rtol=1e-3,
    atol=1e-4,
  )
  merged = build.merged(config, changed, SHAPE)
  assert merged.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(merged[name], value, rtol=1e-4, atol=1e-5)


def test_an_adapter_is_a_convolution_of_one_position_beside_another():
  rng = np.random.default_rng(2)
  name = 'params/backbone/conv/kernel'
  kernel, adapter = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ((3, 3, 4, 6), (4, 6))
  )
  chosen = tuning.Plan('adapter', '', '.*', 1, 1.0)
  found = tuning.merged({f'{name}_adapter': adapter}, {name: kernel}, chosen)
  x = rng.normal(size=(2, 8, 5, 4)).astype(np.float32)

  @jax.jit
  def convolved(kernel):
    return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )

  np.testing.assert_allclose(
    convolved(found[name]),
    convolved(kernel) + np.einsum('bhwi,io->bhwo', x, adapter),
    atol=1e-5,
  )


def test_parameters_of_the_backbone_can_be_trained_alone():
  _, _, whole, own, variables = pair('model.trained=.*bias')
  backbone, rest = trees.split(own, tuning.BACKBONE)
  assert backbone and all(n.endswith('bias') for n in backbone)
  assert rest.keys() == trees.split(variables, tuning.BACKBONE)[1].keys()
  assert whole.init is not None


def test_gradients_reach_the_added_parameters_alone(images):
  _, tuned, _, own, _ = pair('model.tune=lora')
  params, statistics = trees.trainable(own)

  def loss(params):
    found, _ = tuned.apply(params | statistics, images, train=True)
    return (found.embedding**2).sum() + found.logits[:, 0].sum()

  gradients = jax.jit(jax.grad(loss))(params)
  assert gradients.keys() == params.keys()
  assert all(
    np.abs(x).max() > 0 for n, x in gradients.items() if '_lora_b' in n
  )


@pytest.mark.parametrize(
  'fields, message',
  [
    ('model.tune=lora,model.tune_at=attn', 'no kernel for lora'),
    ('model.trained=x', 'no parameter of the backbone'),
  ],
)
def test_patterns_without_a_match(fields, message):
  with pytest.raises(errors.ConfigError, match=message):
    build.network(configured(fields), 5, SHAPE)


def test_prompts_are_tokens_before_each_block(monkeypatch):
  tiny = vit.SIZES['tiny']._replace(blocks=2)
  monkeypatch.setitem(vit.SIZES, 'tiny', tiny)
  made = networks.build(
    configured('model.name=vit').model, 5, {'prompts': 3, 'size': 'tiny'}
  )
  model = networks.wrap(made, (16, 8, 3))
  variables = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  prompts = {n: x for n, x in variables.items() if 'prompt' in n}
  assert len(prompts) == 2
  assert {x.shape for x in prompts.values()} == {(1, 3, 64)}
  images = np.ones((2, 16, 8, 3), np.float32)
  embed = jax.jit(lambda v: model.apply(v, images, train=False)[0].embedding)
  first = embed(variables)
  rng = np.random.default_rng(3)
  for name in prompts:  # every block reads its own
    change = rng.normal(size=(1, 3, 64)).astype(np.float32)
    other = variables | {name: variables[name] + change}
    assert np.abs(np.asarray(embed(other)) - first).max() > 1e-3
