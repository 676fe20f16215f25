"""A small convolutional network for small images."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.models import conv, norm, pool


class ConvNet(nn.Module):
  """Stacks 3x3 convolution, batch normalisation, 2x2 max-pooling and ReLU.

  Attributes:
    features: output channels of each block.
    dtype: what it computes in.
  """

  features: tuple[int, ...] = (32, 64, 128, 128)
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self, x, *, train: bool, mask=None, modalities=None, labels=None
  ):
    """Maps `[B, H, W, ch]` to (maps halved by each block, no extras)."""
    del modalities, labels
    for i, features in enumerate(self.features, start=1):
      x = conv.Conv(
        features, (3, 3), padding=1, dtype=self.dtype, name=f'conv{i}'
      )(x)
      bn = norm.BatchNorm(dtype=self.dtype, name=f'bn{i}')
      # ReLU and maximum commute, and after the pooling there is less to do.
      x = norm.relu(pool.max_pool_2x2(bn(x, train=train, mask=mask)))
    return x, {}
