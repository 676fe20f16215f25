"""A small convolutional network for small images."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.models import conv, norm, pool


class ConvNet(nn.Module):
  """Stacks 3x3 convolution, batch normalisation, ReLU, 2x2 max-pooling.

  Attributes:
    features: output channels of each block.
    dtype: what it computes in.
  """

  features: tuple[int, ...] = (32, 64, 128, 128)
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, *, train: bool, mask=None):
    """Maps `[B, H, W, ch]` to `[B, H / 2^L, W / 2^L, features[-1]]`."""
    for i, width in enumerate(self.features):
      x = conv.Conv(
        width, (3, 3), padding=1, dtype=self.dtype, name=f'conv{i + 1}'
      )(x)
      x = norm.BatchNorm(dtype=self.dtype, name=f'bn{i + 1}')(
        x, train=train, mask=mask
      )
      # ReLU and maximum commute, and after the pooling there is less to do.
      x = nn.relu(pool.max_pool_2x2(x))
    return x
