"""Vision transformers against an independent implementation in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch_backbones

from fedreid_jax.models.backbones import vit


@pytest.mark.parametrize(
  'options, tokens',
  [
    (vit.Options(), 33),
    (vit.Options(stride=6), 51),
    (vit.Options(layer_scale=True), 33),
    (vit.Options(pre_norm=True, quick_gelu=True), 33),
  ],
  ids=['plain', 'overlapping', 'dinov2', 'clip'],
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


def test_branches_are_skipped_in_training_only():
  network = vit.ViT(vit.Options(drop_path=0.9))
  images = jnp.ones((4, 32, 16, 3))
  variables = network.init(jax.random.key(0), images, train=False)

  def run(train, key=None):
    rngs = {} if key is None else {'dropout': jax.random.key(key)}
    return network.apply(variables, images, train=train, rngs=rngs)[0]

  np.testing.assert_array_equal(run(True), run(False))
  assert np.ptp(run(True, 1)[:, 0, 0], axis=0).max() > 0  # images differ
  np.testing.assert_array_equal(run(False, 1), run(False))
