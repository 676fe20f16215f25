"""Backbones in PyTorch, independent of the package, and their comparison."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.core import trees
from fedreid_jax.models import resnet as resnet_lib
from fedreid_jax.models.backbones import osnet as osnet_lib
from fedreid_jax.models.backbones import vit as vit_lib
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.weights import pytorch


def vit(options, num_tokens, channels=3):
  """Returns a transformer with the names of timm."""
  torch = pytest.importorskip('torch')
  nn, size = torch.nn, vit_lib.SIZES[options.size]
  epsilon = 1e-5 if options.pre_norm or options.rope else 1e-6

  def turned(y, grid):
    """Rotates the tokens of patches as complex numbers, a plane by a plane."""
    half = y.shape[-1] // 2
    rows, columns = grid
    r, c = torch.arange(rows * columns) // columns, torch.arange(columns)
    places = 2 * (r + 0.5) / rows - 1, 2 * (c.repeat(rows) + 0.5) / columns - 1
    speeds = 2 * torch.pi * 100.0 ** (-torch.arange(half // 2) / (half // 2))
    angles = torch.cat([place[:, None] * speeds for place in places], 1)
    patches = y[..., -rows * columns :, :]
    pairs = torch.complex(patches[..., :half], patches[..., half:])
    pairs = pairs * torch.exp(1j * angles)
    first = y[..., : -rows * columns, :]
    return torch.cat([first, torch.cat([pairs.real, pairs.imag], -1)], -2)

  class KeysWithoutBias(nn.Linear):
    def forward(self, x):
      bias = self.bias.clone()
      bias[size.width : 2 * size.width] = 0
      return nn.functional.linear(x, self.weight, bias)

  class Attention(nn.Module):
    def __init__(self):
      super().__init__()
      layer = KeysWithoutBias if options.rope else nn.Linear
      self.qkv = layer(size.width, 3 * size.width)
      self.proj = nn.Linear(size.width, size.width)

    def forward(self, x):
      b, t, d = x.shape
      q, k, v = (
        y.reshape(b, t, size.heads, -1).transpose(1, 2)
        for y in self.qkv(x).chunk(3, -1)
      )
      if options.rope:
        q, k = turned(q, self.grid), turned(k, self.grid)
      y = nn.functional.scaled_dot_product_attention(q, k, v)
      return self.proj(y.transpose(1, 2).reshape(b, t, d))

  class Mlp(nn.Module):
    def __init__(self):
      super().__init__()
      self.fc1 = nn.Linear(size.width, 4 * size.width)
      self.fc2 = nn.Linear(4 * size.width, size.width)

    def forward(self, x):
      x = self.fc1(x)
      quick = x * torch.sigmoid(1.702 * x)
      return self.fc2(quick if options.quick_gelu else nn.functional.gelu(x))

  class Scale(nn.Module):
    def __init__(self):
      super().__init__()
      self.gamma = nn.Parameter(torch.ones(size.width))

    def forward(self, x):
      return x * self.gamma

  class Block(nn.Module):
    def __init__(self):
      super().__init__()
      self.norm1 = nn.LayerNorm(size.width, eps=epsilon)
      self.attn = Attention()
      self.norm2 = nn.LayerNorm(size.width, eps=epsilon)
      self.mlp = Mlp()
      if options.layer_scale:
        self.ls1, self.ls2 = Scale(), Scale()

    def forward(self, x):
      same = nn.Identity()
      x = x + getattr(self, 'ls1', same)(self.attn(self.norm1(x)))
      return x + getattr(self, 'ls2', same)(self.mlp(self.norm2(x)))

  class Net(nn.Module):
    def __init__(self):
      super().__init__()
      self.patch_embed = nn.Module()
      self.patch_embed.proj = nn.Conv2d(
        channels,
        size.width,
        size.patch,
        options.stride or size.patch,
        bias=not options.pre_norm,
      )
      self.cls_token = nn.Parameter(torch.zeros(1, 1, size.width))
      if not options.rope:
        self.pos_embed = nn.Parameter(torch.zeros(1, num_tokens, size.width))
      if options.registers:
        shape = 1, options.registers, size.width
        self.reg_token = nn.Parameter(torch.zeros(shape))
      if options.pre_norm:
        self.norm_pre = nn.LayerNorm(size.width, eps=epsilon)
      self.blocks = nn.ModuleList(Block() for _ in range(size.blocks))
      self.norm = nn.LayerNorm(size.width, eps=epsilon)

    def forward(self, x):
      x = self.patch_embed.proj(x)
      grid = x.shape[2:]
      x = x.flatten(2).transpose(1, 2)
      x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
      x = x if options.rope else x + self.pos_embed
      if options.registers:
        tokens = self.reg_token.expand(len(x), -1, -1)
        x = torch.cat([x[:, :1], tokens, x[:, 1:]], 1)
      x = self.norm_pre(x) if options.pre_norm else x
      for block in self.blocks:
        block.attn.grid = grid
        x = block(x)
      return self.norm(x)[:, 0]

  return Net()


def osnet(ain, channels):
  """Returns a network with the names of torchreid's files."""
  torch = pytest.importorskip('torch')
  nn = torch.nn

  class Conv(nn.Module):
    def __init__(self, a, b, k=1, s=1, kind='bn', relu=True):
      super().__init__()
      self.conv = nn.Conv2d(a, b, k, s, k // 2, bias=False)
      if kind != 'none':
        self.bn = (
          nn.BatchNorm2d(b)
          if kind == 'bn'
          else nn.InstanceNorm2d(b, affine=True)
        )
      self.relu = relu

    def forward(self, x):
      x = self.conv(x)
      x = self.bn(x) if hasattr(self, 'bn') else x
      return x.relu() if self.relu else x

  class Light(nn.Module):
    def __init__(self, a):
      super().__init__()
      self.conv1 = nn.Conv2d(a, a, 1, bias=False)
      self.conv2 = nn.Conv2d(a, a, 3, padding=1, groups=a, bias=False)
      self.bn = nn.BatchNorm2d(a)

    def forward(self, x):
      return self.bn(self.conv2(self.conv1(x))).relu()

  class Gate(nn.Module):
    def __init__(self, a):
      super().__init__()
      self.fc1 = nn.Conv2d(a, max(a // 16, 1), 1)
      self.fc2 = nn.Conv2d(max(a // 16, 1), a, 1)

    def forward(self, x):
      w = x.mean((2, 3), keepdim=True)
      return x * self.fc2(self.fc1(w).relu()).sigmoid()

  class Stream(nn.Module):
    def __init__(self, a, n):
      super().__init__()
      self.layers = nn.Sequential(*(Light(a) for _ in range(n)))

    def forward(self, x):
      return self.layers(x)

  class Block(nn.Module):
    def __init__(self, a, b, by_image):
      super().__init__()
      m = b // 4
      self.conv1 = Conv(a, m)
      if ain:
        self.conv2 = nn.ModuleList(Stream(m, t) for t in (1, 2, 3, 4))
      else:
        self.conv2a = Light(m)
        for n, letter in ((2, 'b'), (3, 'c'), (4, 'd')):
          stream = nn.Sequential(*(Light(m) for _ in range(n)))
          setattr(self, f'conv2{letter}', stream)
      self.gate = Gate(m)
      self.conv3 = Conv(m, b, kind='none' if by_image else 'bn', relu=False)
      if by_image:
        self.IN = nn.InstanceNorm2d(b, affine=True)
      if a != b:
        self.downsample = Conv(a, b, relu=False)

    def forward(self, x):
      y = self.conv1(x)
      streams = (
        self.conv2
        if ain
        else (self.conv2a, self.conv2b, self.conv2c, self.conv2d)
      )
      y = self.conv3(sum(self.gate(s(y)) for s in streams))
      y = self.IN(y) if hasattr(self, 'IN') else y
      x = self.downsample(x) if hasattr(self, 'downsample') else x
      return (x + y).relu()

  class Net(nn.Module):
    def __init__(self):
      super().__init__()
      c = channels
      self.conv1 = Conv(3, c[0], 7, 2, 'in' if ain else 'bn')
      self.maxpool = nn.MaxPool2d(3, 2, 1)
      marks = osnet_lib.AIN if ain else ((False, False),) * 3
      for k in range(3):
        blocks = [
          Block(c[k], c[k + 1], marks[k][0]),
          Block(c[k + 1], c[k + 1], marks[k][1]),
        ]
        halve = nn.Sequential(Conv(c[k + 1], c[k + 1]), nn.AvgPool2d(2, 2))
        if ain:
          setattr(self, f'conv{k + 2}', nn.Sequential(*blocks))
          if k < 2:
            setattr(self, f'pool{k + 2}', halve)
        else:
          more = [halve] if k < 2 else []
          setattr(self, f'conv{k + 2}', nn.Sequential(*blocks, *more))
      self.conv5 = Conv(c[3], c[3])

    def forward(self, x):
      x = self.maxpool(self.conv1(x))
      for k in (2, 3, 4):
        x = getattr(self, f'conv{k}')(x)
        x = getattr(self, f'pool{k}')(x) if hasattr(self, f'pool{k}') else x
      return self.conv5(x)

  return Net()


def mobilenet_v2(width=1.0, flat=False, last_stride=2):
  """Returns a network with the names of torchvision, or of one sequence."""
  torch = pytest.importorskip('torch')
  nn = torch.nn

  def channels(number):
    found = max(8, int(number * width + 4) // 8 * 8)
    return found + 8 if found < 0.9 * number * width else found

  def layer(a, b, k=3, s=1, groups=1):
    conv = nn.Conv2d(a, b, k, s, k // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(b), nn.ReLU6()]

  class Block(nn.Module):
    def __init__(self, a, b, stride, expansion):
      super().__init__()
      wide = expansion * a
      layers = [layer(a, wide, 1)] if expansion > 1 else []
      layers.append(layer(wide, wide, 3, stride, wide))
      end = [nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b)]
      if flat:
        self.conv = nn.Sequential(*sum(layers, []), *end)
      else:
        self.conv = nn.Sequential(*(nn.Sequential(*x) for x in layers), *end)
      self.residual = stride == 1 and a == b

    def forward(self, x):
      return x + self.conv(x) if self.residual else self.conv(x)

  class Net(nn.Module):
    def __init__(self):
      super().__init__()
      a = channels(32)
      parts = [nn.Sequential(*layer(3, a, 3, 2))]
      for expansion, number, blocks, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, last_stride), (6, 320, 1, 1)),
      ):
        for i in range(blocks):
          b = channels(number)
          parts.append(Block(a, b, 1 if i else stride, expansion))
          a = b
      last = 1280 if width < 1 else channels(1280)
      parts.append(nn.Sequential(*layer(a, last, 1)))
      self.features = nn.Sequential(*parts)

    def forward(self, x):
      return self.features(x)

  return Net()


def resnet(name, width=1.0):
  """Returns a ResNet, or an IBN-a network, with the names of their files."""
  torch = pytest.importorskip('torch')
  nn = torch.nn
  bottleneck, depths = resnet_lib.DEPTHS[name]
  base = round(64 * width)

  class Halves(nn.Module):
    def __init__(self, d):
      super().__init__()
      self.half = d // 2
      self.IN = nn.InstanceNorm2d(self.half, affine=True)
      self.BN = nn.BatchNorm2d(d - self.half)

    def forward(self, x):
      first, second = x[:, : self.half], x[:, self.half :]
      return torch.cat([self.IN(first), self.BN(second)], 1)

  class Block(nn.Module):
    def __init__(self, a, d, stride, halves):
      super().__init__()
      plan = (
        [(d, 1, 1), (d, 3, stride), (4 * d, 1, 1)]
        if bottleneck
        else [(d, 3, stride), (d, 3, 1)]
      )
      self.depth, inputs = len(plan), a
      for i, (b, k, s) in enumerate(plan, 1):
        conv = nn.Conv2d(inputs, b, k, s, k // 2, bias=False)
        bn = Halves(b) if halves and i == 1 else nn.BatchNorm2d(b)
        setattr(self, f'conv{i}', conv)
        setattr(self, f'bn{i}', bn)
        inputs = b
      self.outputs = inputs
      if stride != 1 or a != inputs:
        self.downsample = nn.Sequential(
          nn.Conv2d(a, inputs, 1, stride, bias=False), nn.BatchNorm2d(inputs)
        )

    def forward(self, x):
      y = x
      for i in range(1, self.depth + 1):
        y = getattr(self, f'bn{i}')(getattr(self, f'conv{i}')(y))
        y = y.relu() if i < self.depth else y
      x = self.downsample(x) if hasattr(self, 'downsample') else x
      return (x + y).relu()

  class Net(nn.Module):
    def __init__(self):
      super().__init__()
      self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
      self.bn1 = nn.BatchNorm2d(base)
      channels = base
      for stage, number in enumerate(depths):
        blocks = []
        for i in range(number):
          stride = 2 if stage and i == 0 else 1
          halves = '_ibn_a' in name and stage < 3
          block = Block(channels, base * 2**stage, stride, halves)
          channels = block.outputs
          blocks.append(block)
        setattr(self, f'layer{stage + 1}', nn.Sequential(*blocks))

    def forward(self, x):
      x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
      for stage in range(1, 5):
        x = getattr(self, f'layer{stage}')(x)
      return x

  return Net()


def draw(name, shape):
  """Returns random values of a tensor, so that activations stay near 1."""
  last = name.rpartition('.')[2]
  if last == 'num_batches_tracked':
    return np.array(3)
  values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
  if last.endswith('weight') and len(shape) > 1:
    return (values / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
  one = last in ('running_var', 'gamma') or (
    last == 'weight' and len(shape) == 1
  )
  return np.asarray(0.1 * values + one, np.float32)


def fill(module, file_name=str):
  """Gives a module random values, and returns them by their names in a file."""
  torch = pytest.importorskip('torch')
  state, own = {}, {}
  for name, value in module.state_dict().items():
    full = file_name(name)
    state[full] = draw(full, tuple(value.shape))
    own[name] = torch.from_numpy(state[full])
  module.load_state_dict(own)
  module.eval()
  return state


def shapes(network, size):
  """Returns the shapes of a backbone's leaves for images of `[H, W]`."""

  def init(key):
    return network.init(key, jnp.zeros((2, *size, 3)), ForwardCtx(False))

  flat = trees.flatten(jax.eval_shape(init, jax.random.key(0)))
  return {n.replace('/', '/backbone/', 1): x for n, x in flat.items()}


def taken(network, state, size):
  """Returns the leaves of a backbone with the values of a state."""
  left = {
    n: x for n, x in state.items() if not n.endswith('num_batches_tracked')
  }
  found = {}
  for leaf, value in shapes(network, size).items():
    tensor = pytorch.from_pytorch(leaf, left.pop(pytorch.name_of(leaf)))
    assert tensor.shape == value.shape, leaf
    found[leaf] = jnp.asarray(tensor)
  assert not left
  return found


def run(network, leaves, images):
  """Returns the maps of a backbone, and outputs of its modules by name."""
  variables = {n.replace('/backbone', '', 1): x for n, x in leaves.items()}

  # One program: hundreds of small ones take longer.
  @jax.jit
  def apply(variables, images):
    return network.apply(
      variables,
      images,
      ForwardCtx(False),
      capture_intermediates=True,
      mutable=['intermediates'],
    )

  (maps, _), captured = apply(trees.unflatten(variables), jnp.asarray(images))
  flat = trees.flatten(captured)
  inner = {
    n.removesuffix('/__call__').partition('/')[2]: x[0]
    for n, x in flat.items()
    if n.count('/') > 1
  }
  return maps, inner


def assert_layers_agree(network, state, module, images, least=10):
  """Compares outputs of each module, and the maps, with those of PyTorch.

  Args:
    state: values of the module by name.
    images: float32 `[B, H, W, 3]`.
    least: number of layers that are compared at least.
  """
  torch = pytest.importorskip('torch')
  maps, inner = run(network, taken(network, state, images.shape[1:3]), images)
  outputs = {}

  def keep(name):
    def hook(_, args, y):
      # A module that runs several times keeps its first output, as Flax does.
      outputs.setdefault(name, y.numpy())

    return hook

  for name, part in module.named_modules():
    part.register_forward_hook(keep(name))
  with torch.no_grad():
    wanted = module(torch.from_numpy(images.transpose(0, 3, 1, 2))).numpy()
  assert np.std(wanted) > 0.05
  compared = 0
  for path, got in inner.items():
    name = pytorch.name_of(f'params/backbone/{path}')
    if name in outputs:
      compared += 1
      _close(got, outputs[name], name)
  assert compared >= least, (compared, [*inner], [*outputs])
  _close(maps, wanted, 'maps')


def _close(got, wanted, name):
  got = np.asarray(got)
  if wanted.ndim == 4:
    wanted = wanted.transpose(0, 2, 3, 1)
  if got.ndim == 3:  # the last normalisation has the class token only
    wanted = wanted[:, : got.shape[1]]
  wanted = wanted.reshape(got.shape)
  np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4, err_msg=name)
