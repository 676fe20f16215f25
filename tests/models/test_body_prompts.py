"""Prompts of parts of the body: who attends to whom, and what it costs."""

import itertools
from typing import Any

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from flax import linen as nn
from safetensors.numpy import save_file
from scipy import special

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.data import augment
from fedreid_jax.evaluation import explanation
from fedreid_jax.models import flops, networks, reid, weights
from fedreid_jax.models.backbones import vit
from fedreid_jax.models.layers import body_prompts
from fedreid_jax.models.weights import pytorch

PARTS = vit.Options(part_prompts=(2, 1, 1, 3))
# By hand, for five rows of two patches and one prompt of each group: rows 0 and
# 1 are the upper part, 1 and 2 the middle, 2 to 4 the lower. The tokens are the
# class token, four prompts and the patches, row by row.
WORKED = """
1 1111 11 11 11 11 11
1 1111 11 11 00 00 00
1 1111 00 11 11 00 00
1 1111 00 00 11 11 11
1 1111 11 11 11 11 11
"""
PATCH = '1 0001 11 11 11 11 11'


def worked():
  lines = [*WORKED.strip().splitlines(), *[PATCH] * 10]
  return np.array([[*map(int, x.replace(' ', ''))] for x in lines]) == 1


def test_attention_of_an_odd_grid_worked_out_by_hand():
  found = body_prompts.may_attend((5, 2), (1, 1, 1, 1))
  np.testing.assert_array_equal(found, worked())
  # Neither other roles of rows and columns, nor patches column by column.
  swapped = body_prompts.may_attend((2, 5), (1, 1, 1, 1))
  assert (found != swapped).any() and (found != found.T).any()


def by_rules(grid, groups, registers=0):
  """The rules one by one, for each pair of tokens."""
  rows, columns = grid
  names = 'upper', 'middle', 'lower', 'all'
  tokens = [('all', 0)]
  for name, count in zip(names, groups, strict=True):
    tokens += [(name, -1)] * count
  tokens += [('all', 0)] * registers
  tokens += [('patch', row) for row in range(rows) for _ in range(columns)]
  seen = {
    'upper': range(rows // 2),
    'middle': range(rows // 4, 3 * rows // 4),
    'lower': range(rows // 2, rows),
  }

  def may(query, key):
    kinds = query[0], key[0]
    if 'all' in kinds or kinds == ('patch', 'patch'):
      return True
    if 'patch' not in kinds:  # prompts attend to prompts
      return True
    return kinds[1] == 'patch' and key[1] in seen[kinds[0]]

  pairs = [may(a, b) for a, b in itertools.product(tokens, tokens)]
  return np.array(pairs).reshape(len(tokens), -1)


@pytest.mark.parametrize(
  'grid, groups, registers',
  [
    ((16, 8), (10, 10, 10, 20), 0),
    ((21, 10), (3, 1, 2, 0), 4),
    ((7, 3), (0, 2, 1, 1), 1),
    ((1, 4), (1, 1, 1, 1), 0),
  ],
)
def test_attention_by_the_rules(grid, groups, registers):
  found = body_prompts.may_attend(grid, groups, registers)
  np.testing.assert_array_equal(found, by_rules(grid, groups, registers))


def test_weights_are_those_of_the_allowed_tokens_alone():
  rng = np.random.default_rng(0)
  q, k = jnp.asarray(rng.normal(size=(2, 1, 15, 2, 4)), jnp.float32)
  attention = vit.Attention(2, jnp.float32)

  def attend(q, k, allowed=None):
    found: Any = attention.apply({}, q, k, allowed, method='weights')
    return found

  allowed = worked()
  found, free = np.asarray(attend(q, k, allowed)), np.asarray(attend(q, k))
  expected = np.where(allowed, free, 0)
  expected /= expected.sum(-1, keepdims=True)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  assert (found[..., ~allowed] == 0).all()
  # The released code adds -1000 and multiplies the softmax by the mask.
  released = np.exp(np.log(free) - 1e3 * ~allowed) * allowed
  released /= released.sum(-1, keepdims=True)
  np.testing.assert_allclose(found, released, atol=1e-6)
  slopes = jax.grad(lambda q: (attend(q, k, allowed) ** 2).sum())(q)
  assert np.isfinite(slopes).all()


@pytest.fixture
def two_blocks(monkeypatch):
  """The smallest network with half of its depth, which compiles faster."""
  tiny = vit.SIZES['tiny']._replace(blocks=2)
  monkeypatch.setitem(vit.SIZES, 'tiny', tiny)


def seen_masks(options, images):
  """The masks of all blocks."""
  found, network = [], vit.ViT(options)
  variables = compiled.init(network, images, train=False)

  def keep(call, args, kwargs, context):
    if context.method_name == 'weights':
      found.append(args[2])
    return call(*args, **kwargs)

  with nn.intercept_methods(keep):
    ctx = vit.ForwardCtx(train=False)
    jax.eval_shape(lambda x: network.apply(variables, x, ctx), images)
  return found


@pytest.mark.usefixtures('two_blocks')
@pytest.mark.parametrize(
  'options, size, grid',
  [
    (PARTS, (40, 16), (5, 2)),
    (vit.Options(part_prompts=(1, 0, 2, 1), stride=4), (32, 16), (7, 3)),
    (vit.Options(part_prompts=(1, 1, 1, 1), registers=2), (24, 16), (3, 2)),
  ],
  ids=['odd', 'overlapping', 'registers'],
)
def test_the_mask_follows_the_grid_of_the_images(options, size, grid):
  masks = seen_masks(options, np.zeros((2, *size, 3), np.float32))
  wanted = body_prompts.may_attend(
    grid, options.part_prompts, options.registers
  )
  assert len(masks) == 2
  for mask in masks:
    np.testing.assert_array_equal(mask, wanted)


@pytest.mark.usefixtures('two_blocks')
def test_without_part_prompts_nothing_is_masked():
  images = np.zeros((2, 32, 16, 3), np.float32)
  for options in (vit.Options(), vit.Options(prompts=3)):
    masks = seen_masks(options, images)
    assert masks == [None, None]


@pytest.mark.usefixtures('two_blocks')
def test_prompts_are_new_in_each_block_and_start_small():
  network = vit.ViT(PARTS)
  images = np.random.default_rng(0).normal(size=(2, 32, 16, 3)).astype('f4')
  variables = compiled.init(network, images, train=False)
  end = (6 / (3 * 8 * 8 + 64)) ** 0.5
  prompts = [variables['params'][f'prompt_{k}'] for k in range(2)]
  for values in prompts:
    assert values.shape == (1, 7, 64)
    assert 0.97 * end < abs(values).max() <= end and abs(values.mean()) < 0.02
  assert (prompts[0] != prompts[1]).any()
  first, _ = compiled.apply(network, variables, images, train=False)
  # A part prompt reaches the class token in its own block, and the prompts of
  # the next block replace it.
  for block, row in itertools.product(range(2), (0, 6)):
    moved = prompts[block].copy()
    moved[0, row] += np.linspace(-2, 2, 64)
    changed = {'params': variables['params'] | {f'prompt_{block}': moved}}
    found, _ = compiled.apply(network, changed, images, train=False)
    assert abs(found - first).max() > 1e-4


def in_numpy(params, images, options, grid, heads=4, patch=8):
  """The class token of a transformer of two blocks, written out."""

  def norm(x, own):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * own['scale'] + own['bias']

  def dense(x, own):
    return x @ own['kernel'] + own['bias']

  def split(x):
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

  rows, columns = grid
  num = images.shape[0]
  squares = images.reshape(num, rows, patch, columns, patch, 3)
  own = params['patch_embed_proj']
  x = np.einsum('bipjqc,pqcd->bijd', squares, own['kernel']) + own['bias']
  x = x.reshape(num, rows * columns, -1)

  def every(name):
    return np.repeat(params[name], num, 0)

  x = np.concatenate([every('cls_token'), x], 1) + params['pos_embed']
  first, patches = x[:, :1], x[:, 1:]
  registers = every('reg_token')
  allowed = by_rules(grid, options.part_prompts, options.registers)
  for k in range(2):
    own = params[f'blocks_{k}']
    x = np.concatenate([first, every(f'prompt_{k}'), registers, patches], 1)
    qkv = dense(norm(x, own['norm1']), own['attn']['qkv'])
    q, k_, v = map(split, np.split(qkv, 3, -1))
    scores = q @ k_.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max()) * allowed
    y = weights / weights.sum(-1, keepdims=True) @ v
    y = y.transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + dense(y, own['attn']['proj'])
    y = dense(norm(x, own['norm2']), own['mlp']['fc1'])
    y = y * (1 + special.erf(y / np.sqrt(2))) / 2
    x = x + dense(y, own['mlp']['fc2'])
    first, patches = x[:, :1], x[:, -rows * columns :]
    registers = x[:, -rows * columns - options.registers : -rows * columns]
  return norm(first, params['norm'])


@pytest.mark.usefixtures('two_blocks')
def test_the_feature_is_the_one_written_out():
  options = vit.Options(part_prompts=(2, 1, 1, 3), registers=2)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 40, 16, 3)).astype(np.float32)
  network = vit.ViT(options)
  variables = compiled.init(network, images, train=False)
  # Tokens and weights that are far from equal, so that the mask matters.
  params = jax.tree.map(
    lambda x: x + 0.15 * rng.normal(size=x.shape).astype(np.float32),
    variables['params'],
  )
  found, _ = compiled.apply(network, {'params': params}, images, train=False)
  exact = jax.tree.map(np.float64, params)
  expected = in_numpy(exact, np.float64(images), options, (5, 2))
  np.testing.assert_allclose(found[:, 0], expected, atol=1e-4)


@pytest.mark.usefixtures('two_blocks')
def test_the_rows_of_a_part_change_no_feature_and_its_size_does():
  """The next block has prompts of its own in place of those of this one.

  The class token reads the learned prompts, whatever these attend to.
  """
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 40, 16, 3)).astype(np.float32)
  variables = compiled.init(vit.ViT(PARTS), images, train=False)
  variables = jax.tree.map(
    lambda x: x + 0.15 * rng.normal(size=x.shape).astype(np.float32), variables
  )
  found = [
    compiled.apply(
      vit.ViT(vit.Options(part_prompts=groups)), variables, images, train=False
    )[0]
    for groups in ((2, 1, 1, 3), (0, 0, 4, 3), (2, 1, 0, 4), (0, 0, 0, 7))
  ]
  np.testing.assert_allclose(found[1], found[0], atol=1e-5)
  for other in found[2:]:
    assert abs(other - found[0]).max() > 1e-3


def tiny(options, size=(40, 16), neck='none'):
  network = reid.ReIDNet(vit.ViT(options), 3, neck_kind=neck)
  return networks.wrap(network, (*size, 3))


def multiply_adds(tokens, patches=10, width=64, blocks=4):
  each = 12 * tokens * width**2 + 2 * tokens**2 * width
  return patches * width * 3 * 64 + blocks * each


def test_multiply_adds_count_prompts():
  shape = (40, 16, 3)
  assert flops.count(tiny(vit.Options()), shape).multiply_adds == (
    multiply_adds(11)
  )
  found, plain = (
    flops.count(tiny(options), shape) for options in (PARTS, vit.Options())
  )
  assert found.multiply_adds == multiply_adds(11 + 7)
  assert found.parameters == plain.parameters + 4 * 7 * 64


def test_a_base_transformer_sends_460_800_numbers():
  """50 prompts of 768 numbers before 12 blocks, of 86 million parameters."""
  network = vit.ViT(vit.Options('b16', part_prompts=(10, 10, 10, 20)))
  images = np.zeros((1, 256, 128, 3), np.float32)
  ctx = vit.ForwardCtx(train=False)
  made = jax.eval_shape(
    lambda key, x: network.init(key, x, ctx), jax.random.key(0), images
  )
  sizes = {n: x for n, x in made['params'].items() if 'prompt' in n}
  assert len(sizes) == 12
  assert sum(x.size for x in sizes.values()) == 50 * 768 * 12 == 460_800
  total = sum(x.size for x in jax.tree.leaves(made['params']))
  assert 86.0e6 < total < 86.5e6


@pytest.mark.usefixtures('two_blocks')
def test_positions_of_a_file_are_resized_beside_prompts(tmp_path):
  """A file of one grid of patches starts a network of another one."""
  before = jax.jit(tiny(vit.Options(), (32, 32)).init)(jax.random.key(1))
  backbone = {n: x for n, x in before.items() if '/backbone/' in n}
  path = tmp_path / 'vit.safetensors'
  save_file(pytorch.tensors(jax.device_get(backbone)), path)
  fresh = jax.device_get(jax.jit(tiny(PARTS).init)(jax.random.key(0)))
  found, read = weights.load(str(path), fresh, (40, 16))
  positions = 'params/backbone/pos_embed'
  assert found[positions].shape == (1, 11, 64) and positions in read
  changed = {n for n in found if (found[n] != fresh[n]).any()}
  assert not any('prompt' in n for n in {*read} | changed)
  assert len({n for n in fresh if 'prompt' in n}) == 2


def test_why_two_images_match(monkeypatch):
  monkeypatch.setitem(vit.SIZES, 'tiny', vit.Size(16, 2, 2, 8))
  model = tiny(PARTS)
  variables = jax.jit(model.init)(jax.random.key(0))
  view = augment.make(toy.toy_config().augment, (0.5,) * 3, (0.25,) * 3).test
  images = np.random.default_rng(0).integers(0, 256, (2, 40, 16, 3), np.uint8)
  explain = explanation.make(model, view, flip=False, feature='embedding')
  found = explain(variables, images)
  assert found.way == 'rollout' and found.query.parts.shape == (5, 2)
  assert np.isfinite(found.query.parts).all() and found.query.parts.max() > 0


def test_two_kinds_of_prompts_are_refused():
  fields = 'model.name=vit,vit.prompts=2,vit.part_prompts=(1,1,1,1)'
  with pytest.raises(errors.ConfigError, match=r'fourth number'):
    validation.validate(recipes.recipe('fedpav', f'smoke,{fields}'))
