"""Gaussian noise on parameters.

Noise that is added without clipping what it is added to carries no
(epsilon, delta) guarantee of differential privacy.
"""

import jax

from fedreid_jax.core import partition
from fedreid_jax.core.types import Array, Flat


def gaussian(
  key: Array, leaves: Flat, scale: float, buffers: bool = False
) -> Flat:
  """Adds independent N(0, scale^2) to every element.

  Args:
    key: PRNG key.
    leaves: by name; a leaf's noise depends on the key and its name's place in
      sorted order.
    scale: standard deviation.
    buffers: running statistics too; a variance may then fall below zero.
  """
  params, _ = partition.trainable(leaves)
  chosen = leaves if buffers else params
  noisy = {
    name: leaves[name]
    + scale
    * jax.random.normal(jax.random.fold_in(key, place), leaves[name].shape)
    for place, name in enumerate(sorted(chosen))
  }
  return {**leaves, **noisy}
