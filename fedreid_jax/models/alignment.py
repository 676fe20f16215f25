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

from fedreid_jax.core.types import Array
from fedreid_jax.models import resnet

TEMPERATURE = 50.0
LEVELS = ('layer3', 'layer4')
TINY = 1e-12


class Alignment(NamedTuple):
  """Alignments of a batch for the losses, float32 and bool.

  Attributes:
    comask: how much a position shows a person in both the image and its
      matching image, from 0 to 1, no gradient, `[B, P]` for `P` positions.
    positive: distance of each position to its reconstruction from the image of
      the same person, `[B, P]`.
    negative: to its reconstruction from the image of another person, `[B, P]`.
    has_positive: whether the batch had an image of the same person, `[B]`.
    has_negative: whether it had one of another person, `[B]`.
  """

  comask: Array
  positive: Array
  negative: Array
  has_positive: Array
  has_negative: Array


class CMAlign(resnet.ResNet):
  """A ResNet that in training also returns two reconstructions of an image."""

  modality_specific_stages: int = 1

  @nn.compact
  def __call__(
    self, x, *, train: bool, mask=None, modalities=None, labels=None
  ):
    """Maps `[B, H, W, ch]` to (`[R B, h, w, D]`, extras).

    In training with labels `R` is 3: the images, the outputs of stage 4 for the
    reconstructions of stage 3, the reconstructions of stage 4; extras hold an
    `Alignment` for each of `LEVELS`. Otherwise it is 1.

    Args:
      x: images.
      train: use batch statistics and align; needs the key `dropout`.
      mask: real images, bool `[B]`, or None.
      modalities: 0 visible, 1 infrared, int32 `[B]`.
      labels: int32 `[B]`.
    """
    extras: dict = {}

    def part(number, x, mask, modalities=modalities):
      run = functools.partial(self.part, number, train=train, extras=extras)
      return resnet.by_modality(
        run, x, mask, modalities, number < self.modality_specific_stages
      )

    for number in range(4):
      x = part(number, x, mask)
    if not train or labels is None or modalities is None:
      return part(4, x, mask), extras
    size = x.shape[0]
    real = jnp.ones(size, bool) if mask is None else mask
    draw = functools.partial(partners, labels, modalities, real)
    third, extras['layer3'] = align(x, *draw(self.make_rng('dropout')))
    x = part(
      4,
      jnp.concatenate([x, third]),
      jnp.tile(real, 2),
      jnp.tile(modalities, 2),
    )
    fourth, extras['layer4'] = align(x[:size], *draw(self.make_rng('dropout')))
    return jnp.concatenate([x, fourth]), extras


def partners(labels, modalities, real, key):
  """Draws for every image two images of the other modality.

  Args:
    labels: int32 `[B]`.
    modalities: int32 `[B]`.
    real: bool `[B]`; padded images have no partner and are no partner.
    key: PRNG key.

  Returns:
    Indices int32 `[B]` of an image of the same person and whether there is
    one, bool `[B]`; the same of an image of another person.
  """
  other = modalities[:, None] != modalities[None]
  allowed = other & real[:, None] & real[None]
  same = labels[:, None] == labels[None]
  score = jax.random.uniform(key, (2, *same.shape))

  def pick(score, allowed):
    return jnp.where(allowed, score, -1.0).argmax(axis=1), allowed.any(axis=1)

  return *pick(score[0], allowed & same), *pick(score[1], allowed & ~same)


def align(maps, same, has_same, other, has_other):
  """Reconstructs maps from those of their partners.

  An image without a partner of the same person is its own reconstruction.

  Args:
    maps: `[B, h, w, D]`.
    same: index of the image of the same person, int32 `[B]`.
    has_same: bool `[B]`.
    other: index of the image of another person, int32 `[B]`.
    has_other: bool `[B]`.

  Returns:
    Reconstructions `[B, h, w, D]` and an `Alignment`.
  """
  flat = maps.astype(jnp.float32).reshape(maps.shape[0], -1, maps.shape[-1])
  mask = jax.lax.stop_gradient(person_mask(flat))
  matching, warped = warp(flat, flat[same])
  seen = mask * jnp.einsum('bpq,bq->bp', matching, mask[same])
  _, from_other = warp(flat, flat[other])
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


def warp(query, target):
  """Matches every position of one map with all positions of another.

  Args:
    query: float32 `[B, P, D]`.
    target: `[B, Q, D]`.

  Returns:
    Matching probabilities `[B, P, Q]`, softmax over the target's positions of
    50 times the cosine, and the target warped to the query, `[B, P, D]`.
  """
  cosine = jnp.einsum('bpd,bqd->bpq', _unit(query), _unit(target))
  matching = jax.nn.softmax(TEMPERATURE * cosine)
  return matching, jnp.einsum('bpq,bqd->bpd', matching, target)


def person_mask(maps):
  """Returns the channels' norm at each position, from 0 to 1.

  Args:
    maps: float32 `[B, P, D]`.
  """
  return _stretch(_length(maps))


def _stretch(values):
  low = values.min(axis=1, keepdims=True)
  return (values - low) / ((values - low).max(axis=1, keepdims=True) + TINY)


def _length(x):
  # The gradient at zero is zero, not infinite.
  return jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis=-1), TINY))


def _unit(x):
  square = jnp.square(x).sum(axis=-1, keepdims=True)
  # A position after ReLU may be zero; its similarity to all others is zero.
  active = square > TINY
  return jnp.where(active, x * jax.lax.rsqrt(jnp.where(active, square, 1)), 0)
