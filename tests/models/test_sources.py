"""Weights of other programs, read and compared with PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch_backbones
import weight_files
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.deploy import conversion
from fedreid_jax.core import trees
from fedreid_jax.models import resnet, weights
from fedreid_jax.models.backbones import osnet, vit
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.weights import positions, sources


@pytest.fixture
def small(monkeypatch):
  for name, size in weight_files.SMALL.items():
    monkeypatch.setitem(vit.SIZES, name, size)


def before(made):
  """Zeros in place of the variables of a network, and a classifier."""
  shapes = torch_backbones.shapes(made.network, made.image)
  found = {n: np.zeros(x.shape, np.float32) for n, x in shapes.items()}
  return found | {'params/classifier/kernel': np.ones((4, 3), np.float32)}


def read(made, tmp_path, state=None):
  path = tmp_path / 'weights.safetensors'
  safetensors_numpy.save_file(state or made.state, path)
  return weights.load(str(path), before(made), made.image)


def assert_outputs_agree(made, tmp_path):
  loaded, names = read(made, tmp_path)
  assert {*loaded} - {*names} == {'params/classifier/kernel'}
  assert np.all(loaded['params/classifier/kernel'] == 1)

  @jax.jit
  def apply(leaves, images):
    variables = {n.replace('/backbone', '', 1): x for n, x in leaves.items()}
    variables = trees.unflatten(variables)
    return made.network.apply(variables, images, ForwardCtx(False))[0]

  images = jnp.asarray(weight_files.images(made.image))
  maps = apply({n: loaded[n] for n in names}, images)
  assert np.std(made.output) > 0.05
  np.testing.assert_allclose(maps, made.output, rtol=0, atol=1e-4)


QUICK = (*weight_files.TRANSFORMERS, 'fast-reid')
OTHERS = {
  'layers.0.blocks.0.attn.relative_position_bias_table': 'a Swin transformer',
  'stages.0.1.dwconv.weight': 'a ConvNeXt',
  'model.2.cv1.conv.weight': 'a detector',
  'model.layers.0.q_proj.lora_A.weight': 'matrices of LoRA',
}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in weight_files.KINDS
  ],
)
def test_networks_give_the_outputs_of_pytorch(name, small, tmp_path):
  assert_outputs_agree(weight_files.made(name), tmp_path)


@pytest.mark.parametrize('name', weight_files.KINDS)
def test_the_golden_outputs_are_those_of_pytorch(name, small):
  made = weight_files.made(name)
  shapes, output = weight_files.oracle(name, made.image)
  assert shapes == made.shapes
  np.testing.assert_allclose(output, made.output, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, network, image, fields',
  [
    ('timm', vit.ViT(vit.Options('s16')), (256, 128), {}),
    ('timm', vit.ViT(vit.Options('b16')), (256, 128), {'size': 'b16'}),
    ('dinov2', vit.ViT(vit.Options('b14', layer_scale=True)), (252, 126), {}),
    (
      'clip',
      vit.ViT(vit.Options('b16', pre_norm=True, quick_gelu=True)),
      (256, 128),
      {},
    ),
    (
      'transreid, jigsaw',
      vit.ViT(vit.Options('b16', stride=12)),
      (256, 128),
      {'size': 'b16'},
    ),
    ('fast-reid', resnet.ResNet('resnet50_ibn_a'), (64, 32), {'width': 1.0}),
    ('torchreid', osnet.OSNet(), (64, 32), {'width': 1.0}),
    ('torchreid, ain', osnet.OSNet(True), (64, 32), {'width': 1.0}),
  ],
)
def test_files_of_the_published_sizes(name, network, image, fields, tmp_path):
  shapes, output = weight_files.oracle(name, image, **fields)
  made = weight_files.Made(shapes, network, '', image, output)
  assert_outputs_agree(made, tmp_path)


@pytest.mark.parametrize('name', weight_files.KINDS)
def test_the_network_of_a_file_is_told(name, small):
  made = weight_files.made(name)
  names = sources.read(made.shapes, 'FILE')
  shapes = {n: made.shapes[full[0]] for n, full in names.tensors.items()}
  fields, _ = sources.network(names.source, shapes)
  assert sources.settings(fields) == made.settings


def changed(name, change):
  made = weight_files.made(name)
  state = dict(made.state)
  change(state)
  return made, state


def without(*names):
  return lambda state: [state.pop(n) for n in names]


def added(name, *shape):
  return lambda state: state.update({name: np.ones(shape, np.float32)})


def reshaped(name, *shape):
  def change(state):
    assert name in state
    state[name] = np.zeros(shape, np.float32)

  return change


@pytest.mark.parametrize(
  'name, change, message',
  [
    (
      'timm',
      without('blocks.1.mlp.fc1.bias'),
      r'no tensor blocks\.1\.mlp\.fc1\.bias',
    ),
    (
      'timm',
      added('fc_norm.weight', 32),
      r'the network has no fc_norm\.weight \[32\]',
    ),
    (
      'timm',
      reshaped('patch_embed.proj.weight', 32, 3, 14, 14),
      r'patch_embed\.proj\.weight is \[32, 3, 14, 14\], not \[32, 3, 16, 16\]',
    ),
    (
      'timm',
      reshaped('cls_token', 1, 1, 31),
      r'tensor cls_token is \[1, 1, 31\], not \[1, 1, 32\]',
    ),
    (
      'timm',
      reshaped('pos_embed', 1, 152, 32),
      'tensor pos_embed has 151 positions, not 8, and their grid is unknown',
    ),
    (
      'timm',
      added('reg_token', 1, 4, 32),
      r'the network has no reg_token \[1, 4, 32\]',
    ),
    ('timm', added('dist_token', 1, 1, 32), 'not distilled'),
    (
      'dinov2',
      added('register_tokens', 1, 4, 48),
      r'the network has no register_tokens \[1, 4, 48\] .*vit.registers=4',
    ),
    (
      'dinov2',
      reshaped('blocks.2.ls2.gamma', 1),
      r'blocks\.2\.ls2\.gamma is \[1\], not \[48\]',
    ),
    (
      'clip',
      reshaped('visual.transformer.resblocks.0.attn.in_proj_weight', 48, 48),
      r'resblocks\.0\.attn\.in_proj_weight is \[48, 48\], not \[144, 48\]',
    ),
    (
      'clip, transformers',
      without('vision_model.encoder.layers.1.self_attn.k_proj.bias'),
      r'no tensor blocks\.1\.attn\.k\.bias beside vision_model\.encoder',
    ),
    (
      'dinov2, transformers',
      reshaped('encoder.layer.0.attention.attention.value.weight', 48, 47),
      r'value\.weight is \[48, 48\] .* \+ \[48, 47\], not \[144, 48\]',
    ),
    (
      'transreid',
      reshaped('module.base.norm.weight', 31),
      r'module\.base\.norm\.weight is \[31\], not \[32\]',
    ),
    (
      'fast-reid',
      added('backbone.layer1.0.se.fc.0.weight', 4, 4),
      r'the network has no backbone\.layer1\.0\.se\.fc\.0\.weight \[4, 4\]',
    ),
    (
      'ibn_net',
      without('layer2.0.bn1.IN.weight'),
      r'no tensor layer2\.0\.bn1\.IN\.weight',
    ),
    (
      'ibn_net',
      lambda state: state.update({'module.bn1.bias': np.zeros(4, np.float32)}),
      r'two tensors are bn1\.bias, bn1\.bias and module\.bn1\.bias',
    ),
  ],
)
def test_a_wrong_file_is_one_line(name, change, message, small, tmp_path):
  made, state = changed(name, change)
  with pytest.raises(errors.IntegrityError, match=message) as info:
    read(made, tmp_path, state)
  line = info.value.line()
  assert '\n' not in line and line.count(' — ') == 2
  assert 'weights.safetensors' in line


@pytest.mark.parametrize(
  'name, other',
  [
    ('timm', 'dinov2'),
    ('clip', 'timm'),
    ('ibn_net', 'torchvision'),
    ('torchreid', 'timm'),
    ('timm', 'torchvision'),
  ],
)
def test_the_line_says_of_which_network_a_file_is(name, other, small, tmp_path):
  made, wanted = weight_files.made(name), weight_files.made(other)
  with pytest.raises(errors.IntegrityError) as info:
    read(wanted, tmp_path, made.state)
  assert info.value.fix.endswith(f': set {made.settings}')


def test_another_size_is_described(small, tmp_path):
  made = weight_files.made('timm')
  state = {
    n: np.zeros([n if n != 32 else 40 for n in x.shape], np.float32)
    for n, x in made.state.items()
  }
  with pytest.raises(errors.IntegrityError) as info:
    read(made, tmp_path, state)
  assert info.value.fix == (
    "the file is of timm's transformer, a transformer of 3 blocks with 40 "
    'features and patches of 16 pixels'
  )


def test_a_file_of_no_known_program(tmp_path, small):
  made = weight_files.made('timm')
  with pytest.raises(errors.IntegrityError, match='no tensors of a known'):
    read(made, tmp_path, {'encoder.layer.0.weight': np.ones(3, np.float32)})


@pytest.mark.parametrize('name', OTHERS)
def test_what_another_file_seems_to_be(name):
  with pytest.raises(errors.IntegrityError, match=OTHERS[name]) as caught:
    sources.read([name], 'FILE')
  assert '\n' not in caught.value.line()


@pytest.mark.parametrize(
  'part', ['w1.weight', 'w12.weight', 'gate_proj.weight']
)
def test_gated_perceptrons_are_no_network_of_the_package(part):
  shapes = {
    'patch_embed.proj.weight': (384, 3, 16, 16),
    'blocks.11.norm1.weight': (384,),
    f'blocks.0.mlp.{part}': (1536, 384),
  }
  fields, described = sources.network('dinov3', shapes)
  assert not fields and 'gated perceptrons' in described


@pytest.mark.parametrize(
  'old, new',
  [
    ((14, 14), (16, 8)),
    ((37, 37), (18, 9)),
    ((16, 8), (21, 10)),
    ((5, 7), (5, 3)),
    ((4, 4), (37, 37)),
  ],
)
@pytest.mark.parametrize(
  'how',
  [
    positions.Resize(),
    positions.Resize(antialias=False),
    positions.Resize(antialias=False, offset=0.1),
  ],
)
def test_positions_are_resized_as_pytorch_does(old, new, how):
  torch = pytest.importorskip('torch')
  table = np.random.default_rng(0).normal(size=(old[0] * old[1], 6))
  table = table.astype(np.float32)
  maps = torch.from_numpy(table).reshape(1, *old, 6).permute(0, 3, 1, 2)
  pairs = zip(new, old, strict=True)
  size = (
    {'scale_factor': tuple((n + how.offset) / o for n, o in pairs)}
    if how.offset
    else {'size': new}
  )
  wanted = torch.nn.functional.interpolate(
    maps,
    mode='bicubic',
    antialias=how.antialias,
    align_corners=False,
    **size,
  )
  wanted = wanted.permute(0, 2, 3, 1).reshape(-1, 6).numpy()
  got = positions.resize(table, old, new, how)
  np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)


def test_positions_of_the_same_grid_keep_their_bits():
  table = np.random.default_rng(0).normal(size=(128, 6)).astype(np.float32)
  assert positions.resize(table, (16, 8), (16, 8), positions.Resize()) is table


@pytest.mark.parametrize(
  'num, wanted, square, grid',
  [
    (196, (16, 8), True, (14, 14)),
    (1369, (18, 9), True, (37, 37)),
    (128, (21, 10), False, (16, 8)),
    (210, (16, 8), False, (21, 10)),
    (192, (16, 8), False, (24, 8)),
    (196, (28, 7), True, (14, 14)),
    (196, (28, 7), False, (28, 7)),
    (15, (5, 3), True, (5, 3)),
    (151, (16, 8), True, None),
  ],
)
def test_grids_of_files(num, wanted, square, grid):
  assert positions.guess(num, wanted, 16, square) == grid


@pytest.mark.parametrize(
  'image, patch, num, grid',
  [
    ((256, 128), 16, 128, (16, 8)),
    ((256, 128), 16, 210, (21, 10)),
    ((64, 32), 8, 50, (10, 5)),
    ((252, 126), 14, 162, (18, 9)),
  ],
)
def test_the_grid_of_a_network_follows_from_its_images(image, patch, num, grid):
  assert positions.grid(image, patch, num) == grid


def test_no_grid_has_this_number():
  with pytest.raises(ValueError, match='no grid of 127'):
    positions.grid((256, 128), 16, 127)


PREFIXES = (
  *('module.module.', 'model.', 'net.', '_orig_mod.', 'encoder_q.'),
  *('teacher.backbone.', 'module.model.'),
)


@pytest.mark.parametrize('prefix', PREFIXES)
@pytest.mark.parametrize('name', weight_files.KINDS)
def test_a_prefix_of_all_names_is_removed(name, prefix):
  made = weight_files.made(name)
  plain = sources.read(made.shapes, 'here')
  found = sources.read([prefix + n for n in made.shapes], 'here')
  assert found.source == plain.source
  assert found.tensors == {
    n: tuple(full and prefix + full for full in parts)
    for n, parts in plain.tensors.items()
  }
  removed = ''.join(found.stripped)
  assert removed.startswith(prefix) and not plain.shared
  assert found.left_out == [prefix + n for n in plain.left_out]


@pytest.mark.parametrize('name', weight_files.KINDS)
def test_a_network_beside_other_tensors(name):
  plain = sources.read(weight_files.made(name).shapes, 'here')
  own = [f'model.{n}' for n in weight_files.made(name).shapes]
  found = sources.read([*own, 'loss_fn.centers', 'queue'], 'here')
  assert (found.source, [*found.tensors]) == (plain.source, [*plain.tensors])
  assert found.left_out[-2:] == ['loss_fn.centers', 'queue']


@pytest.mark.parametrize(
  'kind, one, other',
  [
    ('torchvision', 'module.encoder_k.', 'module.encoder_q.'),
    ('timm', 'student.', 'teacher.'),
  ],
)
def test_two_networks_are_named(kind, one, other):
  inner = '' if kind == 'torchvision' else 'backbone.'
  names = [
    f'{prefix}{inner}{name}'
    for prefix in (one, other)
    for name in weight_files.made(kind).shapes
  ]
  with pytest.raises(errors.IntegrityError) as info:
    sources.read([*names, 'module.queue'], 'here')
  assert info.value.what == f'has 2 networks, {one} and {other}'


def test_blocks_are_no_network():
  names = [f'layers.{k}.blocks.0.attn.qkv.weight' for k in range(2)]
  with pytest.raises(errors.IntegrityError, match='no tensors of a known'):
    sources.read([*names, 'patch_embed.norm.weight'], 'here')


def test_negative_variances_are_refused(tmp_path):
  made = weight_files.made('fast-reid')
  name = 'backbone.layer1.0.bn2.running_var'
  state = made.state | {name: -made.state[name]}
  with pytest.raises(errors.IntegrityError, match='has negative variances'):
    read(made, tmp_path, state)
  np.savez(tmp_path / 'w.npz', **state)
  with pytest.raises(errors.IntegrityError, match=f'tensor {name} has negat'):
    conversion.convert(tmp_path / 'w.npz', tmp_path / 'out.safetensors')


def test_a_removed_prefix_is_said(tmp_path):
  made = weight_files.made('fast-reid')
  np.savez(
    tmp_path / 'w.npz', **{f'model.{n}': x for n, x in made.state.items()}
  )
  found = conversion.convert(tmp_path / 'w.npz', tmp_path / 'w.safetensors')
  said = f"removed the prefix 'model.' of {found.tensors} names"
  assert said in found.lines()
  assert found.pixels.note == 'of the file'
