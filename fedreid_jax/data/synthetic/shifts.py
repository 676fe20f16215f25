"""Shifts of a domain of one kind each: colour, resolution, viewpoint and more.

A domain `NAME:shift=KIND` has the persons of the domain NAME and differs from
it in one property, so that a method can be tested on each kind of shift alone.
The change is a function of the drawn parameters of a scene. Its strength is
fixed so that published weights keep a mAP of 20 to 60 on two domains without
training; `all` makes every change at once, with the clothes in full and the
others at a tenth of their strength.
"""

from typing import Literal, get_args

import jax.numpy as jnp

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance, body
from fedreid_jax.data.synthetic.appearance import Camera, Domain, Shot, between

Shift = Literal[
  'colour',
  'resolution',
  'viewpoint',
  'background',
  'clothing',
  'noise',
  'all',
]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
# A domain with the clothes of another: the number of the other one.
OTHER_FASHION = 101


def clothing(place: Domain, other: Domain) -> Domain:
  """Winter, and colours of another domain that are more alike.

  Half of the difference of a colour from the mean of the palette is left.
  """
  mean = other.palette.mean(axis=-2, keepdims=True)
  palette = mean + (other.palette - mean) / 2
  return place._replace(palette=palette, season=jnp.ones_like(place.season))


def scene(kind: str, camera: Camera, shot: Shot) -> tuple[Camera, Shot]:
  """The camera and the shot of a shifted domain; `clothing` changes neither."""
  strength = 0.1 if kind == 'all' else 1.0
  changes = {
    'colour': _colour,
    'resolution': _resolution,
    'viewpoint': _viewpoint,
    'background': _background,
    'noise': _noise,
  }
  for name, change in changes.items():
    if kind in (name, 'all'):
      camera, shot = change(camera, shot, strength)
  return camera, shot


def _uniform(seed: Array, salt: int) -> Array:
  """A uniform draw in [0, 1) that depends on the seed of a shot or a camera."""
  # The finaliser of MurmurHash3, which spreads each bit over all others.
  bits = seed.astype(jnp.uint32) ^ jnp.uint32(salt * 0x9E3779B9 & 0xFFFFFFFF)
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
  return body.unit(bits ^ (bits >> 16))


def _colour(camera: Camera, shot: Shot, strength: float):
  return appearance.recolour(camera, 1 + strength), shot


def _resolution(camera: Camera, shot: Shot, strength: float):
  return camera._replace(lines=camera.lines / (1 + 3 * strength)), shot


def _viewpoint(camera: Camera, shot: Shot, strength: float):
  """Cameras look from high above, and persons turn in every direction."""
  turn = between(_uniform(shot.seed, 1), -1.0, 1.0) * jnp.pi * strength
  return (
    camera._replace(
      elevation=camera.elevation + 0.8 * strength,
      horizon=camera.horizon - 0.4 * strength,
    ),
    shot._replace(
      yaw=shot.yaw + turn,
      lean=shot.lean + 0.25 * strength * (2 * _uniform(shot.seed, 2) - 1),
    ),
  )


def _background(camera: Camera, shot: Shot, strength: float):
  """Other scenery, and an occluder before most persons."""
  rows = appearance.PROPS  # of wall and ground
  tint = appearance.rgb(
    _uniform(camera.seed, 3),
    0.15 * strength,
    between(_uniform(camera.seed, 4), 0.85, 1.15),
  )
  infrared = jnp.ones(1)
  factor = jnp.concatenate([tint, infrared])
  materials = camera.materials
  materials = materials.at[:rows].set(
    jnp.clip(materials[:rows] * factor, 0.0, 1.0)
  )
  hidden = _uniform(shot.seed, 5) < 0.5 * strength
  kind = 1 + (3 * _uniform(shot.seed, 6)).astype(shot.occluder.dtype)
  return (
    camera._replace(materials=materials, scene=(camera.scene + 1) % 4),
    shot._replace(occluder=jnp.where(hidden, kind, shot.occluder)),
  )


def _noise(camera: Camera, shot: Shot, strength: float):
  return camera._replace(noise=camera.noise * (1 + 2 * strength)), shot
