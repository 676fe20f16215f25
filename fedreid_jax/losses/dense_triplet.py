"""Dense triplet loss on the positions of aligned maps.

Park et al., "Learning by aligning" (ICCV 2021).
"""

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array, Number
from fedreid_jax.losses import identity


def dense_triplet(
  comask: Float[Array, 'B P'],
  positive: Float[Array, 'B P'],
  negative: Float[Array, 'B P'],
  valid: Bool[Array, ' B'],
  margin: Number = 0.3,
) -> Float[Array, '']:
  """Returns the mean over images and positions of `A [d+ - d- + m]_+`.

  Args:
    comask: `A`, weight of each of `P` positions.
    positive: `d+`, distance to the map reconstructed from the same person.
    negative: `d-`, to the map reconstructed from another person.
    valid: images that count.
    margin: `m`.
  """
  hinge = jnp.maximum(positive - negative + margin, 0.0)
  return identity.masked_mean((comask * hinge).mean(axis=1), valid)
