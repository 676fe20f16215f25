"""IBN-a networks against an independent implementation in PyTorch."""

import compiled
import numpy as np
import pytest
import torch_backbones

from fedreid_jax.core import trees
from fedreid_jax.models import resnet
from fedreid_jax.models.layers import norm


@pytest.mark.parametrize(
  'name, width, least',
  [
    ('resnet18', 1 / 8, 40),
    ('resnet50_ibn_a', 1 / 8, 130),
    pytest.param('resnet50_ibn_a', 1.0, 130, marks=pytest.mark.slow),
    pytest.param('resnet101_ibn_a', 1 / 8, 260, marks=pytest.mark.slow),
  ],
)
def test_layers_are_those_of_pytorch(name, width, least):
  reference = torch_backbones.resnet(name, width)
  state = torch_backbones.fill(reference)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 64, 32, 3)).astype(np.float32)
  network = resnet.ResNet(name, width)
  torch_backbones.assert_layers_agree(network, state, reference, images, least)


def test_the_last_stage_and_later_normalisations_are_by_batch():
  network = resnet.ResNet('resnet50_ibn_a', 1 / 16)
  names = torch_backbones.shapes(network, (64, 32))
  halves = {n.split('/')[2] for n in names if '/IN/' in n}
  blocks = [(1, 3), (2, 4), (3, 6)]
  assert halves == {f'layer{s}_{i}' for s, n in blocks for i in range(n)}
  assert all('/bn1/IN/' in n for n in names if '/IN/' in n)


@pytest.mark.parametrize('kind', ['batch', 'frozen', 'group'])
def test_training_changes_the_statistics_of_the_second_half_only(kind):
  layer = norm.HalfInstanceNorm(kind)
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(1, 3, (4, 3, 2, 6)))
  variables = compiled.init(layer, x, seed=1, train=False)
  y, updated = compiled.apply(
    layer, variables, x, train=True, mutable=('batch_stats',)
  )
  first = y[..., :3]
  np.testing.assert_allclose(first.mean((1, 2)), 0, atol=1e-5)
  np.testing.assert_allclose(first.std((1, 2)), 1, atol=1e-2)
  names = {'batch_stats/BN/mean', 'batch_stats/BN/var'}
  assert {*trees.flatten(updated)} == (set() if kind == 'group' else names)
  same = kind == 'frozen'
  for name, leaf in trees.flatten(updated).items():
    assert same == np.array_equal(leaf, trees.flatten(variables)[name])
  alone = compiled.apply(layer, variables, x[:1], train=False)
  every = compiled.apply(layer, variables, x, train=False)
  np.testing.assert_allclose(every[:1], alone, atol=1e-6)
