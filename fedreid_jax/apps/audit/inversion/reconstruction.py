"""Reconstruction of images from a model and a goal for their features."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.apps.audit.inversion import inversion
from fedreid_jax.apps.audit.inversion import search as search_lib
from fedreid_jax.apps.audit.inversion.goals import Goal
from fedreid_jax.apps.audit.inversion.inversion import Weights
from fedreid_jax.apps.audit.inversion.search import Search
from fedreid_jax.training.loaded_run import LoadedRun


class Reconstructed(NamedTuple):
  """Reconstructed images.

  Attributes:
    photos: reconstructed pixels.
    noise: initial noise as pixels.
    losses: the `loss` and its parts, 'before' and 'after' the search, of images
      at full resolution that are not rolled.
  """

  photos: UInt8[np.ndarray, 'B H W ch']
  noise: UInt8[np.ndarray, 'B H W ch']
  losses: dict[str, dict[str, float]]


def reconstruct(
  run: LoadedRun, goal: Goal, weights: Weights, search: Search
) -> Reconstructed:
  """Reconstructs images whose features minimise the loss of a goal.

  Raises:
    ConfigError: for half the resolution with a model of a fixed size.
    DivergedError: when the loss is not finite.
  """
  if search.steps[0] and run.config.model.pool == 'flatten':
    raise errors.ConfigError(
      'pooling by flatten needs one resolution', '--steps', 'use 0,N'
    )
  loss = inversion.make_loss(run.model, run.variables, goal, weights)
  mean, std = (
    jnp.asarray(v, jnp.float32)
    for v in (run.federation.mean, run.federation.std)
  )
  # Limits of pixels in 0..1 after the normalisation of the network's input.
  limits = -mean / std, (1.0 - mean) / std
  shape = goal.num_images, *run.federation.image_shape
  images, noise = search_lib.reconstruct(loss, shape, limits, search)

  def photos(x):
    values = jnp.clip(jnp.round((x * std + mean) * 255.0), 0.0, 255.0)
    return np.asarray(values.astype(jnp.uint8))

  losses = {}
  for when, x in (('before', noise), ('after', images)):
    total, parts = jax.jit(loss)(x)
    losses[when] = {n: float(v) for n, v in {'loss': total, **parts}.items()}
  if not all(np.isfinite(v) for v in losses['after'].values()):
    raise errors.DivergedError(
      'the loss of reconstructed images is not finite', '--steps', 'try 0,N'
    )
  return Reconstructed(photos(images), photos(noise), losses)
