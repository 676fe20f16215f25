"""Weights of PyTorch become a file that the package reads."""

import sys

import jax
import numpy as np
import pytest
import toy
import toy_embedding

from fedreid_jax import errors
from fedreid_jax.apps.deploy.exchange import state_dicts
from fedreid_jax.models import networks, weights

FIELDS = {'name': 'resnet18', 'width': 1 / 32}


def test_without_pytorch_the_line_says_what_to_install(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'torch', None)
  with pytest.raises(errors.ConfigError, match='pip install torch'):
    state_dicts.convert(tmp_path / 'a.pth', tmp_path / 'a.safetensors')
  assert not [*tmp_path.iterdir()]


def test_the_new_file_has_its_own_suffix(tmp_path):
  with pytest.raises(errors.ConfigError, match='no .safetensors file'):
    state_dicts.convert(tmp_path / 'a.pth', tmp_path / 'b.pth')


@pytest.fixture
def torch():
  return pytest.importorskip('torch')


@pytest.fixture(scope='module')
def variables():
  config = toy.toy_config().model
  for name, value in FIELDS.items():
    config[name] = value
  model = networks.wrap(networks.build(config, 3), (32, 16, 3))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return toy_embedding.random_variables(shapes)


@pytest.fixture
def state(torch, variables):
  """The state of a ResNet, without a classifier."""
  leaves = {n: x for n, x in variables.items() if '/backbone/' in n}
  return {
    n: torch.from_numpy(x)
    for n, x in weights.torchvision_tensors(leaves).items()
  }


def convert(torch, saved, tmp_path):
  source, out = tmp_path / 'w.pth', tmp_path / 'w.safetensors'
  torch.save(saved, source)
  return state_dicts.convert(source, out)


def test_prefixes_types_and_heads(torch, state, variables, tmp_path):
  saved = {f'module.backbone.{n}': x for n, x in state.items()}
  saved['module.backbone.layer1.0.conv1.weight'] = saved[
    'module.backbone.layer1.0.conv1.weight'
  ].half()
  saved['module.backbone.bn1.weight'] = saved[
    'module.backbone.bn1.weight'
  ].bfloat16()
  saved['module.backbone.bn1.num_batches_tracked'] = torch.tensor(3)
  saved['module.classifier.weight'] = torch.zeros(9, 16)
  found = convert(torch, {'epoch': 3, 'state_dict': saved}, tmp_path)
  assert found.network == 'resnet18' and found.key == 'state_dict'
  assert found.tensors == len(state)
  assert found.stripped == dict.fromkeys(('module.', 'backbone.'), len(state))
  assert found.converted == {'float16': 1, 'bfloat16': 1}
  assert found.left_out == ['module.classifier.weight']
  text = '\n'.join(found.lines())
  for said in (
    f'wrote {tmp_path}/w.safetensors',
    f"removed the prefix 'backbone.' of {len(state)} names",
    'converted 1 tensor of float16 to float32',
    'left out 1 that a ResNet has not: module.classifier.weight',
  ):
    assert said in text
  loaded, names = weights.load(str(found.path), variables)
  assert len(names) == len(state)
  for name in names:
    exact = name.rpartition('/')[0] not in (
      'params/backbone/layer1_0/conv1',
      'params/backbone/bn1',
    )
    np.testing.assert_allclose(
      loaded[name], variables[name], rtol=0 if exact else 1e-2, atol=1e-6
    )


def test_a_plain_state_is_unchanged(torch, state, variables, tmp_path):
  found = convert(torch, state, tmp_path)
  assert not (found.key or found.stripped or found.converted or found.left_out)
  loaded, names = weights.load(str(found.path), variables)
  for name in names:
    np.testing.assert_array_equal(loaded[name], variables[name])


class Harmful:
  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (self.path, 'w')


def test_code_in_a_file_is_not_run(torch, state, tmp_path):
  saved = {'state_dict': state, 'args': Harmful(str(tmp_path / 'harm'))}
  with pytest.raises(errors.IntegrityError, match='could run code'):
    convert(torch, saved, tmp_path)
  assert {path.name for path in tmp_path.iterdir()} == {'w.pth'}


def nothing(torch, state):
  return {'epoch': 3}


def another(torch, state):
  return {'blocks.0.attn.weight': torch.zeros(2, 2)}


def twice(torch, state):
  return state | {'module.conv1.weight': state['conv1.weight']}


def infinite(torch, state):
  return state | {'bn1.bias': state['bn1.bias'] / 0}


def deeper(torch, state):
  return state | {'layer3.2.conv1.weight': state['layer3.1.conv1.weight']}


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (nothing, 'no tensors by name'),
    (another, 'no tensor of a ResNet, but blocks.0'),
    (twice, 'two tensors are conv1.weight'),
    (infinite, 'bn1.bias has values that are not finite'),
    (deeper, r'another ResNet, with \(2, 2, 3, 2\) blocks'),
  ],
)
def test_weights_that_cannot_be_used(torch, state, change, message, tmp_path):
  with pytest.raises(errors.IntegrityError, match=message):
    convert(torch, change(torch, state), tmp_path)
  assert not (tmp_path / 'w.safetensors').exists()


@pytest.mark.parametrize('content', [None, b'', b'PK\x03\x04', b'no weights'])
def test_files_that_cannot_be_read(torch, content, tmp_path):
  path = tmp_path / 'w.pth'
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(errors.IntegrityError, match='w.pth'):
    state_dicts.convert(path, tmp_path / 'w.safetensors')
