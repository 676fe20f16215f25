"""ResNet-18, 34, 50 and 101 in torchvision's topology and names.

He et al., "Deep residual learning for image recognition"; the stride of a
bottleneck is on its 3x3 convolution (version 1.5). Modules have torchvision's
names with `_` for its `.`: `layer1_0/downsample_0/kernel`.

In the IBN-a networks the first normalisation of each block of the stages 1 to 3
is `norm.HalfInstanceNorm`, with the names of the published files,
`layer1_0/bn1/IN/scale`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, inserted, norm

# Whether blocks are bottlenecks, and the number of blocks of each stage.
DEPTHS = {
  'resnet18': (False, (2, 2, 2, 2)),
  'resnet34': (False, (3, 4, 6, 3)),
  'resnet50': (True, (3, 4, 6, 3)),
  'resnet101': (True, (3, 4, 23, 3)),
  'resnet50_ibn_a': (True, (3, 4, 6, 3)),
  'resnet101_ibn_a': (True, (3, 4, 23, 3)),
}
# Number of stages, counted from the first, that normalise half of the channels
# by image.
IBN_STAGES = {'resnet50_ibn_a': 3, 'resnet101_ibn_a': 3}


class Block(nn.Module):
  """Adds two 3x3 convolutions, or a 1x1-3x3-1x1 bottleneck, to its input."""

  features: int
  stride: int
  bottleneck: bool  # its last convolution is four times wider
  dtype: Any
  norm_kind: str = 'batch'  # a `norm.NormKind`
  ibn: bool = False  # normalise half of the first channels by image

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D2']:
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, D2]`."""

    def normalised(x, features, size, stride, name, norm_name):
      x = conv.Conv(
        features,
        (size, size),
        stride,
        padding=size // 2,
        dtype=self.dtype,
        name=name,
      )(x)
      if self.ibn and norm_name == 'bn1':
        bn = norm.HalfInstanceNorm(self.norm_kind, self.dtype, name=norm_name)
      else:
        bn = norm.layer(self.norm_kind, norm_name, dtype=self.dtype)
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
  """Maps images to features, without the pooling and the classifier."""

  depth: str = 'resnet50'  # one of `DEPTHS`
  width: float = 1.0  # multiplier of the 64 base channels
  small_stem: bool = False  # 3x3, stride 1, no max-pooling, for small images
  last_stride: int = 2  # of the last stage; 1 keeps a finer map
  dtype: Any = jnp.float32
  # Number of parts, counted from the stem, that each modality has separately;
  # names of the infrared ones begin with `infrared_`.
  modality_specific_stages: int = 0
  plugins: tuple[inserted.Rule, ...] = ()  # stages are counted from 1
  norm_kind: str = 'batch'  # a `norm.NormKind`

  @property
  def base(self) -> int:
    """Channels of the stem and of the first stage's 3x3 convolutions."""
    return round(64 * self.width)

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, '_ h w D'], dict]:
    """Returns maps and the extras of inserted modules."""
    extras: dict = {}
    for part in range(1 + len(DEPTHS[self.depth][1])):
      x = self.part(part, x, ctx, extras)
    return x, extras

  def part(
    self,
    part: int,
    x: Float[Array, 'B H W D'],
    ctx: ForwardCtx,
    extras: dict,
  ) -> Float[Array, 'B h w D2']:
    """Runs the stem (0) or a stage (1 to 4) within a compact module."""

    def run(x: Array, mask: Array | None, prefix: str) -> Array:
      return self._part(part, x, ctx._replace(mask=mask), prefix, extras)

    separate = part < self.modality_specific_stages
    return by_modality(run, x, ctx.mask, ctx.modalities, separate)

  def _part(
    self, part: int, x: Array, ctx: ForwardCtx, prefix: str, extras: dict
  ) -> Array:
    if part == 0:
      return self._stem(x, ctx, prefix)
    bottleneck, depths = DEPTHS[self.depth]
    stride = (1, 2, 2, self.last_stride)[part - 1]
    for i in range(depths[part - 1]):
      x = Block(
        self.base * 2 ** (part - 1),
        stride if i == 0 else 1,
        bottleneck,
        self.dtype,
        self.norm_kind,
        part <= IBN_STAGES.get(self.depth, 0),
        name=f'{prefix}layer{part}_{i}',
      )(x, train=ctx.train, mask=ctx.mask)
      place = part, i, depths[part - 1]
      x = inserted.after(self.plugins, place, x, ctx, extras)
    return x

  def _stem(self, x: Array, ctx: ForwardCtx, prefix: str) -> Array:
    size, stride = (3, 1) if self.small_stem else (7, 2)
    x = conv.Conv(
      self.base,
      (size, size),
      stride,
      padding=size // 2,
      dtype=self.dtype,
      name=f'{prefix}conv1',
    )(x)
    bn = norm.layer(self.norm_kind, f'{prefix}bn1', dtype=self.dtype)
    x = norm.relu(bn(x, train=ctx.train, mask=ctx.mask))
    if not self.small_stem:
      x = conv.max_pool_3x3(x)
    return x


def by_modality(
  run: Callable[..., Float[Array, ' B *out']],
  x: Float[Array, ' B *shape'],
  mask: Bool[Array, ' B'] | None,
  modalities: Int[Array, ' B'] | None,
  modality_specific: bool,
) -> Float[Array, ' B *out']:
  """Runs a part once, or once for each modality if it is modality-specific.

  Args:
    run: `(x, mask, prefix) -> x`.
    modalities: 0 visible, 1 infrared; None counts as visible.
  """
  if not modality_specific:
    return run(x, mask, '')
  if modalities is None:
    modalities = jnp.zeros(x.shape[0], jnp.int32)
  infrared = modalities == 1
  real = jnp.ones_like(infrared) if mask is None else mask
  # Both parts run on all images and the results are selected: which images
  # are infrared is traced, and shapes are fixed. Masks keep their statistics
  # apart.
  visible = run(x, real & ~infrared, '')
  other = run(x, real & infrared, 'infrared_')
  return jnp.where(norm.per_sample(infrared, visible.ndim), other, visible)
