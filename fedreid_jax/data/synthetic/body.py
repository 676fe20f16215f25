"""Draws the parts of a pedestrian: limbs, trunk, head, hair and bags.

A body is a skeleton of joints in three dimensions, rotated by the walking
direction and projected on the image. Each point of the torso has an angle
around the body, so a print is seen only from the front and a backpack only from
behind. Layers are drawn from front to back: each takes a part of the remaining
light and adds it to the weight planes of its materials.
"""

from typing import NamedTuple

import jax.numpy as jnp

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance

# Kinds of texture; a block is a yoke over the chest, a print is on the chest.
PLAIN, STRIPES, COLUMNS, CHECKS, BLOCK, PRINT = range(6)
NO_BAG, BACKPACK, SHOULDER_BAG, HAND_BAG = range(4)
NO_HAT, CAP, BEANIE = range(3)
_BRIGHTNESS = {1.0: 0.95, -1.0: 0.75}  # of the near and the far limbs


def hash_grid(x: Array, y: Array, seed: Array) -> Array:
  """Hashes integer coordinates to uint32, at low cost per pixel."""
  # Coordinates can be negative. An int32 wraps to uint32; a float does not.
  h = x.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
  h = h ^ (y.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(0x85EBCA77))
  h = (h ^ seed) * jnp.uint32(0xC2B2AE3D)
  h = (h ^ (h >> 15)) * jnp.uint32(0x27D4EB2F)
  return h ^ (h >> 13)


def unit(bits: Array) -> Array:
  """Converts hashed bits to a number in [0, 1)."""
  # A float32 represents whole numbers below 2**24 exactly.
  return (bits >> 8).astype(jnp.float32) * (1 / 16777216.0)


def cloud(x: Array, y: Array, seed: Array) -> Array:
  """Smooth noise in [0, 1] with independent values at whole numbers."""
  i, j = jnp.floor(x), jnp.floor(y)
  u, v = x - i, y - j
  u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
  a, b = (unit(hash_grid(i + k, j, seed)) for k in (0, 1))
  c, d = (unit(hash_grid(i + k, j + 1, seed)) for k in (0, 1))
  return (a + (b - a) * u) * (1 - v) + (c + (d - c) * u) * v


def capsule(x, y, start, end, radius, tip):
  """Distance to a tapered capsule, and position along it."""
  dx, dy = end[0] - start[0], end[1] - start[1]
  along = (x - start[0]) * dx + (y - start[1]) * dy
  # Both ends can be projected on one point.
  along = jnp.clip(along / (dx * dx + dy * dy + 1e-6), 0, 1)
  across = jnp.hypot(x - start[0] - along * dx, y - start[1] - along * dy)
  return across - (radius + (tip - radius) * along), along


def ellipse(x, y, centre, wide, high):
  """First-order distance to an ellipse."""
  p, q = (x - centre[0]) / wide, (y - centre[1]) / high
  return (jnp.sqrt(p * p + q * q) - 1) * jnp.minimum(wide, high)


def wave(phase, period, pixel):
  """Smooth square wave in [0, 1]; `phase` counts periods."""
  # A wave of two pixels or less cannot be resolved and fades to its mean.
  contrast = jnp.clip(1.6 - 3.2 * pixel / period, 0, 1)
  level = jnp.clip(1.5 * jnp.sin(2 * jnp.pi * phase), -1, 1)
  return 0.5 + 0.5 * contrast * level


def blend(base: int, accent: int, pattern, shade):
  """Mix of two materials; `pattern` is the accent's fraction."""
  return (base, (1 - pattern) * shade), (accent, pattern * shade)


class Canvas:
  """Weight planes of the materials and the light that is left."""

  # One plane per material makes the colours one small product at the end.
  def __init__(self, pixel, materials: int):
    self.pixel, self.clear = pixel, 1.0
    self.planes: list = [0.0] * materials

  def cover(self, distance):
    """Coverage in [0, 1] of the shape `distance < 0`."""
    # The pixel can be the larger pixel of the camera; this blur costs nothing.
    return jnp.clip(0.5 - distance / self.pixel, 0, 1)

  def lay(self, coverage, *mix):
    """Draws a layer behind earlier ones; `mix` has pairs (material, weight)."""
    seen = self.clear * coverage
    for material, share in mix:
      self.planes[material] = self.planes[material] + seen * share
    self.clear = self.clear - seen


class Light(NamedTuple):
  """Light on a body."""

  side: Array  # horizontal direction, -1 .. 1
  folds: Array  # brightness of garments at each pixel
  contrast: float  # lit minus dark side of the torso
  roundness: float  # darkening from middle to edge of a limb

  def limb(self, factor: float, distance, thick):
    """Brightness of a limb at a signed distance from its edge."""
    shade = factor * self.folds
    # `roundness` is a Python number: the first version, where it is 0, compiles
    # without this shading.
    if not self.roundness:
      return shade
    inside = jnp.clip(-distance / thick, 0, 1)
    return shade * (1 - self.roundness * (1 - inside) ** 2)


class Pose(NamedTuple):
  """Orientation of a body relative to the camera."""

  cos: Array  # of the walking direction, 0 towards the camera
  sin: Array  # of the walking direction
  phase: Array  # of the gait
  tilt: Array  # elevation of the camera, lowers near points

  def project(self, across, ahead, height):
    """Projects a joint right of, ahead of and down the body's axis."""
    depth = ahead * self.cos - across * self.sin
    return across * self.cos + ahead * self.sin, height + self.tilt * depth


def _texture(kind, frequency, angle, y, pixel):
  """Fraction of the accent colour at an angle and a height."""
  rows = wave(y * frequency, 1 / frequency, pixel)
  columns = wave(angle * (frequency * 0.1), 1 / frequency, pixel)
  block = jnp.where(y < 0.30, 1.0, 0.0)
  return jnp.select(
    [kind == STRIPES, kind == COLUMNS, kind == CHECKS, kind == BLOCK],
    [rows, columns, rows * columns, block],
    0.0,
  )


def arm(canvas, person, pose, x, y, side, light):
  """Draws an arm: `side` is +1 for the near one, -1 for the far one."""
  across = _side(person, pose, side) * 0.098 * person.shoulders
  swing = _swing(person, pose, side)
  shoulder = pose.project(across, 0.0, 0.195)
  elbow = pose.project(across * 1.12, -0.55 * swing, 0.345)
  hand = pose.project(across * 1.12, -1.1 * swing + 0.02, 0.485)
  thick = 0.025 * person.build
  upper, along = capsule(x, y, shoulder, elbow, 1.2 * thick, thick)
  fore, beyond = capsule(x, y, elbow, hand, thick, 0.019)
  place = jnp.where(upper < fore, 0.5 * along, 0.5 + 0.5 * beyond)
  edge = jnp.minimum(upper, fore)
  shade = light.limb(_BRIGHTNESS[side], edge, thick)
  # A long sleeve ends at the wrist, where the hand begins.
  sleeve = jnp.clip((0.93 * person.sleeve - place) * 30, 0, 1)
  rings = jnp.where(person.upper_texture == STRIPES, STRIPES, PLAIN)
  pattern = _texture(rings, person.frequency, 0.0, y, canvas.pixel)
  canvas.lay(
    canvas.cover(edge),
    *blend(appearance.UPPER, appearance.UPPER_ACCENT, pattern, sleeve * shade),
    (appearance.SKIN, (1 - sleeve) * shade),
  )


def leg(canvas, person, pose, x, y, side, light):
  """Draws a leg and its shoe: `side` is +1 for near, -1 for far."""
  across = _side(person, pose, side) * 0.045
  swing = _swing(person, pose, side)
  hip = pose.project(across, 0.0, 0.52)
  knee = pose.project(across, 0.75 * swing + 0.015, 0.725)
  ankle = pose.project(across, swing - 0.01, 0.945)
  toe = pose.project(1.2 * across, swing + 0.065, 0.962)
  thick = 0.038 * person.build
  thigh, _ = capsule(x, y, hip, knee, 1.35 * thick, thick)
  shin, _ = capsule(x, y, knee, ankle, thick, 0.65 * thick)
  shoe, _ = capsule(x, y, ankle, toe, 0.026, 0.020)
  edge = jnp.minimum(thigh, shin)
  shade = light.limb(_BRIGHTNESS[side], edge, thick)
  clothed = jnp.clip((person.leg - y) * 60, 0, 1) * (1 - person.skirt)
  pattern = _texture(
    person.lower_texture, 1.3 * person.frequency, x * 10, y, canvas.pixel
  )
  canvas.lay(canvas.cover(shoe), (appearance.SHOE, shade))
  canvas.lay(
    canvas.cover(edge),
    *blend(appearance.LOWER, appearance.LOWER_ACCENT, pattern, clothed * shade),
    (appearance.SKIN, (1 - clothed) * shade),
  )


def _side(person, pose, side):
  return person.build * side * jnp.where(pose.sin < 0, 1.0, -1.0)


def _swing(person, pose, side):
  return person.stride * jnp.sin(pose.phase) * side


def trunk(canvas, person, pose, x, y, light):
  """Draws the torso with its print and opening, the neck, hips or skirt."""
  knots = jnp.array([0.14, 0.165, 0.19, 0.30, 0.38, 0.50, 0.70])
  wide = jnp.array([0.034, 0.055, 0.100, 0.094, 0.083, 0.090, 0.094])
  deep = jnp.array([0.034, 0.045, 0.055, 0.064, 0.060, 0.066, 0.070])
  # The profile is one number per row, so that it is not interpolated per pixel.
  wide = jnp.interp(y[:, 0], knots, wide)[:, None] * person.shoulders
  deep = jnp.interp(y[:, 0], knots, deep)[:, None]
  half = jnp.hypot(wide * pose.cos, deep * pose.sin) * person.build
  aside = jnp.clip(x / half, -1, 1)
  # Angle of this point around the body, 0 at the chest, in [-pi, pi].
  angle = jnp.arctan2(aside, jnp.sqrt(1.0001 - aside * aside))
  angle = angle - jnp.arctan2(pose.sin, pose.cos)
  angle = angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))
  shade = (0.86 + light.contrast * light.side * aside) * light.folds
  pattern = _texture(
    person.upper_texture, person.frequency, angle, y, canvas.pixel
  )
  size = 0.1 * person.print_size
  motif = ellipse(angle * 0.1, y, (0.0, 0.29), size, 0.055)
  printed = jnp.where(person.upper_texture == PRINT, canvas.cover(motif), 0.0)
  pattern = jnp.maximum(pattern, printed)
  opening = canvas.cover((jnp.abs(angle) - person.opening) * half)
  inner = jnp.where(person.opening > 0, opening, 0.0)
  torso = jnp.maximum(0.15 - y, y - person.hem)
  canvas.lay(
    canvas.cover(jnp.maximum(jnp.abs(x) - half, torso)),
    *blend(
      appearance.UPPER, appearance.UPPER_ACCENT, pattern, shade * (1 - inner)
    ),
    (appearance.INNER, shade * inner),
  )
  neck, _ = capsule(x, y, (0.0, 0.12), (0.0, 0.175), 0.030, 0.034)
  canvas.lay(canvas.cover(neck), (appearance.SKIN, 0.78))
  flare = 1 + 0.9 * person.skirt * jnp.clip(y - 0.5, 0, 0.3)
  end = jnp.where(person.skirt > 0, person.leg, 0.57)
  hips = jnp.maximum(0.46 - y, y - end)
  pattern = _texture(
    person.lower_texture, 1.3 * person.frequency, angle, y, canvas.pixel
  )
  canvas.lay(
    canvas.cover(jnp.maximum(jnp.abs(x) - half * flare, hips)),
    *blend(appearance.LOWER, appearance.LOWER_ACCENT, pattern, shade),
  )


def head(canvas, person, pose, x, y, light):
  """Draws hat, hair and face."""
  cos, sin, _, tilt = pose
  nod = 0.012 * sin
  centre = (nod, 0.075 + 0.05 * tilt)
  wide = jnp.hypot(0.047 * cos, 0.056 * sin)
  skull = ellipse(x, y, centre, wide, 0.066)
  aside = jnp.clip((x - nod) / wide, -1, 1)
  # Direction of a point of the head: 1 for the nose, -1 for the nape.
  ahead = cos * jnp.sqrt(1.0001 - aside * aside) + sin * aside
  line = 0.045 + 0.09 * jnp.clip(0.45 - ahead, 0, 1)
  shade = 0.9 + 0.15 * light.side * aside
  brim = (0.085 * sin, 0.040 + 0.055 * cos * tilt + 0.012 * cos)
  peak, _ = capsule(x, y, (0.0, 0.035), brim, 0.018, 0.010)
  crown = jnp.maximum(skull - 0.008, y - 0.048)
  hat = jnp.where(person.hat == CAP, jnp.minimum(crown, peak), crown)
  canvas.lay(
    canvas.cover(hat) * jnp.where(person.hat != NO_HAT, 1.0, 0.0),
    (appearance.HAT, shade),
  )
  hairy = jnp.where(person.hair > 0, canvas.cover(y - line), 0.0)
  canvas.lay(
    canvas.cover(skull - 0.004 * hairy),
    (appearance.HAIR, hairy * shade),
    (appearance.SKIN, (1 - hairy) * shade),
  )


def mane(canvas, person, pose, x, y, near):
  """Draws long hair if it is on the side of the camera, as `near` says."""
  wide = jnp.hypot(0.050 * pose.cos, 0.040 * pose.sin)
  back = -0.026 * pose.sin
  fall, _ = capsule(
    x, y, (back, 0.06), (back, 0.03 + person.hair), wide, wide * 0.9
  )
  shown = (person.hair > 0.10) & ((pose.cos < 0) == near)
  canvas.lay(jnp.where(shown, canvas.cover(fall), 0.0), (appearance.HAIR, 0.85))


def bag(canvas, person, pose, x, y, near):
  """Draws the bag if it is on the side of the camera, as `near` says."""
  cos, sin = pose.cos, pose.sin
  size, is_pack = person.bag_size, person.bag == BACKPACK
  pack = jnp.maximum(
    jnp.abs(x + 0.085 * sin) - jnp.hypot(0.080 * cos, 0.050 * sin) * size,
    jnp.abs(y - 0.29) - 0.095 * size,
  )
  low = jnp.where(person.bag == HAND_BAG, 0.56, 0.47)
  side = 0.125 * person.build * person.bag_side
  hang = jnp.maximum(
    jnp.abs(x - side * cos) - jnp.hypot(0.028 * cos, 0.070 * sin) * size,
    jnp.abs(y - low) - 0.055 * size,
  )
  # From straight ahead, a bag at the side is still in front of the legs.
  ahead = jnp.where(is_pack, -cos, 0.12 - side * sin)
  shown = (person.bag != NO_BAG) & ((ahead > 0) == near)
  cover = canvas.cover(jnp.where(is_pack, pack, hang) - 0.006)
  rim = 0.85 + 0.2 * wave(y * 8.0, 0.125, canvas.pixel)
  canvas.lay(jnp.where(shown, cover, 0.0), (appearance.BAG, rim))


def straps(canvas, person, pose, x, y):
  """Draws the straps of a bag: two on the chest, or one across it."""
  half = jnp.hypot(0.06 * pose.cos, 0.02 * pose.sin)
  pair = jnp.maximum(jnp.abs(jnp.abs(x) - half), y - 0.33)
  down = 0.45 + 5 * x * jnp.sign(pose.cos) * person.bag_side
  slung = jnp.abs(y - 0.17 - 0.28 * down) * 0.6
  slung = jnp.maximum(slung, jnp.abs(x) - 0.10)
  is_pack = person.bag == BACKPACK
  strap = jnp.maximum(jnp.where(is_pack, pair, slung) - 0.009, 0.165 - y)
  worn = (is_pack & (pose.cos > 0)) | (person.bag == SHOULDER_BAG)
  canvas.lay(jnp.where(worn, canvas.cover(strap), 0.0), (appearance.BAG, 0.8))
