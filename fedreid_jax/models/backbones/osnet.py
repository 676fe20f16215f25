"""OSNet and OSNet-AIN, in the names of torchreid.

Zhou et al., "Omni-scale feature learning for person re-identification" (ICCV
2019), and "Learning generalisable omni-scale representations for person
re-identification" (TPAMI 2021). A block adds to its input

  conv3(sum_t G(L_t(conv1(x)))),  t = 1 .. 4,

where `L_t` is a stream of t lite 3x3 convolutions (1x1, then depthwise 3x3) and
`G` a gate of channels that the streams share. OSNet-AIN replaces the batch
normalisation of the stem by instance normalisation, and normalises the sum of
some blocks by image, at the places that its search found.

The papers' last layer, linear with 512 features, normalisation and ReLU, is the
neck `mapping` with `model.dropout=0`.
"""

import dataclasses
import functools
import operator
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm
from fedreid_jax.models.options import Model

CHANNELS = (64, 256, 384, 512)
STREAMS = 4
# Blocks of OSNet-AIN whose residual is normalised by image (TPAMI, table 1).
AIN = ((True, True), (False, True), (True, False))


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of OSNet."""

  kind: Annotated[Literal['plain', 'ain'], 'OSNet, or OSNet-AIN'] = 'plain'
  width: Annotated[float, Range(0.125, 2), 'multiplier of the channels'] = 1.0


class ConvLayer(nn.Module):
  """Convolution without bias, normalisation, and ReLU unless `linear`."""

  features: int
  size: int = 1
  stride: int = 1
  normalised: Literal['batch', 'instance', 'none'] = 'batch'
  linear: bool = False
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None,
  ) -> Float[Array, 'B h w D2']:
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, D2]`."""
    x = conv.Conv(
      self.features,
      (self.size, self.size),
      self.stride,
      padding=self.size // 2,
      dtype=self.dtype,
      name='conv',
    )(x)
    if self.normalised == 'batch':
      bn = norm.BatchNorm(dtype=self.dtype, name='bn')
      x = bn(x, train=train, mask=mask)
    elif self.normalised == 'instance':
      x = norm.instance_norm(x, 'bn')
    return x if self.linear else norm.relu(x)


class LightConv(nn.Module):
  """A linear 1x1 and a depthwise 3x3 convolution, normalisation and ReLU."""

  features: int
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None,
  ) -> Float[Array, 'B H W features']:
    """Maps maps to maps of the same size."""
    x = conv.Conv(self.features, (1, 1), dtype=self.dtype, name='conv1')(x)
    x = conv.Depthwise(dtype=self.dtype, name='conv2')(x)
    bn = norm.BatchNorm(dtype=self.dtype, name='bn')
    return norm.relu(bn(x, train=train, mask=mask))


class ChannelGate(nn.Module):
  """Multiplies channels by weights in (0, 1) that depend on their means."""

  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, 'B H W D']) -> Float[Array, 'B H W D']:
    """Gates maps."""
    d = x.shape[-1]
    # As convolutions, as in torchreid's files; one position each.
    weights = x.mean((1, 2), keepdims=True)
    fc = functools.partial(
      conv.Conv, kernel_size=(1, 1), use_bias=True, dtype=self.dtype
    )
    weights = norm.relu(fc(max(d // 16, 1), name='fc1')(weights))
    return x * nn.sigmoid(fc(d, name='fc2')(weights))


class Block(nn.Module):
  """Adds gated streams of four scales to the input."""

  features: int
  by_image: bool = False  # normalise the sum of the streams by image
  ain: bool = False  # name streams as in OSNet-AIN
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None,
  ) -> Float[Array, 'B H W features']:
    """Maps `[B, H, W, D]` to `[B, H, W, features]`."""
    inner, given = self.features // 4, {'train': train, 'mask': mask}
    layer = functools.partial(ConvLayer, dtype=self.dtype)
    y = layer(inner, name='conv1')(x, **given)
    gate = ChannelGate(self.dtype, name='gate')
    streams: list[Array] = []
    for t in range(STREAMS):
      z = y
      for i in range(t + 1):
        if self.ain:
          name = f'conv2_{t}_layers_{i}'
        else:
          name = f'conv2{"abcd"[t]}' + (f'_{i}' if t else '')
        z = LightConv(inner, self.dtype, name=name)(z, **given)
      streams.append(gate(z))
    total = functools.reduce(operator.add, streams)
    normalised = 'none' if self.by_image else 'batch'
    y = layer(self.features, name='conv3', linear=True, normalised=normalised)(
      total, **given
    )
    if self.by_image:
      y = norm.instance_norm(y, 'IN')
    if x.shape[-1] != self.features:
      x = layer(self.features, name='downsample', linear=True)(x, **given)
    return norm.relu(x + y)


class OSNet(nn.Module):
  """Maps images to features, without the pooling and the last layer."""

  ain: bool = False
  width: float = 1.0  # multiplier of `CHANNELS`
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'B h w D'], dict]:
    """Maps `[B, H, W, ch]` to (`[B, H / 16, W / 16, D]`, no extras)."""
    channels = [round(self.width * c) for c in CHANNELS]
    given = {'train': ctx.train, 'mask': ctx.mask}
    layer = functools.partial(ConvLayer, dtype=self.dtype)
    kind = 'instance' if self.ain else 'batch'
    x = layer(channels[0], name='conv1', size=7, stride=2, normalised=kind)(
      x, **given
    )
    x = conv.max_pool_3x3(x)
    for stage, features in enumerate(channels[1:]):
      for i in range(2):
        by_image = self.ain and AIN[stage][i]
        name = f'conv{stage + 2}_{i}'
        block = Block(features, by_image, self.ain, self.dtype, name=name)
        x = block(x, **given)
      if stage < 2:  # the last stage keeps its size
        name = f'pool{stage + 2}_0' if self.ain else f'conv{stage + 2}_2_0'
        x = layer(features, name=name)(x, **given)
        x = nn.avg_pool(x, (2, 2), (2, 2))
    return layer(channels[-1], name='conv5')(x, **given), {}


def make(config: Model, options: Options = Options()) -> OSNet:
  """Returns an OSNet that computes in `config.dtype`."""
  return OSNet(options.kind == 'ain', options.width, jnp.dtype(config.dtype))
