"""Goals for the features of reconstructed images.

`identities` is the attack of figure 5 of DFH: the attacker has the mean feature
mu_j of each identity j (IFS), and these are the weights of a classifier W of
features f,

  CE(W f, y), W_j = mu_j.

By default f is scaled to the length 30 and mu_j to the length 1. A scale of 0
is the published form. The paper writes that the means initialise the
classifier; here they stay fixed.

`features` asks that each image n has a given feature t_n, with a = 10,

  a mean_n |f_n - t_n|^2 / |t_n|^2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedreid_jax.core import types
from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity

# The cross-entropy of features that are not scaled saturates.
SCALE = 30.0
# a is chosen so that the goal outweighs the batch statistics.
FACTOR = 10.0


class Goal(NamedTuple):
  """The part of the objective that depends on the attack.

  Attributes:
    name: name of the part.
    num_images: number of images, `B`.
    loss: function of the outputs of the network for these images.
  """

  name: str
  num_images: int
  loss: Callable[[types.Outputs], Float[Array, '']]


def identities(
  means: Float[Array | np.ndarray, 'C D'],
  labels: Int[Array | np.ndarray, ' B'],
  space: str = 'feature',
  scale: float = SCALE,
) -> Goal:
  """Returns the goal that images show persons with given mean features.

  Args:
    means: mean feature of each identity.
    labels: identity of each image.
    space: field of `Outputs` with the features.
    scale: length of features and means; 0 leaves them unchanged.
  """
  rows, labels = jnp.asarray(means), jnp.asarray(labels)
  valid = jnp.ones(len(labels), bool)

  def unit(x: Float[Array, 'M D']) -> Float[Array, 'M D']:
    # The maximum is below the root, whose gradient at zero is infinite.
    lengths = jnp.sqrt(jnp.maximum(jnp.square(x).sum(1), 1e-12))
    return x / lengths[:, None]

  if scale:
    rows = unit(rows)

  def loss(outputs: types.Outputs) -> Float[Array, '']:
    feature = getattr(outputs, space)
    if scale:
      feature = scale * unit(feature)
    return identity.cross_entropy(feature @ rows.T, labels, valid)

  return Goal('identity', len(labels), loss)


def features(
  wanted: Float[Array | np.ndarray, 'B D'], space: str = 'feature'
) -> Goal:
  """Returns the goal that images have given features.

  Args:
    wanted: feature of each image.
    space: field of `Outputs` with the features.
  """
  rows = jnp.asarray(wanted)
  sizes = jnp.maximum(jnp.square(rows).sum(1), 1e-12)

  def loss(outputs: types.Outputs) -> Float[Array, '']:
    gaps = jnp.square(getattr(outputs, space) - rows).sum(1)
    return FACTOR * (gaps / sizes).mean()

  return Goal('feature', len(rows), loss)
