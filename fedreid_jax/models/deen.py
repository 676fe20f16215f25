"""DEEN: a two-stream ResNet with two more embeddings of every image.

Zhang and Wang, "Diverse embedding expansion network and low-light cross-
modality benchmark for visible-infrared person re-identification" (CVPR 2023).
Blocks of multi-stage feature aggregation (MFA) follow the first three stages;
diverse embedding expansion (DEE) precedes the last.
"""

import functools
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array
from fedreid_jax.models import resnet
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm

DILATIONS = (1, 2, 3)
NUM_BRANCHES = 2
DROPOUT = 0.01

kaiming_fan_in = nn.initializers.variance_scaling(2.0, 'fan_in', 'normal')


class ChannelNonLocal(nn.Module):
  """Adds attention between the channels of a map and of an earlier map.

  The result is `x + BN(W(g a^T))` with `a = theta^T phi / d`, `[d, d]`, and `d`
  the number of channels of the earlier map. `theta` is a pointwise convolution
  of the map to `d` channels, `phi` and `g` are those of the earlier map.
  """

  stride: int  # of the stage between the two maps
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    earlier: Float[Array, 'B H W d'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D']:
    """Adds the attention to maps."""
    channels = earlier.shape[-1]
    pointwise = functools.partial(_pointwise, dtype=self.dtype)
    theta = _flat(pointwise(channels, name='theta')(x))
    phi = _flat(pointwise(channels, stride=self.stride, name='phi')(earlier))
    # The released code has the stride in the last convolution instead: the
    # result is the same, since no layer between mixes positions.
    g = pointwise(channels, stride=self.stride, name='g')(earlier)
    attention = jnp.einsum('bnc,bnd->bcd', theta, phi) / channels
    y = jnp.einsum('bhwd,bcd->bhwc', g, attention)
    y = pointwise(x.shape[-1], name='out')(y)
    return x + _silent_norm(self.dtype)(y, train=train, mask=mask)


class PositionNonLocal(nn.Module):
  """Adds attention between the positions of a map and of an earlier map.

  The result is `x + BN(W(a g))` with `a = theta phi^T / N` over the `N`
  positions of the earlier map.
  """

  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    earlier: Float[Array, 'B H W d'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D']:
    """Adds the attention to maps."""
    channels = max(earlier.shape[-1] // 2, 1)
    pointwise = functools.partial(_pointwise, dtype=self.dtype)
    theta = pointwise(channels, name='theta')(x)
    phi = _flat(pointwise(channels, name='phi')(earlier))
    g = _flat(pointwise(channels, name='g')(earlier))
    # Without a softmax (theta phi^T) g = theta (phi^T g), and the matrix of all
    # pairs of positions is never formed.
    context = jnp.einsum('bnc,bnd->bcd', phi, g) / phi.shape[1]
    y = jnp.einsum('bhwc,bcd->bhwd', theta, context)
    y = pointwise(x.shape[-1], name='out')(y)
    return x + _silent_norm(self.dtype)(y, train=train, mask=mask)


class Expansion(nn.Module):
  """Diverse embedding expansion: the maps, then two expansions of each.

  An expansion is the mean of three dilated 3x3 convolutions to a quarter of the
  channels, a ReLU, and a pointwise convolution to all channels.
  """

  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, 'B h w D']) -> Float[Array, '3*B h w D']:
    """Concatenates maps and expansions along the batch."""
    channels = x.shape[-1]
    maps = [x]
    for branch in range(1, NUM_BRANCHES + 1):
      squeezed = [
        conv.Conv(
          max(channels // 4, 1),
          (3, 3),
          padding=dilation,
          dilation=dilation,
          dtype=self.dtype,
          kernel_init=kaiming_fan_in,
          name=f'squeeze{branch}_{dilation}',
        )(x)
        for dilation in DILATIONS
      ]
      y = norm.relu(jnp.asarray(sum(squeezed)) / len(squeezed))
      expand = _pointwise(
        channels, dtype=self.dtype, init=kaiming_fan_in, name=f'expand{branch}'
      )
      maps.append(expand(y))
    return jnp.concatenate(maps)


class DEEN(resnet.ResNet):
  """A ResNet that in training also returns two expansions of every image."""

  modality_specific_stages: int = 1

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'RB h w D'], dict]:
    """Maps images to (`[R B, h, w, D]`, extras), `R` 3 in training, else 1."""
    extras: dict = {}
    x = self.part(0, x, ctx, extras)
    for stage in (1, 2, 3):
      earlier, x = x, self.part(stage, x, ctx, extras)
      across_channels = ChannelNonLocal(
        1 if stage == 1 else 2, self.dtype, name=f'mfa{stage}_channel'
      )
      across_positions = PositionNonLocal(
        self.dtype, name=f'mfa{stage}_position'
      )
      x = across_channels(x, earlier, train=ctx.train, mask=ctx.mask)
      x = across_positions(x, earlier, train=ctx.train, mask=ctx.mask)
    # Called in evaluation too, because the network is initialised with
    # `train=False` and needs all parameters; unused results are not compiled.
    every = Expansion(self.dtype, name='dee')(x)
    if ctx.train:
      x = nn.Dropout(DROPOUT, deterministic=False)(every)
      mask, modalities = (
        None if rows is None else jnp.tile(rows, 1 + NUM_BRANCHES)
        for rows in (ctx.mask, ctx.modalities)
      )
      ctx = ctx._replace(mask=mask, modalities=modalities)
    return self.part(4, x, ctx, extras), extras


def _pointwise(
  features, *, dtype, name, stride=1, init=conv.uniform
) -> conv.Conv:
  return conv.Conv(
    features,
    (1, 1),
    stride,
    use_bias=True,
    dtype=dtype,
    kernel_init=init,
    name=name,
  )


def _silent_norm(dtype) -> norm.BatchNorm:
  # Scale zero, so that a pretrained trunk is unchanged at the start.
  return norm.BatchNorm(
    dtype=dtype, scale_init=nn.initializers.zeros, name='bn'
  )


def _flat(maps):
  return maps.reshape(maps.shape[0], -1, maps.shape[-1])
