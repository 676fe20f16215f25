"""A small convolutional network for small images."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Float

from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, inserted, norm


class ConvNet(nn.Module):
  """Stacks 3x3 convolution, normalisation, 2x2 max-pooling and ReLU."""

  features: tuple[int, ...] = (32, 64, 128, 128)  # of each block
  dtype: Any = jnp.float32
  plugins: tuple[inserted.Rule, ...] = ()  # each block is a stage
  norm_kind: str = 'batch'  # a `norm.NormKind`

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'B h w D'], dict]:
    """Maps `[B, H, W, ch]` to (maps halved by each block, extras)."""
    extras: dict = {}
    for i, features in enumerate(self.features, start=1):
      x = conv.Conv(
        features, (3, 3), padding=1, dtype=self.dtype, name=f'conv{i}'
      )(x)
      bn = norm.layer(self.norm_kind, f'bn{i}', dtype=self.dtype)
      # ReLU and maximum commute, and the ReLU is cheaper after the pooling.
      x = norm.relu(conv.max_pool_2x2(bn(x, train=ctx.train, mask=ctx.mask)))
      x = inserted.after(self.plugins, (i, 0, 1), x, ctx, extras)
    return x, extras
