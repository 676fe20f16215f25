import json
import runpy
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.core import param_filter
from fedreid_jax.models import pretrained, reid, resnet

ROOT = Path(__file__).parents[2]


def network(depth='resnet18', width=1 / 32, last_stride=2, small_stem=False):
  backbone = resnet.ResNet(depth, width, small_stem, last_stride)
  return reid.ReIDNet(backbone, 3, neck_kind='none')


def zeros(model):
  """Variables of the right shapes, every leaf zero."""
  shapes = jax.eval_shape(
    lambda key: model.init(key, jnp.zeros((2, 64, 32, 3)), train=False),
    jax.random.key(0),
  )
  return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def tensors_of(variables):
  """Random tensors, named and laid out as torchvision does."""
  rng = np.random.default_rng(0)
  tensors = {}
  for leaf, value in param_filter.flatten(variables).items():
    if '/backbone/' in leaf:
      shape = value.shape
      if value.ndim == 4:
        shape = (shape[3], shape[2], shape[0], shape[1])
      tensors[pretrained.name(leaf)] = rng.random(shape, np.float32)
  return tensors


@pytest.fixture
def weights(tmp_path):
  variables = zeros(network())
  tensors = tensors_of(variables)
  return variables, tensors, tmp_path / 'weights.safetensors'


def test_every_tensor_arrives_at_its_place(weights):
  variables, tensors, path = weights
  extra = {
    'fc.weight': np.zeros((1000, 16), np.float32),
    'bn1.num_batches_tracked': np.array(3),
  }
  safetensors_numpy.save_file(tensors | extra, path)
  loaded = pretrained.load(path, variables)
  params = loaded['params']['backbone']
  np.testing.assert_array_equal(
    params['layer2_0']['downsample_0']['kernel'],
    tensors['layer2.0.downsample.0.weight'].transpose(2, 3, 1, 0),
  )
  np.testing.assert_array_equal(
    loaded['batch_stats']['backbone']['bn1']['var'], tensors['bn1.running_var']
  )
  np.testing.assert_array_equal(
    params['layer4_1']['bn2']['scale'], tensors['layer4.1.bn2.weight']
  )
  assert jax.tree.structure(loaded) == jax.tree.structure(variables)
  assert not np.any(variables['params']['backbone']['conv1']['kernel'])
  assert not np.any(loaded['params']['classifier']['kernel'])


def missing(tensors):
  del tensors['layer1.0.conv1.weight']


def unknown(tensors):
  tensors['layer1.0.conv1.weight.1'] = np.zeros(1, np.float32)


def reshaped(tensors):
  tensors['layer1.0.conv1.weight'] = np.zeros((2, 2, 3, 1), np.float32)


def retyped(tensors):
  old = tensors['layer1.0.conv1.weight']
  tensors['layer1.0.conv1.weight'] = old.astype(np.float16)


def infinite(tensors):
  tensors['layer1.0.conv1.weight'][0, 0, 0, 0] = np.inf


@pytest.mark.parametrize(
  'damage', [missing, unknown, reshaped, retyped, infinite]
)
def test_a_tensor_that_does_not_fit_is_named(weights, damage):
  variables, tensors, path = weights
  damage(tensors)
  safetensors_numpy.save_file(tensors, path)
  with pytest.raises(errors.IntegrityError, match='layer1.0.conv1.weight'):
    pretrained.load(path, variables)


def cut(data):
  return data[: len(data) // 2]


def empty(data):
  return b''


def long_header(data):
  return struct.pack('<Q', 1 << 60) + data[8:]


def vast_shape(data):
  size = struct.unpack('<Q', data[:8])[0]
  header = json.loads(data[8 : 8 + size])
  header['conv1.weight']['shape'] = [1 << 20, 1 << 20, 7, 7]
  text = json.dumps(header).encode()
  return struct.pack('<Q', len(text)) + text + data[8 + size :]


@pytest.mark.parametrize('damage', [cut, empty, long_header, vast_shape])
def test_a_damaged_file_is_an_error_and_no_allocation(weights, damage):
  variables, tensors, path = weights
  safetensors_numpy.save_file(tensors, path)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(errors.IntegrityError, match='unreadable'):
    pretrained.load(path, variables)


def test_pickles_and_absent_files_are_refused(tmp_path):
  with pytest.raises(errors.IntegrityError, match='fedreid import-weights'):
    pretrained.load(tmp_path / 'resnet50.pth', {'params': {}})
  with pytest.raises(errors.IntegrityError, match='convert'):
    pretrained.load(tmp_path / 'resnet50.h5', {'params': {}})
  with pytest.raises(errors.IntegrityError, match='unreadable'):
    pretrained.load(tmp_path / 'absent.safetensors', {})


@pytest.mark.slow
def test_resnet50_answers_as_pytorch_does(tmp_path):
  """Oracle: `benchmarks/golden_resnet.py`, the same weights in PyTorch."""
  recipe = runpy.run_path(str(ROOT / 'benchmarks' / 'golden_resnet.py'))
  golden = np.load(ROOT / 'tests' / 'golden' / 'resnet50.npz')
  path = tmp_path / 'resnet50.safetensors'
  safetensors_numpy.save_file(recipe['weights'](), path)
  images = jnp.asarray(recipe['images'](4))
  variables = pretrained.load(path, zeros(network('resnet50', 1.0)))
  for last_stride in (1, 2):
    model = network('resnet50', 1.0, last_stride)
    outputs = model.apply(variables, images[:2], train=False)
    np.testing.assert_allclose(
      outputs.feature, golden[f'eval_stride_{last_stride}'], rtol=0, atol=1e-4
    )
  model = network('resnet50', 1.0, 1)
  outputs, updated = jax.jit(
    lambda v: model.apply(v, images, train=True, mutable=['batch_stats'])
  )(variables)
  np.testing.assert_allclose(
    outputs.feature, golden['train'], rtol=0, atol=1e-3
  )
  before = variables['batch_stats']['backbone']['bn1']
  after = updated['batch_stats']['backbone']['bn1']
  np.testing.assert_allclose(after['mean'], golden['bn1_mean'], atol=1e-5)
  # PyTorch keeps the unbiased variance, of 4 x 32 x 16 values here.
  batch = (after['var'] - 0.9 * before['var']) / 0.1 * 2048 / 2047
  np.testing.assert_allclose(
    0.9 * before['var'] + 0.1 * batch, golden['bn1_var'], rtol=1e-5
  )
