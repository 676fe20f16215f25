"""Files of weights and programs, and processes that read them."""

import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
import toy_embedding
from jax import export
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.deploy import exchange
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
  path.write_bytes(exchange.encode_safetensors(found, ABOUT))
  assert weights.card(path) == ABOUT | {'form': form}
  assert (weights.form(path), exchange.form(found)) == (form, form)
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
    exchange.encode_pth(found, ABOUT)


def test_moments_of_infrared_images_have_names_of_their_own(tmp_path):
  found = toy_embedding.make(name='resnet18', width=1 / 32)
  mean = 'batch_stats/backbone/bn1/mean'
  moments = {f'infrared:{mean}': found.variables[mean] + 1}
  both = found._replace(variables=found.variables | moments)
  assert exchange.form(both) == 'fedreid_jax'
  path = tmp_path / 'w.safetensors'
  path.write_bytes(exchange.encode_safetensors(both, ABOUT))
  assert {*moments} < {*safetensors_numpy.load_file(path)}
  loaded, names = weights.load(str(path), found.variables)
  assert mean in names and not {*moments} & {*loaded}
  np.testing.assert_array_equal(loaded[mean], found.variables[mean])
  with pytest.raises(errors.ConfigError, match='moments of each modality'):
    exchange.encode_pth(both, ABOUT)


def test_pytorch_is_asked_for_by_name(monkeypatch):
  monkeypatch.setitem(sys.modules, 'torch', None)
  found = toy_embedding.make(name='resnet18', width=1 / 32)
  with pytest.raises(errors.ConfigError, match='pip install torch'):
    exchange.encode_pth(found, ABOUT)


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
  tensors = safetensors_numpy.load(exchange.encode_safetensors(found, ABOUT))
  content = io.BytesIO(exchange.encode_pth(found, ABOUT))
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
  content = exchange.encode_safetensors(found, ABOUT)
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


# What docs/export.md shows, without this package and Flax.
READER = """
import json, sys, zipfile
import jax, numpy as np
program, images, out = sys.argv[1:]
with zipfile.ZipFile(program) as file:
  about = json.loads(file.read('about.json'))
  embed = jax.export.deserialize(bytearray(file.read('program.bin'))).call
np.save(out, embed(np.load(images)))
print(about['summary'])
assert not {'fedreid_jax', 'flax'} & {*sys.modules}
"""


def test_a_process_with_jax_only_computes_the_same(tmp_path):
  pytest.importorskip('flatbuffers', reason='pip install .[export]')
  found = toy_embedding.tiny('resnet18', flip=True)
  (tmp_path / 'p.jax.zip').write_bytes(exchange.encode_jax(found, ABOUT))
  np.save(tmp_path / 'images.npy', toy_embedding.pixels(5))
  names = ('p.jax.zip', 'images.npy', 'out.npy')
  done = subprocess.run(
    [sys.executable, '-c', READER, *(str(tmp_path / n) for n in names)],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    timeout=240,
  )
  assert (done.returncode, done.stdout) == (
    0,
    f'{ABOUT["summary"]}\n',
  ), done.stderr
  wanted = toy_embedding.expected(found, 5)
  assert wanted.std() > 0.01
  got = np.load(tmp_path / 'out.npy')
  np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_a_file_has_equal_bytes_and_no_path_of_this_machine():
  pytest.importorskip('flatbuffers', reason='pip install .[export]')
  found = toy_embedding.tiny('convnet')
  content = exchange.encode_jax(found, ABOUT)
  assert content == exchange.encode_jax(found, ABOUT)
  assert not re.findall(rb'/\w+/[\w/.-]+\.py', content)


@toy_embedding.every_network
def test_every_network_is_one_program_for_all_platforms(name):
  found = toy_embedding.tiny(name, flip=True)
  exported = exchange.lowered(found)
  assert exported.platforms == ('cpu', 'cuda', 'tpu')
  assert [str(a) for a in exported.in_avals][:1] == ['uint8[b,32,16,3]']
  assert str(exported.out_avals[0]).startswith('float32[b,')
  text = exported.mlir_module()
  calls = {line for line in text.splitlines() if 'custom_call' in line}
  assert all('shape_assertion' in line for line in calls), calls
  got = jax.jit(exported.call)(*toy_embedding.inputs(found, 2))
  np.testing.assert_allclose(
    got, toy_embedding.expected(found, 2), rtol=0, atol=1e-4
  )


def convolutions(text):
  return text.count('stablehlo.convolution'), text.count('dot_general')


def test_convolutions_are_those_of_the_platform_of_the_program():
  """On a CPU the 1x1 convolutions are products of matrices."""
  found = toy_embedding.tiny('resnet18')

  def counted(platform):
    made = export.export(jax.jit(found.call), platforms=[platform])(
      *found.inputs.values()
    )
    return convolutions(made.mlir_module())

  for platform in ('cuda', 'tpu'):
    assert counted(platform) == (20, 0)
  num, products = counted('cpu')
  assert num < 20 and products > 0


FIELDS = {'name': 'resnet18', 'width': 1 / 32}


def test_without_pytorch_the_line_says_what_to_install(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'torch', None)
  with pytest.raises(errors.ConfigError, match='pip install torch'):
    exchange.convert(tmp_path / 'a.pth', tmp_path / 'a.safetensors')
  assert not [*tmp_path.iterdir()]


def test_the_new_file_has_its_own_suffix(tmp_path):
  with pytest.raises(errors.ConfigError, match='no .safetensors file'):
    exchange.convert(tmp_path / 'a.pth', tmp_path / 'b.pth')


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
  return exchange.convert(source, out)


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
    exchange.convert(path, tmp_path / 'w.safetensors')
