"""Files of weights in the layouts of other programs, with random values.

`made` returns a file and the outputs that PyTorch computes from it, which
`tests/golden/programs.json.gz` has. `oracle` computes them with PyTorch, and
`PYTHONPATH=.:tests python tests/weight_files.py` writes the golden file.
"""

import functools
import gzip
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch_backbones

from fedreid_jax.models import resnet
from fedreid_jax.models.backbones import mobilenet_v2, osnet, vit

GOLDEN = Path(__file__).parent / 'golden' / 'programs.json.gz'
# Small transformers under the names of the published ones.
SMALL = {
  's16': vit.Size(32, 3, 2),
  'b16': vit.Size(48, 3, 3),
  's14': vit.Size(32, 3, 2, 14),
  'b14': vit.Size(48, 3, 3, 14),
}
# The variance of CLIP's tokens is small, before and after the first
# normalisation, so that the epsilon of each normalisation counts.
FAINT = (
  *('class_embedding', 'visual.positional_embedding', 'visual.conv1.weight'),
  *('visual.ln_pre.weight', 'visual.ln_pre.bias', 'position_embedding.weight'),
  *('patch_embedding.weight', 'pre_layrnorm.weight', 'pre_layrnorm.bias'),
)


class Made(NamedTuple):
  """A file, and the outputs of its network for `images`."""

  shapes: dict[str, tuple[int, ...]]  # by name
  network: Any  # Flax module
  settings: str  # fields of the network
  image: tuple[int, int]  # height and width
  output: np.ndarray

  @property
  def state(self):
    """Tensors by name."""
    return {n: tensor(n, shape) for n, shape in self.shapes.items()}


PIXELS = {
  'pixel_mean': [123.675, 116.28, 103.53],
  'pixel_std': [58.395, 57.12, 57.375],
}


def tensor(name, shape):
  """Returns the values of a tensor of a file."""
  if name in PIXELS:
    return np.array(PIXELS[name], np.float32).reshape(shape)
  values = torch_backbones.draw(name, shape)
  return values * np.float32(0.03) if name.endswith(FAINT) else values


def images(size):
  """Returns two images."""
  drawn = np.random.default_rng(0).normal(size=(2, *size, 3))
  return drawn.astype(np.float32)


class Kind(NamedTuple):
  """A network of the package for a file of a program."""

  network: Callable[[], Any]
  settings: str
  image: tuple[int, int] = (64, 32)


REGISTERS = vit.Options('s14', layer_scale=True, registers=4)
ROTATED = vit.Options('s16', layer_scale=True, registers=4, rope=True)


def _clip_options(size):
  return vit.Options(size, pre_norm=True, quick_gelu=True)


_REGISTERS = Kind(
  lambda: vit.ViT(REGISTERS),
  "model.name='vit',vit.size='s14',vit.layer_scale=True,vit.registers=4",
  (56, 28),
)
_ROTATED = Kind(
  lambda: vit.ViT(ROTATED),
  "model.name='vit',vit.size='s16',vit.layer_scale=True,vit.registers=4,"
  'vit.rope=True',
)
KINDS = {
  'timm': Kind(
    lambda: vit.ViT(vit.Options('s16')), "model.name='vit',vit.size='s16'"
  ),
  'dinov2': Kind(
    lambda: vit.ViT(vit.Options('b14', layer_scale=True)),
    "model.name='vit',vit.size='b14',vit.layer_scale=True",
    (56, 28),
  ),
  'clip': Kind(
    lambda: vit.ViT(_clip_options('b16')),
    "model.name='vit',vit.size='b16',vit.pre_norm=True,vit.quick_gelu=True",
  ),
  'clip, transformers': Kind(
    lambda: vit.ViT(_clip_options('b16')),
    "model.name='vit',vit.size='b16',vit.pre_norm=True,vit.quick_gelu=True",
  ),
  'dinov2, transformers': Kind(
    lambda: vit.ViT(vit.Options('b14', layer_scale=True)),
    "model.name='vit',vit.size='b14',vit.layer_scale=True",
    (56, 28),
  ),
  'timm, registers': _REGISTERS,
  'dinov2 with registers': _REGISTERS,
  'dinov2 with registers, transformers': _REGISTERS,
  'dinov3': _ROTATED,
  'dinov3, transformers': _ROTATED,
  'transreid': Kind(
    lambda: vit.ViT(vit.Options('s16', stride=12)),
    "model.name='vit',vit.size='s16'",
  ),
  'transreid, jigsaw': Kind(
    lambda: vit.ViT(vit.Options('s16', stride=12)),
    "model.name='vit',vit.size='s16'",
  ),
  'torchvision': Kind(
    lambda: resnet.ResNet('resnet50', 1 / 16),
    "model.name='resnet50',model.width=0.0625",
  ),
  'mobilenet_v2': Kind(
    lambda: mobilenet_v2.MobileNetV2(0.1),
    "model.name='mobilenet_v2',model.width=0.1",
  ),
  'mobilenet_v2, flat': Kind(
    lambda: mobilenet_v2.MobileNetV2(0.1),
    "model.name='mobilenet_v2',model.width=0.1",
  ),
  'ibn_net': Kind(
    lambda: resnet.ResNet('resnet50_ibn_a', 1 / 16),
    "model.name='resnet50_ibn_a',model.width=0.0625",
  ),
  'fast-reid': Kind(
    lambda: resnet.ResNet('resnet50_ibn_a', 1 / 16),
    "model.name='resnet50_ibn_a',model.width=0.0625",
  ),
  'torchreid': Kind(
    lambda: osnet.OSNet(False, 0.125), "model.name='osnet',osnet.width=0.125"
  ),
  'torchreid, ain': Kind(
    lambda: osnet.OSNet(True, 0.125),
    "model.name='osnet',osnet.kind='ain',osnet.width=0.125",
  ),
}
TRANSFORMERS = [
  name for name, kind in KINDS.items() if isinstance(kind.network(), vit.ViT)
]


def made(name):
  """Returns a file of `KINDS`; transformers need the sizes of `SMALL`."""
  saved = json.loads(gzip.decompress(GOLDEN.read_bytes()))[name]
  kind = KINDS[name]
  shapes = {n: tuple(shape) for n, shape in saved['shapes'].items()}
  output = np.array(saved['output'], np.float32)
  return Made(shapes, kind.network(), kind.settings, kind.image, output)


# Each of the following returns a module of PyTorch with the values of a file,
# the tensors of the file, and those that are of no backbone.


def _filled(module, file_name=str):
  torch = pytest.importorskip('torch')
  module.eval()
  shapes, own = {}, {}
  for name, value in module.state_dict().items():
    # A tensor of a module may be several of the file, one behind the other.
    full = file_name(name)
    names = [full] if isinstance(full, str) else full
    rows, *rest = value.shape or (1,)
    shape = (rows // len(names), *rest) if value.shape else ()
    parts = [tensor(n, shape) for n in names]
    own[name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
    shapes |= dict.fromkeys(names, shape)
  module.load_state_dict({n: torch.from_numpy(x) for n, x in own.items()})
  return shapes


def _set_positions(module, grid, new, antialias=True, offset=0.0):
  """Resizes the positions of a transformer as published code does."""
  torch = pytest.importorskip('torch')
  table = module.pos_embed.detach()
  square = table[:, 1:].reshape(1, *grid, -1).permute(0, 3, 1, 2)
  if offset:
    scale = [(n + offset) / old for n, old in zip(new, grid, strict=True)]
    size = {'scale_factor': tuple(scale)}
  else:
    size = {'size': new}
  resized = torch.nn.functional.interpolate(
    square, mode='bicubic', antialias=antialias, align_corners=False, **size
  )
  flat = resized.permute(0, 2, 3, 1).flatten(1, 2)
  module.pos_embed = torch.nn.Parameter(torch.cat([table[:, :1], flat], 1))


def _grid(image, patch, stride):
  return tuple((n - patch) // stride + 1 for n in image)


def timm(size='s16', image=(64, 32)):
  """A transformer of timm, trained on images of 224 by 224 pixels."""
  module = torch_backbones.vit(vit.Options(size), 197)
  shapes = _filled(module)
  _set_positions(module, (14, 14), _grid(image, 16, 16))
  width = vit.SIZES[size].width
  return module, shapes | {'head.weight': (10, width), 'head.bias': (10,)}


def dinov2(size='b14', image=(56, 28), file_name=str, offset=0.1):
  """DINOv2, trained on images of 518 by 518 pixels."""
  options = vit.Options(size, layer_scale=True)
  module = torch_backbones.vit(options, 37 * 37 + 1)
  shapes = _filled(module, file_name)
  _set_positions(module, (37, 37), _grid(image, 14, 14), False, offset)
  return module, shapes | {'mask_token': (1, vit.SIZES[size].width)}


def dinov2_with_registers(image=(56, 28), file_name=None, options=REGISTERS):
  """DINOv2 with registers, trained on images of 518 by 518 pixels."""
  module = torch_backbones.vit(options, 37 * 37 + 1)
  shapes = _filled(
    module, file_name or (lambda n: n.replace('reg_token', 'register_tokens'))
  )
  _set_positions(module, (37, 37), _grid(image, 14, 14))
  return module, shapes | {'mask_token': (1, vit.SIZES[options.size].width)}


def timm_with_registers(**fields):
  """The same in timm, which adds the first position to the class token."""
  torch = pytest.importorskip('torch')
  module, shapes = dinov2_with_registers(file_name=str, **fields)
  del shapes['mask_token']
  first = torch.zeros_like(module.pos_embed[:, :1])
  shapes['pos_embed'] = (1, 37 * 37, first.shape[-1])
  values = torch.from_numpy(tensor('pos_embed', shapes['pos_embed']))
  module.pos_embed = torch.nn.Parameter(torch.cat([first, values], 1))
  image = fields.get('image', (56, 28))
  _set_positions(module, (37, 37), _grid(image, 14, 14))
  return module, shapes


def dinov3(image=(64, 32), file_name=None, options=ROTATED):
  """DINOv3 with what its training alone uses."""
  module = torch_backbones.vit(options, 0)
  shapes = _filled(
    module, file_name or (lambda n: n.replace('reg_token', 'storage_tokens'))
  )
  size = vit.SIZES[options.size]
  more = {
    'mask_token': (1, size.width),
    'rope_embed.periods': (size.width // size.heads // 4,),
    'local_cls_norm.weight': (size.width,),
    'blocks.0.attn.qkv.bias_mask': (3 * size.width,),
  }
  return module, shapes | (more if file_name is None else {})


def dinov3_of_transformers(**fields):
  """DINOv3 with the names of transformers, whose keys have no bias."""
  rules = (
    ('patch_embed.proj', 'embeddings.patch_embeddings'),
    ('reg_token', 'embeddings.register_tokens'),
    ('cls_token', 'embeddings.cls_token'),
    ('attn.qkv', 'attention.{}_proj'),
    ('attn.proj', 'attention.o_proj'),
    ('mlp.fc1', 'mlp.up_proj'),
    ('mlp.fc2', 'mlp.down_proj'),
    ('ls1.gamma', 'layer_scale1.lambda1'),
    ('ls2.gamma', 'layer_scale2.lambda1'),
    ('blocks.', 'layer.'),
  )
  module, shapes = dinov3(
    file_name=lambda n: _renamed(n, rules, 'qkv'), **fields
  )
  kept = {n: x for n, x in shapes.items() if not n.endswith('k_proj.bias')}
  width = vit.SIZES[fields.get('options', ROTATED).size].width
  return module, kept | {'embeddings.mask_token': (1, 1, width)}


def _renamed(name, rules, parts):
  """A name of transformers, or three of queries, keys and values."""
  for old, new in rules:
    name = name.replace(old, new)
  return [name.format(x) for x in parts] if '{}' in name else name


def dinov2_of_transformers(made=dinov2, **fields):
  """DINOv2 with the names of transformers, whose resizing has no offset."""
  if made is dinov2:
    fields |= {'offset': 0.0}
  rules = (
    ('reg_token', 'embeddings.register_tokens'),
    ('patch_embed.proj', 'embeddings.patch_embeddings.projection'),
    ('pos_embed', 'embeddings.position_embeddings'),
    ('cls_token', 'embeddings.cls_token'),
    ('attn.qkv', 'attention.attention.{}'),
    ('attn.proj', 'attention.output.dense'),
    ('ls1.gamma', 'layer_scale1.lambda1'),
    ('ls2.gamma', 'layer_scale2.lambda1'),
    ('blocks.', 'encoder.layer.'),
  )

  def file_name(name):
    if name.startswith('norm.'):
      name = f'layer{name}'
    return _renamed(name, rules, ('query', 'key', 'value'))

  module, shapes = made(file_name=file_name, **fields)
  shapes['embeddings.mask_token'] = shapes.pop('mask_token')
  return module, shapes


def clip_of_transformers(**fields):
  """CLIP with the names of transformers, whose resizing has no antialiasing."""
  rules = (
    ('conv1', 'embeddings.patch_embedding'),
    ('class_embedding', 'embeddings.class_embedding'),
    ('positional_embedding', 'embeddings.position_embedding.weight'),
    ('ln_pre', 'pre_layrnorm'),
    ('ln_post', 'post_layernorm'),
    ('attn.in_proj_', 'self_attn.{}_proj.'),
    ('attn.out_proj', 'self_attn.out_proj'),
    ('mlp.c_fc', 'mlp.fc1'),
    ('mlp.c_proj', 'mlp.fc2'),
    ('.ln_', '.layer_norm'),
    ('transformer.resblocks', 'encoder.layers'),
  )

  def file_name(name):
    if name == 'proj':
      return 'visual_projection.weight'
    return _renamed(f'vision_model.{name}', rules, 'qkv')

  module, shapes = clip(file_name=file_name, antialias=False, **fields)
  return module, shapes | {
    'text_model.encoder.layers.0.self_attn.q_proj.weight': (8, 8),
    'vision_model.embeddings.position_ids': (1, 197),
  }


def transreid(size='s16', image=(64, 32), jigsaw=False):
  """TransReID with overlapping patches, for images of the run."""
  rows, columns = _grid(image, 16, 12)
  options = vit.Options(size, stride=12)
  module = torch_backbones.vit(options, rows * columns + 1)
  last, width = vit.SIZES[size].blocks - 1, vit.SIZES[size].width
  ends = (f'blocks.{last}.', 'norm.')

  def file_name(name):
    # With the jigsaw module, the last block and normalisation have copies, of
    # which the first is of the whole image.
    for i, end in enumerate(ends):
      if jigsaw and name.startswith(end):
        return f'module.b1.{i}.{name.removeprefix(end)}'
    return f'module.base.{name}'

  shapes = _filled(module, file_name)
  if jigsaw:
    for name, value in module.state_dict().items():
      if name.startswith(ends):
        copy = file_name(name).replace('.b1.', '.b2.')
        both = f'module.base.{name}', copy
        shapes |= dict.fromkeys(both, tuple(value.shape))
    shapes['module.bottleneck_1.weight'] = (width,)
  return module, shapes | {
    'module.base.sie_embed': (6, 1, width),
    'module.base.fc.weight': (10, width),
    'module.bottleneck.running_mean': (width,),
    'module.classifier.weight': (7, width),
  }


def clip(
  size='b16', image=(64, 32), file_name='visual.{}'.format, antialias=True
):
  """CLIP's image tower, with tensors of the tower of texts."""
  torch = pytest.importorskip('torch')
  nn, shape = torch.nn, vit.SIZES[size]

  class Quick(nn.Module):
    def forward(self, x):
      return x * torch.sigmoid(1.702 * x)

  class Block(nn.Module):
    def __init__(self):
      super().__init__()
      d = shape.width
      self.attn = nn.MultiheadAttention(d, shape.heads, batch_first=True)
      self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
      layers = ('c_fc', nn.Linear(d, 4 * d)), ('gelu', Quick())
      last = 'c_proj', nn.Linear(4 * d, d)
      self.mlp = nn.Sequential(OrderedDict([*layers, last]))

    def forward(self, x):
      y = self.ln_1(x)
      x = x + self.attn(y, y, y, need_weights=False)[0]
      return x + self.mlp(self.ln_2(x))

  class Visual(nn.Module):
    def __init__(self):
      super().__init__()
      d, p = shape.width, shape.patch
      self.conv1 = nn.Conv2d(3, d, p, p, bias=False)
      self.class_embedding = nn.Parameter(torch.zeros(d))
      self.positional_embedding = nn.Parameter(torch.zeros(197, d))
      self.ln_pre, self.ln_post = nn.LayerNorm(d), nn.LayerNorm(d)
      self.transformer = nn.Module()
      blocks = [Block() for _ in range(shape.blocks)]
      self.transformer.resblocks = nn.ModuleList(blocks)
      self.proj = nn.Parameter(torch.zeros(d, 8))

    def forward(self, x):
      x = self.conv1(x).flatten(2).transpose(1, 2)
      token = self.class_embedding.expand(len(x), 1, -1)
      x = self.ln_pre(torch.cat([token, x], 1) + self.pos_embed)
      for block in self.transformer.resblocks:
        x = block(x)
      return self.ln_post(x[:, 0])

  module = Visual()
  shapes = _filled(module, file_name)
  module.pos_embed = module.positional_embedding[None]
  del module.positional_embedding
  _set_positions(module, (14, 14), _grid(image, 16, 16), antialias)
  return module, shapes | {
    'positional_embedding': (77, 8),
    'logit_scale': (),
    'transformer.resblocks.0.ln_1.weight': (8,),
    'token_embedding.weight': (10, 8),
  }


def torchreid(ain=False, width=0.125):
  """OSNet with its last layer and classifier."""
  channels = [round(width * c) for c in osnet.CHANNELS]
  module = torch_backbones.osnet(ain, channels)
  shapes = _filled(module, 'module.{}'.format)
  return module, shapes | {
    'module.fc.0.weight': (8, channels[-1]),
    'module.fc.1.weight': (8,),
    'module.classifier.weight': (10, 8),
  }


def mobilenet(flat=False, width=0.1):
  """MobileNetV2 with its classifier."""
  module = torch_backbones.mobilenet_v2(width, flat)
  return module, _filled(module) | {
    'classifier.1.weight': (10, 1280),
    'classifier.1.bias': (10,),
  }


def ibn_net(name='resnet50_ibn_a', width=1 / 16):
  """An IBN-a network of the release of IBN-Net, or a ResNet."""
  module = torch_backbones.resnet(name, width)
  return module, _filled(module) | {'fc.weight': (10, 8)}


def fast_reid(name='resnet50_ibn_a', width=1 / 16):
  """A network of fast-reid with a head and the normalisation of pixels."""
  module = torch_backbones.resnet(name, width)
  return module, _filled(module, 'backbone.{}'.format) | {
    'backbone.NL_2.0.g.weight': (4, 8, 1, 1),
    'heads.bottleneck.0.weight': (8,),
    'heads.weight': (7, 8),
    'pixel_mean': (1, 3, 1, 1),
    'pixel_std': (1, 3, 1, 1),
  }


ORACLES = {
  'timm': timm,
  'dinov2': dinov2,
  'clip': clip,
  'clip, transformers': clip_of_transformers,
  'dinov2, transformers': dinov2_of_transformers,
  'timm, registers': timm_with_registers,
  'dinov2 with registers': dinov2_with_registers,
  'dinov2 with registers, transformers': functools.partial(
    dinov2_of_transformers, made=dinov2_with_registers
  ),
  'dinov3': dinov3,
  'dinov3, transformers': dinov3_of_transformers,
  'transreid': transreid,
  'transreid, jigsaw': lambda **fields: transreid(jigsaw=True, **fields),
  'torchvision': lambda width=1 / 16: ibn_net('resnet50', width),
  'mobilenet_v2': mobilenet,
  'mobilenet_v2, flat': lambda width=0.1: mobilenet(True, width),
  'ibn_net': ibn_net,
  'fast-reid': fast_reid,
  'torchreid': torchreid,
  'torchreid, ain': lambda width=0.125: torchreid(True, width),
}


def oracle(name, image, **fields):
  """Returns the shapes of a file, and the outputs of PyTorch."""
  torch = pytest.importorskip('torch')
  if name in TRANSFORMERS:
    fields['image'] = image
  module, shapes = ORACLES[name](**fields)
  with torch.no_grad():
    x = torch.from_numpy(images(image).transpose(0, 3, 1, 2))
    y = module.eval()(x).numpy()
  y = y.transpose(0, 2, 3, 1) if y.ndim == 4 else y[:, None, None]
  return {n: tuple(shape) for n, shape in shapes.items()}, y


def main():
  """Writes the golden file."""
  vit.SIZES |= SMALL
  golden = {}
  for name, kind in KINDS.items():
    shapes, output = oracle(name, kind.image)
    rounded = np.round(output.astype(np.float64), 6).tolist()
    golden[name] = {'shapes': shapes, 'output': rounded}
  content = json.dumps(golden).encode()
  GOLDEN.write_bytes(gzip.compress(content, mtime=0))


if __name__ == '__main__':
  main()
