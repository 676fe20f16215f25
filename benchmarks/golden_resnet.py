"""Writes outputs of PyTorch's ResNet-50 for a test that does not need PyTorch.

Usage: `python -m benchmarks.golden_resnet tests/golden/resnet50.npz`

The weights, 94 MB, are not stored: `weights` generates them again, each tensor
from its name. The file contains the outputs only: pooled features of evaluation
with last stride 2 and 1, of training, and the first running statistics after
one training step.
"""

import argparse
import zlib

import numpy as np

SEED = 20240501
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def draw(name: str, shape: tuple[int, ...], mean: float, deviation: float):
  """Returns a random float32 tensor that depends on its name only."""
  seed = np.random.SeedSequence([SEED, zlib.crc32(name.encode())])
  values = np.random.Generator(np.random.PCG64(seed)).standard_normal(shape)
  return (mean + deviation * values).astype(np.float32)


def images(num: int) -> np.ndarray:
  """Returns `[num, 64, 32, 3]` images, float32."""
  return draw('images', (num, 64, 32, 3), 0.0, 1.0)


def weights() -> dict[str, np.ndarray]:
  """Returns all tensors of a ResNet-50 without `fc`, activations near 1."""
  tensors = {}

  def convolution(name, outputs, inputs, size):
    shape = (outputs, inputs, size, size)
    deviation = (inputs * size * size) ** -0.5
    tensors[f'{name}.weight'] = draw(f'{name}.weight', shape, 0.0, deviation)

  def norm(name, channels, scale=1.0):
    for leaf, mean, deviation in (
      ('weight', scale, 0.1 * scale),
      ('bias', 0.0, 0.1),
      ('running_mean', 0.0, 0.1),
      ('running_var', 0.0, 0.2),
    ):
      key = f'{name}.{leaf}'
      tensors[key] = draw(key, (channels,), mean, deviation)
    tensors[key] = np.exp(tensors[key])

  convolution('conv1', 64, 3, 7)
  norm('bn1', 64)
  inputs = 64
  for stage, (width, num_blocks, _) in enumerate(STAGES, start=1):
    for i in range(num_blocks):
      block = f'layer{stage}.{i}'
      convolution(f'{block}.conv1', width, inputs, 1)
      norm(f'{block}.bn1', width)
      convolution(f'{block}.conv2', width, width, 3)
      norm(f'{block}.bn2', width)
      convolution(f'{block}.conv3', 4 * width, width, 1)
      norm(f'{block}.bn3', 4 * width, 0.5)
      if i == 0:
        convolution(f'{block}.downsample.0', 4 * width, inputs, 1)
        norm(f'{block}.downsample.1', 4 * width)
      inputs = 4 * width
  return tensors


def network(last_stride: int):
  """Returns the ResNet-50, without `fc`, as a PyTorch module."""
  import torch  # pyright: ignore[reportMissingImports]
  from torch import nn  # pyright: ignore[reportMissingImports]

  def pair(inputs, outputs, size, stride=1):
    return (
      nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
      nn.BatchNorm2d(outputs),
    )

  class Bottleneck(nn.Module):  # pyright: ignore[reportUntypedBaseClass]
    def __init__(self, inputs, width, stride):
      super().__init__()
      self.conv1, self.bn1 = pair(inputs, width, 1)
      self.conv2, self.bn2 = pair(width, width, 3, stride)
      self.conv3, self.bn3 = pair(width, 4 * width, 1)
      self.downsample = nn.Identity()
      if stride != 1 or inputs != 4 * width:
        self.downsample = nn.Sequential(*pair(inputs, 4 * width, 1, stride))

    def forward(self, x):
      y = torch.relu(self.bn1(self.conv1(x)))
      y = torch.relu(self.bn2(self.conv2(y)))
      return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))

  class ResNet(nn.Module):  # pyright: ignore[reportUntypedBaseClass]
    def __init__(self):
      super().__init__()
      self.conv1, self.bn1 = pair(3, 64, 7, 2)
      inputs = 64
      for stage, (width, num_blocks, stride) in enumerate(STAGES, start=1):
        strides = [last_stride if stage == 4 else stride]
        strides += [1] * (num_blocks - 1)
        blocks = []
        for step in strides:
          blocks.append(Bottleneck(inputs, width, step))
          inputs = 4 * width
        setattr(self, f'layer{stage}', nn.Sequential(*blocks))

    def forward(self, x):
      x = torch.relu(self.bn1(self.conv1(x)))
      x = nn.functional.max_pool2d(x, 3, 2, 1)
      for stage in range(1, 5):
        x = getattr(self, f'layer{stage}')(x)
      return x.mean((2, 3))

  module = ResNet()
  state = {key: torch.from_numpy(value) for key, value in weights().items()}
  missing, unexpected = module.load_state_dict(state, strict=False)
  assert not unexpected
  assert all(key.endswith('num_batches_tracked') for key in missing)
  return module


def main():
  """Writes the file."""
  import torch  # pyright: ignore[reportMissingImports]

  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('path')
  path = parser.parse_args().path
  x = torch.from_numpy(images(4)).permute(0, 3, 1, 2)
  with torch.no_grad():
    answers = {
      f'eval_stride_{stride}': network(stride).eval()(x[:2])
      for stride in (1, 2)
    }
    trained = network(1).train()
    answers['train'] = trained(x)
  answers['bn1_mean'] = trained.bn1.running_mean
  answers['bn1_var'] = trained.bn1.running_var
  np.savez_compressed(path, **{k: v.numpy() for k, v in answers.items()})
  for key, value in answers.items():
    print(f'{key}: {tuple(value.shape)}, std {value.std():.3f}')


if __name__ == '__main__':
  main()
