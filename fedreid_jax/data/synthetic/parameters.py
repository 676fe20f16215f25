"""Parameters of a synthetic image: domain, identity, camera and shot.

`appearance` samples them, and `body` and `imaging` render them. Lengths on a
person are in body heights, and positions in an image are in image heights.
Angles are in radians. Materials are reflectances in [0, 1] of four channels
(red, green, blue and near infrared); a palette has the first three.
"""

from typing import NamedTuple

from fedreid_jax.core.types import Array

COLOURS = 9  # colours of the garments of a domain

# Rows of a material table; a row is the reflectance of one material.
SKIN, HAIR, UPPER, UPPER_ACCENT, LOWER, LOWER_ACCENT = range(6)
INNER, SHOE, BAG, HAT = range(6, 10)
WALL, WALL_DETAIL, GROUND, GROUND_DETAIL, OCCLUDER = range(10, 15)
PROP = 15  # the first prop of the second world
PROPS = GROUND_DETAIL - WALL + 1  # the row of a camera with its first prop


class Domain(NamedTuple):
  """Parameters that all cameras of a domain have in common.

  Fields are scalars unless a shape is given.
  """

  palette: Array  # [COLOURS, 3]; of the second world [4, PALETTE, 3]
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
  hem: Array  # height of its lower end, below the top of the head
  sleeve: Array  # fraction of the arm that is covered
  leg: Array  # height of the lower end of trousers or skirt
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

  materials: Array  # [4, 4], WALL .. GROUND_DETAIL, then one row per prop
  yaw: Array
  elevation: Array
  horizon: Array
  scene: Array
  pitch: Array  # distance between columns or tiles of the background
  gain: Array  # [3]
  mixing: Array  # weight of the grey value in every colour channel
  exposure: Array
  gamma: Array
  vignette: Array
  lines: Array
  noise: Array
  light: Array  # horizontal direction of the light, -1 .. 1
  props: Array  # [P, 4], centre and half size of objects before the wall
  seed: Array


class Shot(NamedTuple):
  """Parameters of one image: pose, framing, light and occluder."""

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
