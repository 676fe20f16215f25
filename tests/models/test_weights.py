import json
import runpy
import struct
from pathlib import Path

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.algorithms import snr
from fedreid_jax.core import trees
from fedreid_jax.models import networks, reid, resnet, weights
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.weights import pytorch, zoo

ABOUT = {'name': 'toy', 'model': {'name': 'convnet'}, 'world_seed': 1000}


def variables(changes=(), **fields):
  """Variables of a network, every leaf with numbers of its own."""
  config = toy.replaced(toy.toy_config().model, fields)
  model = networks.wrap(
    networks.build(config, 3, None, changes), toy.IMAGE_SHAPE
  )
  rng = np.random.default_rng(len(fields) + len(changes))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return {n: rng.random(x.shape, np.float32) for n, x in shapes.items()}


@pytest.fixture
def saved(tmp_path):
  path, own = tmp_path / 'toy.safetensors', variables()
  weights.save(path, own, ABOUT)
  return path, own


def test_the_backbone_is_loaded_and_nothing_else(saved):
  path, own = saved
  before = {n: np.zeros_like(x) for n, x in own.items()}
  loaded, names = weights.load(str(path), before)
  assert set(names) == {n for n in own if '/backbone/' in n}
  for name, leaf in loaded.items():
    wanted = own if name in names else before
    np.testing.assert_array_equal(leaf, wanted[name])
  assert not any(x.any() for x in before.values())


def test_modules_that_a_component_inserts_keep_their_values(saved):
  path, own = saved
  before = variables([snr.make().network])
  loaded, names = weights.load(str(path), before)
  new = [n for n in before if '/backbone/' in n and n not in names]
  assert new
  for name in new:
    np.testing.assert_array_equal(loaded[name], before[name])
  for name in names:
    np.testing.assert_array_equal(loaded[name], own[name])


def test_infrared_stages_start_from_the_visible_ones(tmp_path):
  fields = {'name': 'resnet18', 'width': 1 / 32}
  path, own = tmp_path / 'toy.safetensors', variables(**fields)
  weights.save(path, own, ABOUT)
  before = variables(**fields, modality_specific_stages=1)
  loaded, _ = weights.load(str(path), before)
  both = [n for n in before if '/infrared_' in n]
  assert both
  for name in both:
    visible = own[name.replace('/infrared_', '/')]
    np.testing.assert_array_equal(loaded[name], visible)


def test_another_network_is_refused_with_the_fields_of_the_card(saved):
  path, _ = saved
  for fields in ({'features': (6, 8)}, {'features': (8,)}):
    with pytest.raises(errors.IntegrityError, match=r"model.name='convnet'"):
      weights.load(str(path), variables(**fields))


@pytest.mark.parametrize(
  'saved_fields, fields, missing',
  [
    ({}, {'features': (4, 6, 8)}, 'bn3/mean'),
    (
      {'name': 'resnet18', 'width': 1 / 32},
      {'name': 'resnet34', 'width': 1 / 32},
      'layer1_2/bn1/mean',
    ),
    ({'norm': 'group'}, {}, 'bn1/mean'),
  ],
)
def test_a_file_of_a_part_of_the_network_is_refused(
  tmp_path, saved_fields, fields, missing
):
  path = tmp_path / 'small.safetensors'
  weights.save(path, variables(**saved_fields), ABOUT)
  with pytest.raises(
    errors.IntegrityError, match=f'the file has no .*{missing}'
  ):
    weights.load(str(path), variables(**fields))


def test_a_value_that_is_not_finite_is_refused(tmp_path):
  own = variables()
  leaf = next(n for n in own if n.startswith('params/backbone/'))
  own[leaf].flat[0] = np.nan
  weights.save(tmp_path / 'bad.safetensors', own, ABOUT)
  with pytest.raises(errors.IntegrityError, match='not finite'):
    weights.load(str(tmp_path / 'bad.safetensors'), variables())


def test_names_that_are_not_published():
  with pytest.raises(errors.ConfigError, match="no weights 'nothing'"):
    weights.find('nothing')
  with pytest.raises(errors.IntegrityError, match='unreadable'):
    weights.load('nothing.safetensors', {})


def test_the_world_of_the_weights_is_no_test(saved):
  path, own = saved
  weights.check_unseen(str(path), 'synthetic_v1', 0)
  weights.check_unseen(str(path), 'folder', 1000)
  weights.check_unseen(str(path), 'synthetic_v2', 1000)
  with pytest.raises(errors.ConfigError, match='world 1000 of synthetic_v1'):
    weights.check_unseen(str(path), 'synthetic_v1', 1000)
  weights.save(path, own, ABOUT | {'source': 'synthetic_v2'})
  weights.check_unseen(str(path), 'synthetic_v1', 1000)
  with pytest.raises(errors.ConfigError, match='world 1000 of synthetic_v2'):
    weights.check_unseen(str(path), 'synthetic_v2', 1000)


@pytest.mark.parametrize('name', weights.NAMES)
def test_published_weights_have_a_card_and_are_small(name):
  path = weights.find(name)
  about = zoo.complete(path)
  assert about['name'] == name and about['world_seed'] > 0
  assert path.stat().st_size < 8e6
  page = ' '.join(path.with_suffix('.md').read_text().split())
  assert about['command'] in page and weights.settings(path) in page
  tensors = safetensors_numpy.load_file(path)
  assert all(np.isfinite(x).all() for x in tensors.values())


ROOT = Path(__file__).parents[2]


def network(depth='resnet18', width=1 / 32, last_stride=2, small_stem=False):
  backbone = resnet.ResNet(depth, width, small_stem, last_stride)
  return reid.ReIDNet(backbone, 3, neck_kind='none')


def zeros(model):
  """Variables of the right shapes, every leaf zero."""
  shapes = jax.eval_shape(
    lambda key: model.init(key, jnp.zeros((2, 64, 32, 3)), ForwardCtx(False)),
    jax.random.key(0),
  )
  flat = trees.flatten(shapes)
  return {n: np.zeros(x.shape, x.dtype) for n, x in flat.items()}


def tensors_of(variables):
  """Random tensors, named and laid out as torchvision does."""
  rng = np.random.default_rng(0)
  tensors = {}
  for leaf, value in variables.items():
    if '/backbone/' in leaf:
      shape = value.shape
      if value.ndim == 4:
        shape = (shape[3], shape[2], shape[0], shape[1])
      tensors[pytorch.name_of(leaf)] = rng.random(shape, np.float32)
  return tensors


@pytest.fixture
def file_of_weights(tmp_path):
  variables = zeros(network())
  tensors = tensors_of(variables)
  return variables, tensors, tmp_path / 'weights.safetensors'


def test_every_tensor_arrives_at_its_place(file_of_weights):
  variables, tensors, path = file_of_weights
  extra = {
    'fc.weight': np.zeros((1000, 16), np.float32),
    'bn1.num_batches_tracked': np.array(3),
  }
  safetensors_numpy.save_file(tensors | extra, path)
  loaded = pytorch.load(path, variables)
  np.testing.assert_array_equal(
    loaded['params/backbone/layer2_0/downsample_0/kernel'],
    tensors['layer2.0.downsample.0.weight'].transpose(2, 3, 1, 0),
  )
  np.testing.assert_array_equal(
    loaded['batch_stats/backbone/bn1/var'], tensors['bn1.running_var']
  )
  np.testing.assert_array_equal(
    loaded['params/backbone/layer4_1/bn2/scale'], tensors['layer4.1.bn2.weight']
  )
  assert loaded.keys() == variables.keys()
  assert not np.any(variables['params/backbone/conv1/kernel'])
  assert not np.any(loaded['params/classifier/kernel'])


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
def test_a_tensor_that_does_not_fit_is_named(file_of_weights, damage):
  variables, tensors, path = file_of_weights
  damage(tensors)
  safetensors_numpy.save_file(tensors, path)
  with pytest.raises(errors.IntegrityError, match='layer1.0.conv1.weight'):
    pytorch.load(path, variables)


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
def test_a_damaged_file_is_an_error_and_no_allocation(file_of_weights, damage):
  variables, tensors, path = file_of_weights
  safetensors_numpy.save_file(tensors, path)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(errors.IntegrityError, match='unreadable'):
    pytorch.load(path, variables)


def test_pickles_and_absent_files_are_refused(tmp_path):
  with pytest.raises(errors.IntegrityError, match='fedreid import-weights'):
    pytorch.load(tmp_path / 'resnet50.pth', {})
  with pytest.raises(errors.IntegrityError, match='convert'):
    pytorch.load(tmp_path / 'resnet50.h5', {})
  with pytest.raises(errors.IntegrityError, match='unreadable'):
    pytorch.load(tmp_path / 'absent.safetensors', {})
  with pytest.raises(errors.IntegrityError, match='no such.*import-weights'):
    weights.load(str(tmp_path / 'absent.safetensors'), {})


@pytest.mark.slow
def test_resnet50_answers_as_pytorch_does(tmp_path):
  """Oracle: `benchmarks/golden_resnet.py`, the same weights in PyTorch."""
  recipe = runpy.run_path(str(ROOT / 'benchmarks' / 'golden_resnet.py'))
  golden = np.load(ROOT / 'tests' / 'golden' / 'resnet50.npz')
  path = tmp_path / 'resnet50.safetensors'
  safetensors_numpy.save_file(recipe['weights'](), path)
  images = recipe['images'](4)
  flat = pytorch.load(path, zeros(network('resnet50', 1.0)))
  variables = trees.unflatten(flat)
  for last_stride in (1, 2):
    model = network('resnet50', 1.0, last_stride)
    outputs = compiled.apply(model, variables, images[:2], train=False)
    np.testing.assert_allclose(
      outputs.feature, golden[f'eval_stride_{last_stride}'], rtol=0, atol=1e-4
    )
  model = network('resnet50', 1.0, 1)
  outputs, updated = compiled.apply(
    model, variables, images, train=True, mutable=('batch_stats',)
  )
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
