"""Dense triplet loss on the positions of aligned maps.

Park et al., "Learning by aligning" (ICCV 2021).
"""

import jax.numpy as jnp

from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity


def dense_triplet(
  comask: Array,
  positive: Array,
  negative: Array,
  valid: Array,
  margin: float = 0.3,
) -> Array:
  """Returns the mean over images and positions of `A [d+ - d- + m]_+`.

  Args:
    comask: `A`, weight of a position, `[B, P]`.
    positive: `d+`, distance to the map reconstructed from the same person, `[B,
      P]`.
    negative: `d-`, to the map reconstructed from another person, `[B, P]`.
    valid: images that count, bool `[B]`.
    margin: `m`.
  """
  hinge = jnp.maximum(positive - negative + margin, 0.0)
  return identity.masked_mean((comask * hinge).mean(axis=1), valid)
