"""A ResNet in PyTorch with torchvision's names, of any width.

It is the oracle of tests and the reference of `benchmarks.torch_gpu`.
"""

from collections import OrderedDict

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from fedreid_jax.models import resnet


class Block(nn.Module):  # pyright: ignore
  """A residual block of two or three convolutions."""

  def __init__(self, inputs, features, stride, bottleneck):
    super().__init__()
    if bottleneck:
      plan = [(features, 1, 1), (features, 3, stride), (4 * features, 1, 1)]
    else:
      plan = [(features, 3, stride), (features, 3, 1)]
    self.depth, channels = len(plan), inputs
    for i, (outputs, size, step) in enumerate(plan, start=1):
      conv = nn.Conv2d(channels, outputs, size, step, size // 2, bias=False)
      setattr(self, f'conv{i}', conv)
      setattr(self, f'bn{i}', nn.BatchNorm2d(outputs))
      channels = outputs
    self.outputs, self.downsample = channels, None
    if stride != 1 or inputs != channels:
      self.downsample = nn.Sequential(
        nn.Conv2d(inputs, channels, 1, stride, bias=False),
        nn.BatchNorm2d(channels),
      )

  def forward(self, x):
    """Returns the output of the block."""
    y = x
    for i in range(1, self.depth + 1):
      y = getattr(self, f'bn{i}')(getattr(self, f'conv{i}')(y))
      y = torch.relu(y) if i < self.depth else y
    return torch.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):  # pyright: ignore
  """With a neck of one batch normalisation, and the pixels of `about`."""

  def __init__(self, model, mean, std):
    super().__init__()
    self.mean, self.std = mean, std
    base = round(64 * model['width'])
    self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
    self.bn1 = nn.BatchNorm2d(base)
    bottleneck, depths = resnet.DEPTHS[model['name']]
    channels = base
    for stage, number in enumerate(depths, start=1):
      blocks = []
      for i in range(number):
        step = (1, 2, 2, model['last_stride'])[stage - 1] if i == 0 else 1
        features = base * 2 ** (stage - 1)
        blocks.append(Block(channels, features, step, bottleneck))
        channels = blocks[-1].outputs
      setattr(self, f'layer{stage}', nn.Sequential(*blocks))
    bn = nn.BatchNorm1d(channels, affine=model['neck'] == 'bnneck')
    self.neck = nn.Sequential(OrderedDict(bn=bn))

  def forward(self, images):
    """Returns the embeddings of uint8 images `[B, H, W, 3]`."""
    x = images.permute(0, 3, 1, 2).float() / 255
    mean, std = (x.new_tensor(v)[:, None, None] for v in (self.mean, self.std))
    x = torch.relu(self.bn1(self.conv1((x - mean) / std)))
    x = nn.functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
      x = getattr(self, f'layer{stage}')(x)
    return self.neck(x.mean((2, 3)))
