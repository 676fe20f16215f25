"""Loss on the distances of features from the centres of their identities."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedreid_jax.core.types import Array
from fedreid_jax.losses import identity, similarity

Kind = Literal['cos', 'edu', 'mixed']


def rectification(
  features: Float[Array, 'B D'],
  labels: Int[Array, ' B'],
  valid: Bool[Array, ' B'],
  centres: Float[Array, 'C D'],
  present: Bool[Array, ' C'],
  kind: Kind,
) -> Float[Array, '']:
  """Returns the mean distance of images from the centres of their identities.

  Jiang et al., L2RW, eq. 6. `cos` is `1 - cos(z_i, c_{y_i})`, `edu` is
  `|z_i - c_{y_i}|^2 / D`, `mixed` is half of each (table 3). Images whose
  identity has no centre are left out; the loss is 0 if none is left. A centre
  of zeros has `cos = 0` to all images.

  Args:
    features: `z`; their length matters to `edu` only.
    labels: identities.
    valid: real rows.
    centres: `c`, constants.
    present: mask of identities with a centre.
    kind: one of `Kind`.
  """
  target = jax.lax.stop_gradient(centres)[labels]
  angle = 1.0 - (similarity.unit(features) * similarity.unit(target)).sum(
    axis=1
  )
  square = jnp.square(features - target).mean(axis=1)
  each = {'cos': angle, 'edu': square, 'mixed': 0.5 * (angle + square)}[kind]
  return identity.masked_mean(each, valid & present[labels])
