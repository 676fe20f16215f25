"""Folders for the trackers of Roboflow, without their reader.

`tests/apps/deploy/test_other_programs.py` has the reader.
"""

import json

import numpy as np
import pytest
import toy
import toy_embedding
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.deploy import trackers_folder
from fedreid_jax.models import weights

ABOUT = {
  'preprocessing': {'height': 32, 'width': 16, 'resample': 'bicubic'},
}
OSNET = {'name': 'osnet', 'options': {'width': 0.25}}
MAPPING = {'neck': 'mapping', 'bottleneck': 512}
RESNET = {'name': 'resnet18', 'last_stride': 2, 'feature': 'feature'}


def encoded(**fields):
  found = toy_embedding.make(**fields)
  files = trackers_folder.encode(found, ABOUT)
  assert [*files] == ['weights.safetensors', 'reid_config.json']
  state = safetensors_numpy.load(files['weights.safetensors'])
  return found, state, json.loads(files['reid_config.json'])


@pytest.mark.usefixtures('short')
def test_a_folder_has_the_network_and_the_preprocessing(tmp_path):
  found, state, config = encoded(**RESNET)
  assert config == {
    'architecture': 'timm:resnet18',
    'preprocessing': {
      'input_size': [32, 16],
      'mean': [*toy_embedding.MEAN],
      'std': [*toy_embedding.STD],
      'interpolation': 'bicubic',
      'to_rgb': True,
      'resize_mode': 'stretch',
    },
  }
  # The reader wants every tensor of the state, also the counters.
  counters = {n for n in state if n.endswith('.num_batches_tracked')}
  means = {n for n in state if n.endswith('.running_mean')}
  assert len(counters) == len(means) > 5
  assert not [n for n in state if n.startswith(('neck.', 'fc.'))]
  # A run of this package starts from it as from the file of torchvision.
  path = tmp_path / 'weights.safetensors'
  path.write_bytes(trackers_folder.encode(found, ABOUT)[path.name])
  zeros = {n: np.zeros_like(x) for n, x in found.variables.items()}
  loaded, names = weights.load(str(path), zeros)
  assert {*names} == {*found.variables}
  for name in names:
    np.testing.assert_array_equal(loaded[name], found.variables[name])


@pytest.mark.slow
def test_the_last_layer_of_an_osnet_is_its_neck_or_changes_nothing(tmp_path):
  found, state, config = encoded(**OSNET, **MAPPING)
  assert config['architecture'] == 'osnet_x0_25'
  kernel = found.variables['params/neck/fc/kernel']
  np.testing.assert_array_equal(state['fc.0.weight'], kernel.T)
  variance = found.variables['batch_stats/neck/bn/var']
  np.testing.assert_array_equal(state['fc.1.running_var'], variance)
  path = tmp_path / 'weights.safetensors'
  path.write_bytes(trackers_folder.encode(found, ABOUT)[path.name])
  own = {n: x for n, x in found.variables.items() if '/backbone/' in n}
  _, names = weights.load(str(path), found.variables)
  assert {*names} == {*own}
  _, state, config = encoded(name='osnet', neck='none')
  assert config['architecture'] == 'osnet_x1_0'
  x = np.abs(np.random.default_rng(0).standard_normal((3, 512)))
  x = x @ state['fc.0.weight'].T + state['fc.0.bias']
  x = (x - state['fc.1.running_mean']) / np.sqrt(
    state['fc.1.running_var'] + np.float32(1e-5)
  )
  y = x * state['fc.1.weight'] + state['fc.1.bias']
  np.testing.assert_allclose(np.maximum(y, 0), x, rtol=1e-6)


@pytest.mark.usefixtures('short')
@pytest.mark.parametrize(
  ('fields', 'problem'),
  [
    ({}, "no network 'convnet'"),
    ({'name': 'vit'}, "no network 'vit'"),
    (RESNET | {'last_stride': 1}, 'the last stride 2'),
    (RESNET | {'feature': 'embedding', 'neck': 'bnneck'}, 'no neck'),
    (RESNET | {'width': 0.5}, 'no such resnet18'),
    (RESNET | {'small_stem': True}, 'no such resnet18'),
    (RESNET | {'name': 'resnet50_ibn_a'}, 'no such resnet50_ibn_a'),
    (RESNET | {'norm': 'group'}, 'model.norm=group'),
    (RESNET | {'pool': 'gem'}, 'no pooling gem'),
    (RESNET | {'flip': True}, 'no mirror image'),
    (RESNET | {'modality_specific_stages': 1}, "no network 'resnet18'"),
    # The short network has three quarters of the channels.
    ({'name': 'osnet', 'neck': 'bnneck'}, 'the last layer of OSNet'),
    ({'name': 'osnet', 'neck': 'mapping', 'bottleneck': 64}, 'the last layer'),
    ({'name': 'osnet', 'options': {'width': 0.125}}, 'no such osnet'),
    ({'name': 'osnet', 'options': {'kind': 'ain'}}, 'no such osnet'),
  ],
)
def test_an_embedding_that_the_reader_has_not_is_one_line(fields, problem):
  with pytest.raises(errors.ConfigError, match=problem) as info:
    trackers_folder.encode(toy_embedding.make(**fields), ABOUT)
  assert '--format=onnx' in info.value.line()


@pytest.mark.usefixtures('short')
@pytest.mark.parametrize(
  ('field', 'value', 'problem'),
  [('invert', True, 'no inverted images'), ('resample', 'lanczos', 'lanczos')],
)
def test_pixels_that_the_reader_does_not_make_are_one_line(
  field, value, problem
):
  found = toy_embedding.make(**RESNET)
  config = toy.replaced(found.config, {f'data.{field}': value})
  with pytest.raises(errors.ConfigError, match=problem):
    trackers_folder.encode(found._replace(config=config), ABOUT)
