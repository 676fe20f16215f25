"""ResNet-18, 34, 50 and 101 in torchvision's topology and names.

He et al., "Deep Residual Learning for Image Recognition"; the stride of a
bottleneck is on its 3x3 convolution (version 1.5). Modules carry torchvision's
names, with `_` where torchvision has a `.`: `layer1_0/downsample_0/kernel`.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.models import conv, norm

DEPTHS = {
  'resnet18': (False, (2, 2, 2, 2)),
  'resnet34': (False, (3, 4, 6, 3)),
  'resnet50': (True, (3, 4, 6, 3)),
  'resnet101': (True, (3, 4, 23, 3)),
}


class Block(nn.Module):
  """Adds two 3x3 convolutions, or a 1x1-3x3-1x1 bottleneck, to its input.

  Attributes:
    width: channels of the 3x3 convolution.
    stride: step of the block.
    bottleneck: whether it has the three convolutions.
    dtype: what it computes in.
  """

  width: int
  stride: int
  bottleneck: bool
  dtype: Any

  @nn.compact
  def __call__(self, x, *, train: bool, mask=None):
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, D']`."""

    def unit(x, features, size, stride, conv_name, norm_name):
      x = conv.Conv(
        features,
        (size, size),
        stride,
        padding=size // 2,
        dtype=self.dtype,
        name=conv_name,
      )(x)
      bn = norm.BatchNorm(dtype=self.dtype, name=norm_name)
      return bn(x, train=train, mask=mask)

    if self.bottleneck:
      plan = ((1, 1, 1), (3, self.stride, 1), (1, 1, 4))
    else:
      plan = ((3, self.stride, 1), (3, 1, 1))
    y = x
    for i, (size, stride, expansion) in enumerate(plan, start=1):
      y = unit(y, expansion * self.width, size, stride, f'conv{i}', f'bn{i}')
      if i < len(plan):
        y = nn.relu(y)
    if y.shape != x.shape:
      x = unit(x, y.shape[-1], 1, self.stride, 'downsample_0', 'downsample_1')
    return nn.relu(x + y)


class ResNet(nn.Module):
  """Maps images to features, without the pooling and the classifier.

  Attributes:
    name_of: one of `DEPTHS`.
    width: multiplier of the 64 base channels.
    small_stem: a 3x3 stride 1 stem without max-pooling, for small images.
    last_stride: stride of the last stage, 1 keeps a finer map.
    dtype: what it computes in.
  """

  depth: str = 'resnet50'
  width: float = 1.0
  small_stem: bool = False
  last_stride: int = 2
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, *, train: bool, mask=None):
    """Maps `[B, H, W, ch]` to `[B, h, w, D]`."""
    bottleneck, depths = DEPTHS[self.depth]
    base = round(64 * self.width)
    size, stride = (3, 1) if self.small_stem else (7, 2)
    x = conv.Conv(
      base,
      (size, size),
      stride,
      padding=size // 2,
      dtype=self.dtype,
      name='conv1',
    )(x)
    bn = norm.BatchNorm(dtype=self.dtype, name='bn1')
    x = nn.relu(bn(x, train=train, mask=mask))
    if not self.small_stem:
      x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    for stage, num_blocks in enumerate(depths):
      first = (1, 2, 2, self.last_stride)[stage]
      for i in range(num_blocks):
        x = Block(
          base * 2**stage,
          first if i == 0 else 1,
          bottleneck,
          self.dtype,
          name=f'layer{stage + 1}_{i}',
        )(x, train=train, mask=mask)
    return x
