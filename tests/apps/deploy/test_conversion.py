"""`convert`: files of other programs as weights for `model.pretrained`."""

import sys
import types

import jax
import numpy as np
import pytest
import torch_backbones
import toy
import toy_embedding
import weight_files
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.deploy import conversion
from fedreid_jax.models import networks, weights
from fedreid_jax.models.backbones import vit
from fedreid_jax.models.weights import pytorch, sources

FIELDS = {'name': 'resnet18', 'width': 1 / 32}


def test_without_pytorch_the_line_says_what_to_install(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'torch', None)
  with pytest.raises(errors.ConfigError, match="pip install 'torch>=2.6'"):
    conversion.convert(tmp_path / 'a.pth', tmp_path / 'a.safetensors')
  assert not [*tmp_path.iterdir()]


def test_the_new_file_has_its_own_suffix(tmp_path):
  with pytest.raises(errors.ConfigError, match='no .safetensors file'):
    conversion.convert(tmp_path / 'a.pth', tmp_path / 'b.pth')


def test_an_old_pytorch_is_not_trusted(monkeypatch, tmp_path):
  old = types.SimpleNamespace(__version__='2.5.1+cpu')
  monkeypatch.setitem(sys.modules, 'torch', old)
  with pytest.raises(errors.ConfigError, match='2.5.1.*torch>=2.6'):
    conversion.convert(tmp_path / 'a.pth', tmp_path / 'a.safetensors')


def test_a_tensor_that_repeats_its_values_is_no_bomb(tmp_path):
  class Tensor:
    """The size of a tensor that `expand` made of one value."""

    numel = staticmethod(lambda: 10**12)
    element_size = staticmethod(lambda: 4)

  path = tmp_path / 'a.pth'
  path.write_bytes(b'x' * 100)
  torch = types.SimpleNamespace(Tensor=Tensor)
  with pytest.raises(ValueError, match='unpacks to more'):
    conversion._tensors({'model': {'a': Tensor()}}, path, torch)


@pytest.fixture
def torch():
  return pytest.importorskip('torch')


@pytest.fixture(scope='module')
def variables():
  config = toy.replaced(toy.toy_config().model, FIELDS)
  model = networks.wrap(networks.build(config, 3), (32, 16, 3))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return toy_embedding.random_variables(shapes)


@pytest.fixture
def state(torch, variables):
  """The state of a ResNet, without a classifier."""
  leaves = {n: x for n, x in variables.items() if '/backbone/' in n}
  return {n: torch.from_numpy(x) for n, x in pytorch.tensors(leaves).items()}


def convert(torch, saved, tmp_path):
  source, out = tmp_path / 'w.pth', tmp_path / 'w.safetensors'
  torch.save(saved, source)
  return conversion.convert(source, out)


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
  assert found.fields['model.name'] == 'resnet18'
  assert found.source == 'torchvision' and found.key == 'state_dict'
  assert found.tensors == len(state)
  assert found.stripped == dict.fromkeys(('module.', 'backbone.'), len(state))
  assert found.converted == {'float16': 1, 'bfloat16': 1}
  assert found.left_out == ['module.classifier.weight']
  text = '\n'.join(found.lines())
  for said in (
    f'wrote {tmp_path}/w.safetensors',
    f"removed the prefix 'backbone.' of {len(state)} names",
    'converted 1 tensor of float16 to float32',
    'left out 1 that the backbone has not: module.classifier.weight',
    "torchvision's ResNet: 100 tensors, model.name='resnet18',model.width=",
    'trained with data.mean=(0.485,0.456,0.406),data.std=',
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
    (another, 'no tensors of a known network, but blocks.0'),
    (twice, r'two tensors are conv1\.weight, conv1\.weight and module\.'),
    (infinite, 'bn1.bias has values that are not finite'),
    (deeper, r'another network, a ResNet, with \(2, 2, 3, 2\) blocks'),
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
    conversion.convert(path, tmp_path / 'w.safetensors')


@pytest.fixture
def made(monkeypatch, request):
  for name, size in weight_files.SMALL.items():
    monkeypatch.setitem(vit.SIZES, name, size)
  return weight_files.made(request.param)


@pytest.mark.parametrize(
  'made, source_name',
  [
    *((name, name) for name in ('timm', 'dinov2', 'clip', 'fast-reid')),
    ('transreid, jigsaw', 'transreid'),
    ('timm, registers', 'timm'),
    ('dinov3, transformers', 'dinov3, transformers'),
    ('torchreid', 'torchreid'),
    ('ibn_net', 'torchvision'),
  ],
  indirect=['made'],
)
@pytest.mark.parametrize('suffix', ['.pth', '.npz'])
def test_a_converted_file_is_read_as_the_original(
  made, source_name, suffix, tmp_path
):
  original = tmp_path / 'original.safetensors'
  safetensors_numpy.save_file(made.state, original)
  source, out = tmp_path / f'w{suffix}', tmp_path / 'w.safetensors'
  if suffix == '.pth':
    torch = pytest.importorskip('torch')
    state = {n: torch.from_numpy(x) for n, x in made.state.items()}
    torch.save({'model': state, 'epoch': 3}, source)
  else:
    np.savez(source, **made.state)
  found = conversion.convert(source, out)
  assert found.source == source_name
  assert found.key == ('model' if suffix == '.pth' else '')
  assert not {*weights.card(out)} - {'form', 'imported', 'normalisation'}
  shapes = torch_backbones.shapes(made.network, made.image)
  before = {n: np.zeros(x.shape, np.float32) for n, x in shapes.items()}
  first, names = weights.load(str(original), before, made.image)
  second, same = weights.load(str(out), before, made.image)
  assert names == same and {*names} == {*before}
  for name in names:
    np.testing.assert_array_equal(first[name], second[name])
  command = found.command()
  for name, value in found.fields.items():
    assert f'--config.{name}={value}' in command
  # Each tensor is used, named as left out, or a counter of batches.
  used = {n for n in made.state if not n.endswith('num_batches_tracked')}
  joined = sources.read(made.state, 'here').tensors
  parts = [n for names in joined.values() for n in names if n]
  assert found.tensors == len(joined)
  assert len(parts) + len(found.left_out) == len(used)


@pytest.mark.parametrize(
  'made, line, flag',
  [
    (
      'clip',
      'weights that OpenCLIP trained have GELU: vit.quick_gelu=False',
      '--config.data.mean=(0.48145466,0.4578275,0.40821073)',
    ),
    (
      'fast-reid',
      'trained with data.mean=(0.485,0.456,0.406),'
      'data.std=(0.229,0.224,0.225) (of the file)',
      '--config.data.std=(0.229,0.224,0.225)',
    ),
    (
      'timm',
      'trained with data.mean=(0.5,0.5,0.5),data.std=(0.5,0.5,0.5) (of augreg '
      'weights; those of DeiT and DINO have data.mean=(0.485,0.456,0.406) and '
      'data.std=(0.229,0.224,0.225))',
      '--config.vit.size=s16',
    ),
    (
      'transreid',
      "removed the prefix 'base.' of 42 names",
      '--config.data.mean=(0.5,0.5,0.5)',
    ),
  ],
  indirect=['made'],
)
def test_the_normalisation_of_pixels_is_said(made, line, flag, tmp_path):
  source = tmp_path / 'w.npz'
  np.savez(source, **made.state)
  found = conversion.convert(source, tmp_path / 'w.safetensors')
  assert line in found.lines()
  assert flag in found.command().replace("'", '')


@pytest.mark.parametrize('made', ['timm'], indirect=True)
def test_half_precision_in_a_file_of_safetensors(made, tmp_path):
  half = {n: x.astype(np.float16) for n, x in made.state.items()}
  source, out = tmp_path / 'w.safetensors', tmp_path / 'new.safetensors'
  safetensors_numpy.save_file(half, source)
  with pytest.raises(errors.IntegrityError, match='fedreid import-weights'):
    before = torch_backbones.shapes(made.network, made.image)
    weights.load(str(source), before, made.image)
  found = conversion.convert(source, out)
  assert found.converted == {'float16': found.tensors}


def test_a_program_of_torchscript_is_refused(torch, tmp_path):
  path = tmp_path / 'ViT-B-16.pt'

  class Net(torch.nn.Module):
    def forward(self, x):
      return x

  with pytest.warns(DeprecationWarning):
    torch.jit.script(Net()).save(str(path))
  with pytest.raises(errors.IntegrityError, match='TorchScript') as info:
    conversion.convert(path, tmp_path / 'w.safetensors')
  assert 'torch.jit.load' in info.value.fix


def test_another_transformer_is_described(torch, tmp_path):
  source = tmp_path / 'w.npz'
  kernel = np.zeros((1024, 3, 14, 14), np.float32)
  np.savez(source, **{'patch_embed.proj.weight': kernel})
  with pytest.raises(errors.IntegrityError, match='another network') as info:
    conversion.convert(source, tmp_path / 'w.safetensors')
  assert 'a transformer of 0 blocks with 1024 features' in info.value.what
