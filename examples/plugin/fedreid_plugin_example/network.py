"""A small network of strided convolutions."""

import dataclasses
from typing import Annotated, Any

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.core.options import Checked, Range
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Sizes of the network."""

  channels: Annotated[int, Range(1), 'of the first block, then doubled'] = 8
  blocks: Annotated[int, Range(1, 4), 'each halves the image'] = 2


class Strided(nn.Module):
  """Stacks 3x3 convolution of stride 2, batch normalisation and ReLU.

  `fedreid_jax.models.layers.norm.BatchNorm` excludes padded samples (`mask`)
  from the statistics of a batch and supports the re-estimation of moments.

  Attributes:
    channels: of the first block, doubled by each of the others.
    blocks: number of them.
    dtype: of the computation.
  """

  channels: int
  blocks: int
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, ctx: ForwardCtx):
    """Maps `[B, H, W, ch]` to (maps `[B, h, w, D]`, extras)."""
    for k in range(self.blocks):
      x = conv.Conv(
        self.channels * 2**k,
        (3, 3),
        stride=2,
        padding=1,
        dtype=self.dtype,
        name=f'conv{k}',
      )(x)
      bn = norm.BatchNorm(dtype=self.dtype, name=f'bn{k}')
      x = norm.relu(bn(x, train=ctx.train, mask=ctx.mask))
    return x, {}


def make(config, options: Options = Options()) -> nn.Module:
  """Builds the backbone.

  Args:
    config: `config.model`; pooling, neck and classifier follow by themselves.
    options: fields of the group `network`.
  """
  return Strided(options.channels, options.blocks, jnp.dtype(config.dtype))
