"""Second version of cameras and shots: fixed backgrounds, boxes of a detector.

The functions change the draws of `appearance`.
"""

import jax.numpy as jnp

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance, parameters, wardrobe
from fedreid_jax.data.synthetic.appearance import between, draws, rgb
from fedreid_jax.data.synthetic.parameters import (
  Camera,
  Domain,
  Identity,
  Shot,
)

# Streams of the root key, other than the first four of `appearance`.
DOMAIN, IDENTITY, CAMERA, SHOT = range(4, 8)
# Exponents that reduce the differences between the cameras of a domain, and
# between domains. Most garments are black, grey or white, so brightness tells
# persons apart.
OWN = 0.2
COMMON = 0.75
PROPS = 3  # an opening in the wall, a sign, a thing on the ground


def domain(key: Array, drawn: Domain, *ids: Array | int) -> Domain:
  """Replaces the palette of a domain with colours of the wardrobe."""
  d = draws(key, wardrobe.NUM_DRAWS, DOMAIN, *ids)
  return drawn._replace(palette=wardrobe.palette(d, drawn.season))


def identity(key: Array, drawn: Identity, *ids: Array | int) -> Identity:
  """Draws textures of garments anew, most of them plain."""
  d = draws(key, 2, IDENTITY, *ids)
  upper = jnp.array([0.42, 0.56, 0.63, 0.72, 0.84])
  lower = jnp.array([0.85, 0.90, 0.95])
  return drawn._replace(
    upper_texture=jnp.searchsorted(upper, d[0]),
    lower_texture=jnp.searchsorted(lower, d[1]),
  )


def camera(
  key: Array, place: Domain, drawn: Camera, *ids: Array | int
) -> Camera:
  """Adds a fixed background and a light from one side to a camera."""
  d = draws(key, 33, CAMERA, *ids)
  hue, saturation = 0.03 + 0.6 * d[0] ** 2, 0.04 + 0.16 * d[1]
  wall = rgb(hue, saturation, place.wall * between(d[2], 0.6, 1.3))
  leaves = rgb(between(d[0], 0.20, 0.34), 0.15 + 0.3 * d[1], 0.8 * place.wall)
  wall = jnp.where(place.scene == 1, leaves, wall)
  ground = rgb(
    between(d[3], 0.06, 0.16),
    0.14 * d[4],
    place.ground * between(d[5], 0.7, 1.2),
  )
  panes = rgb(between(d[6], 0.5, 0.65), 0.2 * d[7], between(d[8], 0.08, 0.7))
  sign = rgb(d[9], between(d[10], 0.1, 0.6), between(d[11], 0.25, 0.75))
  thing = rgb(between(d[12], 0.0, 0.6), 0.3 * d[13], between(d[14], 0.06, 0.3))
  scenery = jnp.stack(
    [wall, wall * between(d[15], 0.6, 1.2), ground, ground * 0.8]
    + [panes, sign, thing]
  )
  infrared = jnp.concatenate([drawn.materials[:, 3], 0.1 + 0.7 * d[16:19]])
  usual = appearance.gain(place.warmth)
  side = jnp.where(d[19] < 0.5, -1.0, 1.0)
  low = jnp.array([[-0.3, 0.10, 0.05, 0.12], [-0.3, 0.02, 0.03, 0.03]])
  high = jnp.array([[0.3, 0.35, 0.15, 0.30], [0.3, 0.35, 0.09, 0.10]])
  low = jnp.append(low, jnp.array([[-0.3, 0.52, 0.05, 0.05]]), axis=0)
  high = jnp.append(high, jnp.array([[0.3, 0.78, 0.20, 0.14]]), axis=0)
  return drawn._replace(
    materials=jnp.concatenate([scenery, infrared[:, None]], axis=1),
    light=side * between(d[20], 0.4, 1.0),
    noise=0.6 * drawn.noise,
    gain=usual**COMMON * (drawn.gain / usual) ** OWN,
    exposure=place.exposure**COMMON * (drawn.exposure / place.exposure) ** OWN,
    gamma=drawn.gamma**OWN,
    props=between(d[21:33].reshape(PROPS, 4), low, high),
  )


def shot(key: Array, place: Domain, drawn: Shot, *ids: Array | int) -> Shot:
  """Crops a person like a detector, with the scene in its place.

  A little more than half of the boxes are good. The others are cut at the feet
  or at the head, too large, or beside the person.
  """
  d = draws(key, 12, SHOT, *ids)
  box = jnp.searchsorted(jnp.array([0.56, 0.74, 0.81, 0.91]), d[0])
  low = jnp.array(
    [
      (0.90, -0.02, 0.00),  # a good one: scale, top, distance to the side
      (1.08, -0.03, 0.00),  # without feet
      (1.04, -0.12, 0.00),  # without the top of the head
      (0.74, 0.02, 0.00),  # too large
      (0.92, -0.02, 0.07),  # beside the person
    ]
  )[box]
  high = jnp.array(
    [
      (1.04, 0.03, 0.03),
      (1.28, 0.02, 0.04),
      (1.16, -0.06, 0.04),
      (0.86, 0.12, 0.06),
      (1.08, 0.03, 0.12),
    ]
  )[box]
  scale, top, aside = between(d[1:4], low, high)
  colour = wardrobe.choose(place, parameters.UPPER, d[4])
  street = rgb(between(d[5], 0.0, 0.6), 0.2 * d[6], between(d[7], 0.1, 0.6))
  passer_by = drawn.occluder == 3
  return drawn._replace(
    material=drawn.material.at[:3].set(jnp.where(passer_by, colour, street)),
    scale=scale,
    top=top,
    left=jnp.where(d[8] < 0.5, -aside, aside),
    exposure=between(d[9], 0.95, 1.05),
    drift=between(d[10], -0.1, 0.1),
  )
