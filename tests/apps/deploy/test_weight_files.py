"""Weights in torchvision's names, and in those of this package."""

import gzip
import io
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
import toy_embedding
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.deploy.exchange import weight_files
from fedreid_jax.models import networks, weights

ABOUT = {'summary': 'weights', 'model': {'name': 'resnet18'}, 'world_seed': 3}
# `state_dict()` of the networks of torchvision 0.28: shapes by name.
GOLDEN = Path(__file__).parents[2] / 'golden' / 'torchvision_resnets.json.gz'
TORCHVISION = json.loads(gzip.decompress(GOLDEN.read_bytes()))['networks']


@pytest.mark.parametrize('name', TORCHVISION)
def test_names_and_shapes_are_those_of_torchvision(name):
  config = toy.toy_config().model
  config.name, config.width, config.last_stride = name, 1.0, 2
  model = networks.wrap(networks.build(config, 3), (64, 32, 3))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  leaves = {
    n: np.broadcast_to(np.float32(0), x.shape)
    for n, x in shapes.items()
    if '/backbone/' in n
  }
  found = {
    n: [*x.shape] for n, x in weights.torchvision_tensors(leaves).items()
  }
  assert found == {
    n: shape
    for n, shape in TORCHVISION[name].items()
    if not n.startswith('fc.') and not n.endswith('num_batches_tracked')
  }


@pytest.mark.parametrize(
  ('fields', 'form'),
  [
    ({'name': 'resnet18', 'neck': 'bnneck'}, 'torchvision'),
    ({'neck': 'bnneck'}, 'fedreid_jax'),
    ({'name': 'resnet32', 'features': (4, 4, 8)}, 'fedreid_jax'),
    ({'name': 'resnet18', 'modality_specific_stages': 1}, 'fedreid_jax'),
  ],
)
def test_the_package_reads_its_own_files(fields, form, tmp_path):
  found = toy_embedding.make(**toy_embedding.TINY | fields)
  path = tmp_path / 'w.safetensors'
  path.write_bytes(weight_files.encode_safetensors(found, ABOUT))
  assert weights.card(path) == ABOUT | {'form': form}
  assert (weights.form(path), weight_files.form(found)) == (form, form)
  before = {n: np.full_like(x, 7) for n, x in found.variables.items()} | {
    'params/classifier/kernel': np.zeros((2, 3), np.float32)
  }
  loaded, names = weights.load(str(path), before)
  assert set(names) == {n for n in found.variables if '/backbone/' in n}
  for name, leaf in loaded.items():
    wanted = found.variables if name in names else before
    np.testing.assert_array_equal(leaf, wanted[name])


def test_a_network_that_torchvision_has_not_is_refused_for_pytorch():
  found = toy_embedding.make()
  with pytest.raises(errors.ConfigError, match="no network 'convnet'"):
    weight_files.encode_pth(found, ABOUT)


def test_moments_of_infrared_images_have_names_of_their_own(tmp_path):
  found = toy_embedding.make(name='resnet18', width=1 / 32)
  mean = 'batch_stats/backbone/bn1/mean'
  moments = {f'infrared:{mean}': found.variables[mean] + 1}
  both = found._replace(variables=found.variables | moments)
  assert weight_files.form(both) == 'fedreid_jax'
  path = tmp_path / 'w.safetensors'
  path.write_bytes(weight_files.encode_safetensors(both, ABOUT))
  assert {*moments} < {*safetensors_numpy.load_file(path)}
  loaded, names = weights.load(str(path), found.variables)
  assert mean in names and not {*moments} & {*loaded}
  np.testing.assert_array_equal(loaded[mean], found.variables[mean])
  with pytest.raises(errors.ConfigError, match='moments of each modality'):
    weight_files.encode_pth(both, ABOUT)


def test_pytorch_is_asked_for_by_name(monkeypatch):
  monkeypatch.setitem(sys.modules, 'torch', None)
  found = toy_embedding.make(name='resnet18', width=1 / 32)
  with pytest.raises(errors.ConfigError, match='pip install torch'):
    weight_files.encode_pth(found, ABOUT)


def test_a_linear_neck_is_transposed():
  kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
  tensors = weights.torchvision_tensors(
    {
      'params/neck/fc/kernel': kernel,
      'params/neck/fc/bias': kernel[0],
      'batch_stats/neck/bn/var': kernel[1],
    }
  )
  np.testing.assert_array_equal(tensors['neck.fc.weight'], kernel.T)
  np.testing.assert_array_equal(tensors['neck.fc.bias'], kernel[0])
  np.testing.assert_array_equal(tensors['neck.bn.running_var'], kernel[1])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'last_stride'), [('resnet18', 2), ('resnet50', 1)]
)
def test_pytorch_computes_the_same_embedding(name, last_stride):
  torch = pytest.importorskip('torch')
  from benchmarks import torch_resnet

  found = toy_embedding.make(
    name=name, width=1 / 16, last_stride=last_stride, neck='bnneck'
  )
  module = torch_resnet.ResNet(
    found.config.model.to_dict(), toy_embedding.MEAN, toy_embedding.STD
  ).eval()
  tensors = safetensors_numpy.load(
    weight_files.encode_safetensors(found, ABOUT)
  )
  content = io.BytesIO(weight_files.encode_pth(found, ABOUT))
  pth = torch.load(content, weights_only=True)
  assert pth['fedreid_jax'] == ABOUT
  wanted = toy_embedding.expected(found, 4)
  for state in (
    {n: torch.from_numpy(x) for n, x in tensors.items()},
    pth['state_dict'],
  ):
    module.load_state_dict(state)  # strict: no name is missing or unknown
    with torch.no_grad():
      got = module(torch.from_numpy(toy_embedding.pixels(4))).numpy()
    assert wanted.std() > 0.01
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_torchvision_loads_a_network_of_its_width():
  torch = pytest.importorskip('torch')
  torchvision = pytest.importorskip('torchvision')
  found = toy_embedding.make(name='resnet18', width=1.0, last_stride=2)
  content = weight_files.encode_safetensors(found, ABOUT)
  state = {
    n: torch.from_numpy(x) for n, x in safetensors_numpy.load(content).items()
  }
  module = torchvision.models.resnet18(weights=None).eval()
  module.fc = torch.nn.Identity()
  own = {n: x for n, x in state.items() if not n.startswith('neck.')}
  module.load_state_dict(own)
  x = torch.from_numpy(toy_embedding.pixels(2)).permute(0, 3, 1, 2) / 255
  mean, std = (
    torch.tensor(v)[:, None, None]
    for v in (toy_embedding.MEAN, toy_embedding.STD)
  )
  with torch.no_grad():
    got = module((x - mean) / std).numpy()
  wanted = toy_embedding.make(
    name='resnet18', width=1.0, last_stride=2, feature='feature'
  )
  np.testing.assert_allclose(
    got, toy_embedding.expected(wanted, 2), rtol=0, atol=1e-4
  )
