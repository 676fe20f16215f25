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
import torch_backbones
import toy
import toy_embedding
from jax import export
from safetensors import numpy as safetensors_numpy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.apps.deploy import conversion, embedding, exchange
from fedreid_jax.models import networks, weights
from fedreid_jax.models.backbones import osnet, vit
from fedreid_jax.models.weights import positions, pytorch

ABOUT = {'summary': 'weights', 'model': {'name': 'resnet18'}, 'world_seed': 3}
# `state_dict()` of the networks of torchvision 0.28: shapes by name.
GOLDEN = Path(__file__).parents[2] / 'golden' / 'torchvision_resnets.json.gz'
TORCHVISION = json.loads(gzip.decompress(GOLDEN.read_bytes()))['networks']


@pytest.mark.parametrize('name', TORCHVISION)
def test_names_and_shapes_are_those_of_torchvision(name):
  config = toy.replaced(
    toy.toy_config().model, {'name': name, 'width': 1.0, 'last_stride': 2}
  )
  model = networks.wrap(networks.build(config, 3), (64, 32, 3))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  leaves = {
    n: np.broadcast_to(np.float32(0), x.shape)
    for n, x in shapes.items()
    if '/backbone/' in n
  }
  found = {n: [*x.shape] for n, x in pytorch.tensors(leaves).items()}
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
    ({'name': 'resnet18', 'norm': 'group'}, 'fedreid_jax'),
    ({'name': 'mobilenet_v2', 'norm': 'group', 'width': 0.1}, 'fedreid_jax'),
    ({'name': 'resnet50_ibn_a', 'neck': 'bnneck'}, 'torchvision'),
    ({'name': 'osnet', 'options': {'width': 0.125}}, 'torchreid'),
    ({'name': 'vit', 'neck': 'bnneck'}, 'timm'),
    ({'name': 'vit', 'options': {'stride': 6, 'layer_scale': True}}, 'timm'),
    ({'name': 'vit', 'options': {'prompts': 2}}, 'fedreid_jax'),
  ],
)
@pytest.mark.usefixtures('short')
def test_the_package_reads_its_own_files(fields, form, tmp_path):
  found = toy_embedding.make(**toy_embedding.TINY | fields)
  path = tmp_path / 'w.safetensors'
  path.write_bytes(exchange.encode_safetensors(found, ABOUT))
  assert weights.card(path) == ABOUT | {'form': form}
  assert exchange.form(found) == form
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


@pytest.mark.slow
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
  tensors = pytorch.tensors(
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


@pytest.mark.parametrize(
  ('fields', 'options'),
  [
    ({'name': 'vit'}, {}),
    ({'name': 'vit'}, {'pre_norm': True, 'quick_gelu': True}),
    *(
      pytest.param(fields, options, marks=pytest.mark.slow)
      for fields, options in (
        ({'name': 'osnet'}, {'width': 0.125}),
        ({'name': 'osnet'}, {'width': 0.125, 'kind': 'ain'}),
        ({'name': 'resnet50_ibn_a', 'last_stride': 2}, {}),
      )
    ),
  ],
)
def test_modules_with_names_of_other_programs_compute_the_same(
  fields, options, tmp_path
):
  torch = pytest.importorskip('torch')
  found = toy_embedding.make(
    width=1 / 16, neck='none', options=options, **fields
  )
  if fields['name'] == 'vit':
    module = torch_backbones.vit(vit.Options(**options), 9)
  elif fields['name'] == 'osnet':
    channels = [c // 8 for c in osnet.CHANNELS]
    module = torch_backbones.osnet(options.get('kind') == 'ain', channels)
  else:
    module = torch_backbones.resnet(fields['name'], 1 / 16)
  source, out = tmp_path / 'w.pth', tmp_path / 'w.safetensors'
  source.write_bytes(exchange.encode_pth(found, ABOUT))
  converted = conversion.convert(source, out)
  assert converted.fields['model.name'] == fields['name']
  zeros = {n: np.zeros_like(x) for n, x in found.variables.items()}
  loaded, names = weights.load(str(out), zeros, (32, 16))
  assert {*names} == {*found.variables}
  for name in names:
    np.testing.assert_array_equal(loaded[name], found.variables[name])
  state = torch.load(source, weights_only=True)['state_dict']
  result = module.eval().load_state_dict(state, strict=False)
  assert not result.unexpected_keys
  assert all(n.endswith('num_batches_tracked') for n in result.missing_keys)
  x = torch.from_numpy(toy_embedding.pixels(3)).permute(0, 3, 1, 2) / 255
  mean, std = (
    torch.tensor(v)[:, None, None]
    for v in (toy_embedding.MEAN, toy_embedding.STD)
  )
  with torch.no_grad():
    got = module((x - mean) / std)
  got = got.numpy() if got.ndim == 2 else got.mean((2, 3)).numpy()
  wanted = toy_embedding.expected(found, 3)
  assert wanted.std() > 0.01
  np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


def test_positions_of_a_run_fit_images_of_another_size(tmp_path):
  found = toy_embedding.make(name='vit', options={'stride': 6})
  path = tmp_path / 'w.safetensors'
  saved = ABOUT | {'preprocessing': {'height': 32, 'width': 16}}
  path.write_bytes(exchange.encode_safetensors(found, saved))
  name = 'params/backbone/pos_embed'
  table = found.variables[name]  # of 5 by 2 patches
  before = {**found.variables, name: np.zeros((1, 1 + 9 * 4, 64), np.float32)}
  loaded, _ = weights.load(str(path), before, (56, 28))
  assert loaded[name].shape == (1, 37, 64)
  np.testing.assert_array_equal(loaded[name][:, 0], table[:, 0])
  wanted = positions.resize(table[0, 1:], (5, 2), (9, 4), positions.Resize())
  np.testing.assert_array_equal(loaded[name][0, 1:], wanted)
  same, _ = weights.load(str(path), found.variables, (32, 16))
  np.testing.assert_array_equal(same[name], table)
  with pytest.raises(errors.IntegrityError, match='10 positions, not 36'):
    weights.load(str(path), before)


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


@pytest.mark.slow
def test_a_process_with_jax_only_computes_the_same(tmp_path, short):
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


@pytest.mark.usefixtures('short')
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
  # The ONNX file of every network shows that the program computes the same.
  if name in (*toy_embedding.QUICK, 'agw'):
    got = jax.jit(exported.call)(*toy_embedding.inputs(found, 2))
    np.testing.assert_allclose(
      got, toy_embedding.expected(found, 2), rtol=0, atol=1e-4
    )


def convolutions(text):
  return text.count('stablehlo.convolution'), text.count('dot_general')


def test_convolutions_are_those_of_the_platform_of_the_program(short):
  """On a CPU the 1x1 convolutions are products of matrices."""
  found = toy_embedding.tiny('resnet18')

  def counted(platform):
    made = export.export(jax.jit(found.call), platforms=[platform])(
      *found.inputs.values()
    )
    return convolutions(made.mlir_module())

  for platform in ('cuda', 'tpu'):
    assert counted(platform) == (12, 0)
  num, products = counted('cpu')
  assert num < 12 and products > 0


@pytest.mark.parametrize('name', ['resnet18', 'convnet, mapping'])
def test_an_exported_file_is_used_without_its_run(name, tmp_path):
  found = toy_embedding.tiny(name, flip=True)
  path = tmp_path / 'w.safetensors'
  about = embedding.describe(found)
  path.write_bytes(exchange.encode_safetensors(found, about))
  pixels = toy_embedding.pixels(3)
  wanted = found.evaluate(pixels, np.zeros(3, np.int32))
  got = fr.load(f'weights:{path}').embed(pixels)
  np.testing.assert_allclose(got, wanted, atol=1e-4)
