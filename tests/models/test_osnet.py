"""OSNet against an independent implementation in PyTorch."""

import numpy as np
import pytest
import torch_backbones

from fedreid_jax.models.backbones import osnet


@pytest.mark.parametrize('kind', ['plain', 'ain'])
def test_layers_are_those_of_pytorch(kind):
  ain, width = kind == 'ain', 0.25
  channels = [round(width * c) for c in osnet.CHANNELS]
  reference = torch_backbones.osnet(ain, channels)
  state = torch_backbones.fill(reference)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 64, 32, 3)).astype(np.float32)
  network = osnet.OSNet(ain, width)
  torch_backbones.assert_layers_agree(network, state, reference, images, 100)
