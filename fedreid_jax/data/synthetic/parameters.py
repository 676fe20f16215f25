"""The parameters of a synthetic image: domain, identity, camera and shot.

`appearance` draws them, and `body` and `imaging` render them. Lengths are in
body heights, angles in radians, colours are reflectances in [0, 1] with four
channels: red, green, blue and near infrared.
"""

from typing import NamedTuple

from fedreid_jax.core.types import Array

COLOURS = 9  # colours of the garments of a domain

# Rows of a material table.
SKIN, HAIR, UPPER, UPPER_ACCENT, LOWER, LOWER_ACCENT = range(6)
INNER, SHOE, BAG, HAT = range(6, 10)
WALL, WALL_DETAIL, GROUND, GROUND_DETAIL, OCCLUDER = range(10, 15)
MATERIALS = 15


class Domain(NamedTuple):
  """A place and a season; scalars unless a shape is given."""

  palette: Array  # [COLOURS, 3]
  season: Array
  scene: Array
  ground: Array
  wall: Array
  hue: Array
  warmth: Array
  exposure: Array
  lines: Array
  elevation: Array
  hidden: Array


class Identity(NamedTuple):
  """Parameters of a person that all cameras have in common."""

  materials: Array  # [10, 4], SKIN .. HAT
  height: Array
  build: Array
  shoulders: Array
  hair: Array  # length below the top of the head
  upper_texture: Array
  frequency: Array  # of the textures, waves in a body height
  lower_texture: Array
  hem: Array  # where the upper garment ends
  sleeve: Array  # fraction of the arm that is covered
  leg: Array  # where the lower garment ends
  skirt: Array
  opening: Array  # half angle of an open front
  print_size: Array
  bag: Array  # 0 none, 1 backpack, 2 shoulder bag, 3 hand bag
  bag_size: Array
  bag_side: Array
  hat: Array  # 0 none, 1 cap, 2 beanie
  stride: Array


class Camera(NamedTuple):
  """Position of a camera and properties of its sensor."""

  materials: Array  # [4, 4], WALL .. GROUND_DETAIL
  yaw: Array
  elevation: Array
  horizon: Array
  scene: Array
  pitch: Array  # spacing of the scene's structure
  gain: Array  # [3]
  mixing: Array  # leak between colour channels
  exposure: Array
  gamma: Array
  vignette: Array
  lines: Array
  noise: Array
  light: Array  # side the light comes from, -1 .. 1
  seed: Array


class Shot(NamedTuple):
  """One moment of one person seen by one camera."""

  material: Array  # [4], OCCLUDER
  yaw: Array
  phase: Array
  left: Array
  top: Array
  scale: Array
  lean: Array
  exposure: Array
  shade: Array  # strength of a shadow edge across the image
  shade_edge: Array
  occluder: Array  # 0 none, 1 post, 2 barrier, 3 passer-by
  occluder_place: Array
  drift: Array  # position of the person along the scene
  seed: Array
