"""OSNet against an independent implementation in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.core import trees
from fedreid_jax.models.backbones import osnet


def torch_osnet(ain, channels):
  """Builds the network in PyTorch, with the names of torchreid's files."""
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
      marks = osnet.AIN if ain else ((False, False),) * 3
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

  return torch, Net()


@pytest.mark.parametrize('kind', ['plain', 'ain'])
def test_outputs_are_those_of_pytorch(kind):
  ain, width = kind == 'ain', 0.25
  channels = [round(width * c) for c in osnet.CHANNELS]
  torch, reference = torch_osnet(ain, channels)
  rng = np.random.default_rng(0)
  state = {}
  for name, value in reference.state_dict().items():
    if name.endswith('num_batches_tracked'):
      continue
    draw = rng.normal(0.0, 0.2, value.shape).astype(np.float32)
    if name.endswith('running_var'):
      draw = 0.5 + np.abs(draw)
    state[name] = draw
  reference.load_state_dict(
    {n: torch.from_numpy(x) for n, x in state.items()}, strict=False
  )
  images = rng.normal(size=(2, 64, 32, 3)).astype(np.float32)
  network = osnet.OSNet(ain, width)
  variables = trees.flatten(
    network.init(jax.random.key(0), jnp.asarray(images), train=False)
  )
  from fedreid_jax.models import weights

  taken = {}
  for leaf, value in variables.items():
    name = weights.torchvision_name(leaf.replace('/', '/backbone/', 1))
    tensor = state.pop(name)
    axes = {4: (2, 3, 1, 0), 1: (0,)}[tensor.ndim]
    taken[leaf] = jnp.asarray(tensor.transpose(axes))
    assert taken[leaf].shape == value.shape, leaf
  assert not state
  maps, _ = network.apply(
    trees.unflatten(taken), jnp.asarray(images), train=False
  )
  reference.eval()
  with torch.no_grad():
    wanted = reference(torch.from_numpy(images.transpose(0, 3, 1, 2)))
  np.testing.assert_allclose(
    maps, wanted.numpy().transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-4
  )
