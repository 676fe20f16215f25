"""Vision transformers against an independent implementation in PyTorch."""

import compiled
import jax
import numpy as np
import pytest
import torch_backbones
from flax import linen as nn

from fedreid_jax.config import recipes, validation
from fedreid_jax.core import trees
from fedreid_jax.models.backbones import vit
from fedreid_jax.round import compose
from fedreid_jax.training import build


@pytest.mark.parametrize(
  'options, tokens',
  [
    (vit.Options(), 33),
    (vit.Options(stride=6), 51),
    (vit.Options(layer_scale=True), 33),
    (vit.Options(pre_norm=True, quick_gelu=True), 33),
    (vit.Options(registers=4, layer_scale=True), 33),
    (vit.Options(registers=3, layer_scale=True, rope=True), 0),
  ],
  ids=['plain', 'overlapping', 'dinov2', 'clip', 'registers', 'dinov3'],
)
def test_layers_are_those_of_pytorch(options, tokens):
  reference = torch_backbones.vit(options, tokens)
  state = torch_backbones.fill(reference)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 64, 32, 3)).astype(np.float32)
  network = vit.ViT(options)
  torch_backbones.assert_layers_agree(network, state, reference, images, 30)


@pytest.mark.slow
@pytest.mark.parametrize(
  'options, size, tokens',
  [
    (vit.Options('s16'), (256, 128), 129),
    (vit.Options('s16', stride=12), (256, 128), 211),
    (vit.Options('b16'), (256, 128), 129),
    (vit.Options('b14', layer_scale=True), (252, 126), 163),
  ],
  ids=['s16', 's16 overlapping', 'b16', 'b14'],
)
def test_published_sizes_are_those_of_pytorch(options, size, tokens):
  reference = torch_backbones.vit(options, tokens)
  state = torch_backbones.fill(reference)
  images = np.random.default_rng(0).normal(size=(1, *size, 3))
  images, network = images.astype(np.float32), vit.ViT(options)
  torch_backbones.assert_layers_agree(network, state, reference, images, 90)


@pytest.fixture
def two_blocks(monkeypatch):
  """The smallest network with half of its depth, which compiles faster."""
  tiny = vit.SIZES['tiny']._replace(blocks=2)
  monkeypatch.setitem(vit.SIZES, 'tiny', tiny)


@pytest.mark.slow
@pytest.mark.usefixtures('two_blocks')
def test_branches_are_skipped_in_training_only():
  network = vit.ViT(vit.Options(drop_path=0.9))
  images = np.ones((4, 32, 16, 3), np.float32)
  variables = compiled.init(network, images, train=False)

  def run(train, key=None):
    rngs = {} if key is None else {'dropout': jax.random.key(key)}
    arrays = {'rngs': rngs}
    return compiled.apply(
      network, variables, images, arrays=arrays, train=train
    )[0]

  np.testing.assert_array_equal(run(True), run(False))
  assert np.ptp(run(True, 1)[:, 0, 0], axis=0).max() > 0  # images differ
  np.testing.assert_array_equal(run(False, 1), run(False))


@pytest.mark.usefixtures('two_blocks')
def test_embeddings_of_cameras_are_added_to_all_tokens():
  """TransReID, equation 4: patches, positions, and the weighted embedding."""
  options = vit.Options(cameras=3, camera_weight=2.0)
  rng = np.random.default_rng(0)
  images = np.float32(rng.normal(size=(4, 64, 32, 3)))
  table = rng.normal(size=(3, 64)).astype(np.float32)
  network = vit.ViT(options)
  variables = compiled.init(network, images, train=False)
  variables['params']['camera_embed'] = table
  # A camera without an embedding has none, as an image in evaluation.
  arrays = {'cameras': np.array([2, 0, 3, 9])}
  found, _ = compiled.apply(
    network, variables, images, arrays=arrays, train=True
  )

  def evaluated(variables):
    return compiled.apply(network, variables, images, train=False)[0]

  plain = evaluated(variables)
  for row, camera in enumerate([2, 0]):
    positions = variables['params']['pos_embed'] + 2.0 * table[camera]
    moved = {'params': {**variables['params'], 'pos_embed': positions}}
    np.testing.assert_allclose(found[row], evaluated(moved)[row], atol=1e-5)
  np.testing.assert_allclose(found[2:], plain[2:], atol=1e-5)
  assert abs(found[:2] - plain[:2]).max() > 1e-3


class Shifted(nn.Module):
  """A module of a component: adds an array to maps in training."""

  array: np.ndarray
  __hash__ = object.__hash__

  @nn.compact
  def __call__(self, x, *, train, mask=None):
    return (x + self.array if train else x), {'mask': mask}


@pytest.mark.usefixtures('two_blocks')
@pytest.mark.parametrize(
  'options', [vit.Options(stride=6), vit.Options(registers=2, prompts=3)]
)
def test_modules_are_inserted_after_the_positions_of_patches(options):
  """An added map is one of other positions, but for the class token."""
  rng = np.random.default_rng(0)
  images = np.float32(rng.normal(size=(2, 64, 32, 3)))
  plain = vit.ViT(options)
  variables = compiled.init(plain, images, train=False)
  rows = 10 if options.stride else 8
  added = rng.normal(size=(rows, rows // 2, 64)).astype('f4')
  places = []

  def rule(*place):
    places.append(place)
    return Shifted(added, name='shifted')

  network = plain.clone(plugins=(rule,))
  names = jax.tree.structure(compiled.init(network, images, train=False))
  assert names == jax.tree.structure(variables)
  assert {*places} == {(1, 0, 1, 64)}
  arrays = {'mask': np.array([True, False])}
  found, extras = compiled.apply(
    network, variables, images, arrays=arrays, train=True
  )
  np.testing.assert_array_equal(extras['mask'], arrays['mask'])
  moved = variables['params']['pos_embed'].copy()
  moved[:, 1:] += added.reshape(1, -1, 64)
  params = {**variables['params'], 'pos_embed': moved}
  expected, none = compiled.apply(plain, {'params': params}, images, train=True)
  np.testing.assert_allclose(found, expected, atol=1e-4)
  assert none == {}
  tested = compiled.apply(network, variables, images, train=False)[0]
  before = compiled.apply(plain, variables, images, train=False)[0]
  np.testing.assert_array_equal(tested, before)
  assert abs(found - tested).max() > 0.1


def configured(*recipe):
  return validation.validate(recipes.recipe(*recipe))


def test_embeddings_stay_at_clients_and_tests_do_not_need_them():
  changes = 'smoke,model.name=vit,vit.cameras=4'
  config = configured('fedpav', changes)
  shared = compose.shared_leaves(build.load_components(config))
  network = build.network(config, 5, (32, 16, 3))
  variables = jax.eval_shape(network.init, jax.random.key(0))
  _, personal = trees.split(variables, shared)
  assert sorted(personal) == [
    'params/backbone/camera_embed',
    'params/classifier/kernel',
  ]
  build.check_ranked(config, variables, shared)


@pytest.mark.slow
@pytest.mark.usefixtures('two_blocks')
def test_other_networks_of_a_step_get_its_cameras():
  """MOON compares a step with frozen networks on the same batch."""
  changes = 'smoke,model.name=vit,vit.cameras=4,model.neck=none'
  config = configured('fedpav', changes)
  network = build.network(config, 5, (32, 16, 3))
  variables = jax.jit(network.init)(jax.random.key(0))
  images = np.random.default_rng(0).normal(size=(3, 32, 16, 3)).astype('f4')
  given = {'cameras': np.array([0, 3, 1])}
  apply = jax.jit(network.apply, static_argnames='train')
  measure = jax.jit(network.measure)
  step, _ = jax.device_get(apply(variables, images, train=True, **given))
  frozen, _ = jax.device_get(measure(variables, images, **given))
  np.testing.assert_array_equal(step.embedding, frozen.embedding)
  without, _ = jax.device_get(measure(variables, images))
  assert abs(step.embedding - without.embedding).max() > 1e-3
