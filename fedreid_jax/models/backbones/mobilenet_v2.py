"""MobileNetV2, in the names of torchvision.

Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks" (CVPR
2018). A block widens its maps with a 1x1 convolution, convolves each channel
with its own 3x3 taps, and narrows them with a linear 1x1 convolution:

  y = BN(conv1x1(r(BN(depthwise3x3(r(BN(conv1x1(x))))))),  r(x) = min([x]_+, 6)

`x` is added to `y` if both have the same shape. As in torchvision, channels
are multiples of 8, and a width below 1 leaves the 1,280 features of the last
layer.

Deviation from the paper, for re-identification: the stride of the first block
with 160 channels is `model.last_stride`, by default 1 and not 2, so that the
maps of 128x64 pixels have 8x4 positions.
"""

from collections import Counter
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, inserted, norm
from fedreid_jax.models.options import Model

STEM, LAST = 32, 1280  # channels of the first and of the last layer


class Group(NamedTuple):
  """Blocks of equal channels (table 2 of the paper)."""

  stage: int  # of the modules that methods insert, as in a ResNet
  expansion: int  # `t`, by which a block widens its maps
  channels: int
  blocks: int
  stride: int  # of the first block


GROUPS = (
  Group(1, 1, 16, 1, 1),
  Group(1, 6, 24, 2, 2),
  Group(2, 6, 32, 3, 2),
  Group(3, 6, 64, 4, 2),
  Group(3, 6, 96, 3, 1),
  Group(4, 6, 160, 3, 2),
  Group(4, 6, 320, 1, 1),
)
LAST_STRIDE = 5  # number of the group whose stride is `model.last_stride`


def scaled(channels: int, width: float) -> int:
  """The multiple of 8 nearest to `channels * width`, not below 90 % of it."""
  exact = channels * width
  rounded = max(8, int(exact + 4) // 8 * 8)
  return rounded + 8 if rounded < 0.9 * exact else rounded


class Block(nn.Module):
  """Widens, convolves each channel and narrows; a residual of equal shapes."""

  features: int
  expansion: int
  stride: int
  dtype: Any = jnp.float32
  norm_kind: str = 'batch'  # a `norm.NormKind`

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w features']:
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, features]`."""

    def normalised(x: Array, name: str) -> Array:
      bn = norm.layer(self.norm_kind, name, dtype=self.dtype)
      return bn(x, train=train, mask=mask)

    y, at = x, 0  # `at` counts the modules of torchvision's sequence
    if self.expansion > 1:
      wide = self.expansion * x.shape[-1]
      y = conv.Conv(wide, (1, 1), dtype=self.dtype, name='conv_0_0')(y)
      y, at = norm.relu6(normalised(y, 'conv_0_1')), 1
    y = conv.Depthwise(self.stride, self.dtype, name=f'conv_{at}_0')(y)
    y = norm.relu6(normalised(y, f'conv_{at}_1'))
    y = conv.Conv(
      self.features, (1, 1), dtype=self.dtype, name=f'conv_{at + 1}'
    )(y)
    y = normalised(y, f'conv_{at + 2}')
    return x + y if x.shape == y.shape else y


class MobileNetV2(nn.Module):
  """Maps images to features, without the pooling and the classifier."""

  width: float = 1.0  # multiplier of the channels
  last_stride: int = 2  # 1 keeps a finer map
  dtype: Any = jnp.float32
  plugins: tuple[inserted.Rule, ...] = ()  # stages are those of `GROUPS`
  norm_kind: str = 'batch'  # a `norm.NormKind`

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'B h w D'], dict]:
    """Returns maps of a 16th or 32nd of the size, and inserted extras."""
    given: dict[str, Any] = {'train': ctx.train, 'mask': ctx.mask}
    extras: dict = {}

    def layer(x: Array, features: int, size: int, name: str) -> Array:
      x = conv.Conv(
        features,
        (size, size),
        stride=2 if size > 1 else 1,
        padding=size // 2,
        dtype=self.dtype,
        name=f'{name}_0',
      )(x)
      bn = norm.layer(self.norm_kind, f'{name}_1', dtype=self.dtype)
      return norm.relu6(bn(x, **given))

    x = layer(x, scaled(STEM, self.width), 3, 'features_0')
    number, done = 1, Counter[int]()
    for index, group in enumerate(GROUPS):
      first = self.last_stride if index == LAST_STRIDE else group.stride
      features = scaled(group.channels, self.width)
      blocks = sum(g.blocks for g in GROUPS if g.stage == group.stage)
      for stride in (first, *(1,) * (group.blocks - 1)):
        x = Block(
          features,
          group.expansion,
          stride,
          self.dtype,
          self.norm_kind,
          name=f'features_{number}',
        )(x, **given)
        place = group.stage, done[group.stage], blocks
        x = inserted.after(self.plugins, place, x, ctx, extras)
        done[group.stage] += 1
        number += 1
    last = scaled(LAST, max(1.0, self.width))
    return layer(x, last, 1, f'features_{number}'), extras


def make(config: Model) -> MobileNetV2:
  """Returns a MobileNetV2 that computes in `config.dtype`."""
  return MobileNetV2(
    config.width,
    config.last_stride,
    jnp.dtype(config.dtype),
    norm_kind=config.norm,
  )
