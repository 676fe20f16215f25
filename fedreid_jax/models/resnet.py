"""ResNet-18, 34, 50 and 101 in torchvision's topology and names.

He et al., "Deep residual learning for image recognition"; the stride of a
bottleneck is on its 3x3 convolution (version 1.5). Modules carry torchvision's
names with `_` for its `.`: `layer1_0/downsample_0/kernel`.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.models import conv, norm

# Whether blocks are bottlenecks, and how many each stage has.
DEPTHS = {
  'resnet18': (False, (2, 2, 2, 2)),
  'resnet34': (False, (3, 4, 6, 3)),
  'resnet50': (True, (3, 4, 6, 3)),
  'resnet101': (True, (3, 4, 23, 3)),
}


class Block(nn.Module):
  """Adds two 3x3 convolutions, or a 1x1-3x3-1x1 bottleneck, to its input.

  Attributes:
    features: channels of the 3x3 convolutions.
    stride: step of the block.
    bottleneck: whether it has three convolutions, the last four times wider.
    dtype: what it computes in.
  """

  features: int
  stride: int
  bottleneck: bool
  dtype: Any

  @nn.compact
  def __call__(self, x, *, train: bool, mask=None):
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, D']`."""

    def normalised(x, features, size, stride, name, norm_name):
      x = conv.Conv(
        features,
        (size, size),
        stride,
        padding=size // 2,
        dtype=self.dtype,
        name=name,
      )(x)
      bn = norm.BatchNorm(dtype=self.dtype, name=norm_name)
      return bn(x, train=train, mask=mask)

    d = self.features
    if self.bottleneck:
      plan = ((d, 1, 1), (d, 3, self.stride), (4 * d, 1, 1))
    else:
      plan = ((d, 3, self.stride), (d, 3, 1))
    y = x
    for i, layer in enumerate(plan, start=1):
      y = normalised(y, *layer, f'conv{i}', f'bn{i}')
      if i < len(plan):
        y = norm.relu(y)
    if y.shape != x.shape:
      shortcut = (plan[-1][0], 1, self.stride)
      x = normalised(x, *shortcut, 'downsample_0', 'downsample_1')
    return norm.relu(x + y)


class ResNet(nn.Module):
  """Maps images to features, without the pooling and the classifier.

  Attributes:
    depth: one of `DEPTHS`.
    width: multiplier of the 64 base channels.
    small_stem: a 3x3 stem of stride 1 without max-pooling, for small images.
    last_stride: stride of the last stage; 1 keeps a finer map.
    dtype: what it computes in.
  """

  depth: str = 'resnet50'
  width: float = 1.0
  small_stem: bool = False
  last_stride: int = 2
  dtype: Any = jnp.float32

  @property
  def base(self) -> int:
    """Channels of the stem and of the first stage's 3x3 convolutions."""
    return round(64 * self.width)

  @nn.compact
  def __call__(self, x, *, train: bool, mask=None):
    """Maps `[B, H, W, ch]` to `[B, h, w, D]`."""
    bottleneck, depths = DEPTHS[self.depth]
    size, stride = (3, 1) if self.small_stem else (7, 2)
    x = conv.Conv(
      self.base,
      (size, size),
      stride,
      padding=size // 2,
      dtype=self.dtype,
      name='conv1',
    )(x)
    bn = norm.BatchNorm(dtype=self.dtype, name='bn1')
    x = norm.relu(bn(x, train=train, mask=mask))
    if not self.small_stem:
      x = nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])  # pyright: ignore
    for stage, num_blocks in enumerate(depths):
      stride = (1, 2, 2, self.last_stride)[stage]
      for i in range(num_blocks):
        x = Block(
          self.base * 2**stage,
          stride if i == 0 else 1,
          bottleneck,
          self.dtype,
          name=f'layer{stage + 1}_{i}',
        )(x, train=train, mask=mask)
    return x
