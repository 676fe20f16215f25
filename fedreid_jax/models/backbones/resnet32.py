"""ResNet-32 for the 32x32 images of CIFAR."""

import jax.numpy as jnp

from fedreid_jax.models import cifar


def make(config) -> cifar.CifarResNet:
  """Returns the backbone in the type of computation of `config.model`."""
  return cifar.CifarResNet(dtype=jnp.dtype(config.dtype))
