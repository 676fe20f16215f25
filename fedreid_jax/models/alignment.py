"""CMAlign: a two-stream ResNet with reconstructions across modalities.

Park et al., "Learning by aligning: visible-infrared person re-identification
using cross-modal correspondences" (ICCV 2021). In training every image is
aligned with a random image of the same person and with one of another person,
both of the other modality, at the maps of stages 3 and 4.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Float32, Int, Key

from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array
from fedreid_jax.losses import metric
from fedreid_jax.models import resnet
from fedreid_jax.models.forward import ForwardCtx

TEMPERATURE = 50.0
LEVELS = ('layer3', 'layer4')
# Squared lengths and ranges below it count as zero.
TINY = 1e-12


class Alignment(NamedTuple):
  """Alignments of a batch for the losses.

  `comask` is the degree to which each of `P` positions shows a person in both
  the image and its matching image, from 0 to 1, without gradient. `positive`
  and `negative` are distances of positions to their reconstructions from the
  image of the same person and of another person.
  """

  comask: Float[Array, 'B P']
  positive: Float[Array, 'B P']
  negative: Float[Array, 'B P']
  has_positive: Bool[Array, ' B']
  has_negative: Bool[Array, ' B']


class CMAlign(resnet.ResNet):
  """A ResNet that in training also returns two reconstructions of an image."""

  modality_specific_stages: int = 1

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'RB h w D'], dict]:
    """Maps images to (`[R B, h, w, D]`, extras).

    In training with labels, for which it needs the key `dropout`, `R` is 3: the
    maps of the images, the outputs of stage 4 for the reconstructions at stage
    3, and the reconstructions at stage 4; extras hold an `Alignment` for each
    of `LEVELS`. Otherwise `R` is 1.
    """
    extras: dict = {}
    for number in range(4):
      x = self.part(number, x, ctx, extras)
    labels, modalities = ctx.labels, ctx.modalities
    if not ctx.train or labels is None or modalities is None:
      return self.part(4, x, ctx, extras), extras
    size = x.shape[0]
    real = jnp.ones(size, bool) if ctx.mask is None else ctx.mask
    draw = functools.partial(partners, labels, modalities, real)
    third, extras['layer3'] = align(x, *draw(self.make_rng('dropout')))
    x = jnp.concatenate([x, third])
    twice = ctx._replace(
      mask=jnp.tile(real, 2), modalities=jnp.tile(modalities, 2)
    )
    x = self.part(4, x, twice, extras)
    fourth, extras['layer4'] = align(x[:size], *draw(self.make_rng('dropout')))
    return jnp.concatenate([x, fourth]), extras


def partners(
  labels: Int[Array, ' B'],
  modalities: Int[Array, ' B'],
  real: Bool[Array, ' B'],
  key: Key[Array, ''],
) -> tuple[
  Int[Array, ' B'], Bool[Array, ' B'], Int[Array, ' B'], Bool[Array, ' B']
]:
  """Draws for every real image two real images of the other modality.

  The results are indices of images of the same person, whether each image has
  one, and both for images of another person.
  """
  other = modalities[:, None] != modalities[None]
  allowed = other & real[:, None] & real[None]
  same = labels[:, None] == labels[None]
  score = jax.random.uniform(key, (2, *same.shape))

  def pick(score, allowed):
    # The largest of independent draws is uniform among the allowed images.
    return jnp.where(allowed, score, -1.0).argmax(axis=1), allowed.any(axis=1)

  return *pick(score[0], allowed & same), *pick(score[1], allowed & ~same)


def align(
  maps: Float[Array, 'B h w D'],
  same: Int[Array, ' B'],
  has_same: Bool[Array, ' B'],
  other: Int[Array, ' B'],
  has_other: Bool[Array, ' B'],
) -> tuple[Float[Array, 'B h w D'], Alignment]:
  """Reconstructs the maps of images from the maps of their partners."""
  flat = maps.astype(jnp.float32).reshape(maps.shape[0], -1, maps.shape[-1])
  mask = jax.lax.stop_gradient(person_mask(flat))
  matching, warped = warp(flat, flat[same])
  seen = mask * jnp.einsum('bpq,bq->bp', matching, mask[same])
  _, from_other = warp(flat, flat[other])
  # Without a partner, `same` is an arbitrary image, which must not enter: the
  # map stays as it is.
  share = jnp.where(has_same[:, None], mask, 0.0)[..., None]
  rebuilt = share * warped + (1.0 - share) * flat
  return rebuilt.astype(maps.dtype).reshape(maps.shape), Alignment(
    comask=jax.lax.stop_gradient(_stretch(seen)),
    # A reconstruction differs from the map by the mask times this difference.
    positive=mask * _length(flat - warped),
    negative=mask * _length(flat - from_other),
    has_positive=has_same,
    has_negative=has_other,
  )


def warp(
  query: Float32[Array, 'B P D'], target: Float32[Array, 'B P2 D']
) -> tuple[Float32[Array, 'B P P2'], Float32[Array, 'B P D']]:
  """Matches positions of two maps, and warps the target to the query.

  The probability of a match is the softmax of 50 times the cosine over the
  positions of the target.
  """
  # The short floats of some accelerators would leave few digits: the cosines
  # are multiplied by 50 in an exponent, and a map is compared with its
  # reconstruction.
  einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
  cosine = einsum(
    'bpd,bqd->bpq', metric.direction(query), metric.direction(target)
  )
  matching = quotients.softmax(TEMPERATURE * cosine)
  return matching, einsum('bpq,bqd->bpd', matching, target)


def person_mask(maps: Float32[Array, 'B P D']) -> Float32[Array, 'B P']:
  """The norm over channels at each position, scaled to [0, 1]."""
  return _stretch(_length(maps))


def _stretch(values):
  low = values.min(axis=1, keepdims=True)
  reach = (values - low).max(axis=1, keepdims=True) + TINY
  return quotients.divide(values - low, reach)


def _length(x):
  # The gradient at zero is zero, not infinite.
  return jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis=-1), TINY))
