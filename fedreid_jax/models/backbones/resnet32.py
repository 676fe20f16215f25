"""ResNet-32 for the 32x32 images of CIFAR."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm
from fedreid_jax.models.options import Model


class Block(nn.Module):
  """Adds two 3x3 convolutions to its input.

  If the stride is 2, the shortcut takes every second position and leaves new
  channels at zero, without parameters (option A).
  """

  features: int
  stride: int
  dtype: Any

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w features']:
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, features]`."""
    y = x
    for i, stride in enumerate((self.stride, 1), start=1):
      if i == 2:
        y = norm.relu(y)
      y = conv.Conv(
        self.features,
        (3, 3),
        stride,
        padding=1,
        dtype=self.dtype,
        name=f'conv{i}',
      )(y)
      bn = norm.BatchNorm(dtype=self.dtype, name=f'bn{i}')
      y = bn(y, train=train, mask=mask)
    x = x[:, :: self.stride, :: self.stride]
    new = self.features - x.shape[-1]
    return norm.relu(y + jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, new))))


class CifarResNet(nn.Module):
  """Maps small images to features, without the pooling and the classifier.

  He et al., "Deep residual learning for image recognition", section 4.2; the
  default is their ResNet-32.
  """

  features: tuple[int, ...] = (16, 32, 64)  # later stages halve the map
  blocks: int = 5  # of a stage, `n` of 6 n + 2 layers
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'B h w D'], dict]:
    """Maps `[B, H, W, ch]` to (`[B, H / 4, W / 4, D]`, no extras)."""
    x = conv.Conv(
      self.features[0], (3, 3), padding=1, dtype=self.dtype, name='conv1'
    )(x)
    bn = norm.BatchNorm(dtype=self.dtype, name='bn1')
    x = norm.relu(bn(x, train=ctx.train, mask=ctx.mask))
    for stage, features in enumerate(self.features, start=1):
      for i in range(self.blocks):
        stride = 2 if stage > 1 and i == 0 else 1
        block = Block(features, stride, self.dtype, name=f'layer{stage}_{i}')
        x = block(x, train=ctx.train, mask=ctx.mask)
    return x, {}


def make(config: Model) -> CifarResNet:
  """Returns a ResNet-32 that computes in `config.dtype`."""
  return CifarResNet(dtype=jnp.dtype(config.dtype))
