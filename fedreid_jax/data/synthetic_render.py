"""Draws a pedestrian of the synthetic world: signed distances, front to back.

A body is a skeleton of joints in three dimensions, turned by the walking
direction and projected on the image; every part is the signed distance to a
tapered capsule, an ellipse or a trunk, made a coverage by the width of a pixel
(or of the camera's own pixel, if that is larger: blur costs nothing). A point
of the torso knows the angle around the body it shows, so a print is seen only
from the front and a backpack only from behind.

Layers are laid front to back: each takes what light is left and adds it to the
weight plane of its material, so that colour is one small product at the end.
"""

import jax.numpy as jnp

from fedreid_jax.core.types import Array
from fedreid_jax.data import synthetic_world as world

_PHI = 0.61803398875


def _hash(x: Array, y: Array, seed: Array) -> Array:
  """Hashes whole coordinates to uint32, cheaply enough for every pixel."""
  h = x.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
  h = h ^ (y.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(0x85EBCA77))
  h = (h ^ seed) * jnp.uint32(0xC2B2AE3D)
  h = (h ^ (h >> 15)) * jnp.uint32(0x27D4EB2F)
  return h ^ (h >> 13)


def _unit(bits: Array) -> Array:
  return (bits >> 8).astype(jnp.float32) * (1 / 16777216.0)


def _cloud(x: Array, y: Array, seed: Array) -> Array:
  """Smooth noise of unit spacing in [0, 1]."""
  i, j = jnp.floor(x), jnp.floor(y)
  u, v = x - i, y - j
  u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
  a, b = (_unit(_hash(i + k, j, seed)) for k in (0, 1))
  c, d = (_unit(_hash(i + k, j + 1, seed)) for k in (0, 1))
  return (a + (b - a) * u) * (1 - v) + (c + (d - c) * u) * v


def _capsule(x, y, start, end, radius, tip):
  """Distance to a tapered capsule, and the place along it in [0, 1]."""
  dx, dy = end[0] - start[0], end[1] - start[1]
  along = (x - start[0]) * dx + (y - start[1]) * dy
  along = jnp.clip(along / (dx * dx + dy * dy + 1e-6), 0, 1)
  across = jnp.hypot(x - start[0] - along * dx, y - start[1] - along * dy)
  return across - (radius + (tip - radius) * along), along


def _ellipse(x, y, centre, wide, high):
  """First-order distance to an ellipse."""
  p, q = (x - centre[0]) / wide, (y - centre[1]) / high
  return (jnp.sqrt(p * p + q * q) - 1) * jnp.minimum(wide, high)


def _wave(phase, period, pixel):
  """Square-ish wave in [0, 1] that fades to its mean below the resolution."""
  contrast = jnp.clip(1.6 - 3.2 * pixel / period, 0, 1)
  wave = jnp.clip(1.5 * jnp.sin(2 * jnp.pi * phase), -1, 1)
  return 0.5 + 0.5 * contrast * wave


class _Canvas:
  """Weight planes of the materials and the light that is still to be used."""

  def __init__(self, pixel):
    self.pixel, self.clear = pixel, 1.0
    self.planes: list = [0.0] * world.MATERIALS

  def cover(self, distance):
    """Coverage in [0, 1] of the shape inside `distance < 0`."""
    return jnp.clip(0.5 - distance / self.pixel, 0, 1)

  def lay(self, coverage, *mix):
    """Lays a layer behind those laid before; `mix` is (material, share)."""
    seen = self.clear * coverage
    for material, share in mix:
      self.planes[material] = self.planes[material] + seen * share
    self.clear = self.clear - seen


def _two(base, accent, pattern, shade):
  return (base, (1 - pattern) * shade), (accent, pattern * shade)


def _texture(kind, frequency, angle, y, pixel):
  """Share of the accent colour: plain, stripes, columns, checks, block."""
  rows = _wave(y * frequency, 1 / frequency, pixel)
  columns = _wave(angle * (frequency * 0.1), 1 / frequency, pixel)
  block = jnp.where(y < 0.30, 1.0, 0.0)
  return jnp.select(
    [kind == 1, kind == 2, kind == 3, kind == 4],
    [rows, columns, rows * columns, block],
    0.0,
  )


def _limbs(canvas, person, pose, x, y, side, shade):
  """Lays one arm and one leg: `side` +1 the near one, -1 the far one."""
  cos, sin, phase, tilt = pose
  lateral = jnp.where(sin < 0, 1.0, -1.0) * side
  swing = person.stride * jnp.sin(phase) * side

  def project(across, ahead, height):
    depth = ahead * cos - across * sin
    return across * cos + ahead * sin, height + tilt * depth

  build = person.build
  wide = 0.098 * build * person.shoulders * lateral
  shoulder = project(wide, 0.0, 0.195)
  elbow = project(wide * 1.12, -0.55 * swing, 0.345)
  hand = project(wide * 1.12, -1.1 * swing + 0.02, 0.485)
  upper, along = _capsule(x, y, shoulder, elbow, 0.030 * build, 0.025 * build)
  fore, beyond = _capsule(x, y, elbow, hand, 0.025 * build, 0.019)
  place = jnp.where(upper < fore, 0.5 * along, 0.5 + 0.5 * beyond)
  arm = jnp.minimum(upper, fore)
  sleeve = jnp.clip((0.93 * person.sleeve - place) * 30, 0, 1)
  pattern = _texture(
    jnp.where(person.upper_texture == 1, 1, 0),
    person.upper_frequency,
    0.0,
    y,
    canvas.pixel,
  )
  cloth = sleeve * shade
  arm_mix = (
    *_two(world.UPPER, world.UPPER_ACCENT, pattern, cloth),
    (world.SKIN, (1 - sleeve) * shade),
  )

  hip = project(0.045 * build * lateral, 0.0, 0.52)
  knee = project(0.047 * build * lateral, 0.75 * swing + 0.015, 0.725)
  ankle = project(0.045 * build * lateral, 1.0 * swing - 0.01, 0.945)
  toe = project(0.055 * build * lateral, 1.0 * swing + 0.065, 0.962)
  thigh, _ = _capsule(x, y, hip, knee, 0.052 * build, 0.038 * build)
  shin, _ = _capsule(x, y, knee, ankle, 0.037 * build, 0.024 * build)
  leg = jnp.minimum(thigh, shin)
  shoe, _ = _capsule(x, y, ankle, toe, 0.026, 0.020)
  clothed = jnp.clip((person.leg - y) * 60, 0, 1) * (1 - person.skirt)
  pattern = _texture(
    person.lower_texture,
    person.upper_frequency * 1.3,
    x * 10,
    y,
    canvas.pixel,
  )
  leg_mix = (
    *_two(world.LOWER, world.LOWER_ACCENT, pattern, clothed * shade),
    (world.SKIN, (1 - clothed) * shade),
  )
  canvas.lay(canvas.cover(arm), *arm_mix)
  canvas.lay(canvas.cover(shoe), (world.SHOE, shade))
  canvas.lay(canvas.cover(leg), *leg_mix)


def _trunk(canvas, person, pose, x, y, light, folds):
  """Lays the torso, its texture, print and opening, then skirt and hips."""
  cos, sin, _, _ = pose
  knots = jnp.array([0.14, 0.165, 0.19, 0.30, 0.38, 0.50, 0.70])
  wide = jnp.array([0.034, 0.055, 0.100, 0.094, 0.083, 0.090, 0.094])
  deep = jnp.array([0.034, 0.045, 0.055, 0.064, 0.060, 0.066, 0.070])
  wide = jnp.interp(y[:, 0], knots, wide)[:, None] * person.build
  deep = jnp.interp(y[:, 0], knots, deep)[:, None] * person.build
  half = jnp.hypot(wide * person.shoulders * cos, deep * sin)
  aside = jnp.clip(x / half, -1, 1)
  angle = jnp.arctan2(aside, jnp.sqrt(1.0001 - aside * aside))
  # Angle of this point around the body, 0 at the chest, within [-pi, pi).
  angle = angle - jnp.arctan2(sin, cos)
  angle = angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))
  shade = (0.86 + 0.22 * light * aside) * folds
  torso = jnp.maximum(jnp.abs(x) - half, jnp.maximum(0.15 - y, y - person.hem))
  pattern = _texture(
    person.upper_texture, person.upper_frequency, angle, y, canvas.pixel
  )
  logo = _ellipse(angle * 0.1, y, (0.0, 0.29), 0.1 * person.print_size, 0.055)
  printed = jnp.where(person.upper_texture == 5, 1.0, 0.0)
  pattern = jnp.maximum(pattern, printed * canvas.cover(logo))
  inner = canvas.cover((jnp.abs(angle) - person.opening) * half)
  inner = jnp.where(person.opening > 0, inner, 0.0)
  canvas.lay(
    canvas.cover(torso),
    *_two(world.UPPER, world.UPPER_ACCENT, pattern, shade * (1 - inner)),
    (world.INNER, shade * inner),
  )
  flare = 1 + 0.9 * person.skirt * jnp.clip(y - 0.5, 0, 0.3)
  end = jnp.where(person.skirt > 0, person.leg, 0.57)
  hips = jnp.maximum(jnp.abs(x) - half * flare, jnp.maximum(0.46 - y, y - end))
  pattern = _texture(
    person.lower_texture,
    person.upper_frequency * 1.3,
    angle,
    y,
    canvas.pixel,
  )
  return hips, _two(world.LOWER, world.LOWER_ACCENT, pattern, shade)


def _head(canvas, person, pose, x, y, light):
  """Lays hat, hair, face and neck."""
  cos, sin, _, tilt = pose
  nod = 0.012 * sin
  centre = (nod, 0.075 + 0.05 * tilt)
  wide = jnp.hypot(0.047 * cos, 0.056 * sin)
  skull = _ellipse(x, y, centre, wide, 0.066)
  aside = jnp.clip((x - nod) / wide, -1, 1)
  # How far a point of the head looks ahead: 1 the nose, -1 the nape.
  ahead = cos * jnp.sqrt(1.0001 - aside * aside) + sin * aside
  line = 0.045 + 0.09 * jnp.clip(0.45 - ahead, 0, 1)
  shade = 0.9 + 0.15 * light * aside
  brim = (0.085 * sin, 0.040 + 0.055 * cos * tilt + 0.012 * cos)
  peak, _ = _capsule(x, y, (0.0, 0.035), brim, 0.018, 0.010)
  crown = jnp.maximum(skull - 0.008, y - 0.048)
  hat = jnp.where(person.hat == 1, jnp.minimum(crown, peak), crown)
  canvas.lay(
    canvas.cover(hat) * jnp.where(person.hat > 0, 1.0, 0.0), (world.HAT, shade)
  )
  bald = jnp.where(person.hair > 0, 0.0, 1.0)
  hairy = jnp.clip((line - y) / canvas.pixel + 0.5, 0, 1) * (1 - bald)
  canvas.lay(
    canvas.cover(skull - 0.004 * hairy),
    (world.HAIR, hairy * shade),
    (world.SKIN, (1 - hairy) * shade),
  )
  neck, _ = _capsule(x, y, (0.0, 0.12), (0.0, 0.175), 0.030, 0.034)
  return neck, shade


def _mane(canvas, person, pose, x, y, gate):
  cos, sin, _, _ = pose
  wide = jnp.hypot(0.050 * cos, 0.040 * sin)
  back = -0.026 * sin
  fall, _ = _capsule(
    x, y, (back, 0.06), (back, 0.03 + person.hair), wide, wide * 0.9
  )
  long = jnp.where(person.hair > 0.10, gate, 0.0)
  canvas.lay(canvas.cover(fall) * long, (world.HAIR, 0.85))


def _bags(canvas, person, pose, x, y, front):
  """Lays the bag if it hangs on this side: `front` True the near side."""
  cos, sin, _, tilt = pose
  size = person.bag_size
  pack = jnp.maximum(
    jnp.abs(x + 0.085 * sin) - jnp.hypot(0.080 * cos, 0.050 * sin) * size,
    jnp.abs(y - 0.29) - 0.095 * size,
  )
  low = jnp.where(person.bag == 3, 0.56, 0.47)
  side = 0.125 * person.build * person.bag_side
  hang = jnp.maximum(
    jnp.abs(x - side * cos) - jnp.hypot(0.028 * cos, 0.070 * sin) * size,
    jnp.abs(y - low) - 0.055 * size,
  )
  is_pack = person.bag == 1
  depth = jnp.where(is_pack, -cos, -side * sin * 20 + 0.3)
  gate = (person.bag > 0) & ((depth > 0) if front else (depth <= 0))
  rim = 0.85 + 0.2 * _wave(y * 8.0, 0.125, canvas.pixel)
  canvas.lay(
    canvas.cover(jnp.where(is_pack, pack, hang) - 0.006)
    * jnp.where(gate, 1.0, 0.0),
    (world.BAG, rim),
  )
  if front:
    # Straps: two over the chest, or one across it.
    half = jnp.hypot(0.06 * cos, 0.02 * sin)
    two = jnp.abs(jnp.abs(x) - half) + jnp.where(y > 0.33, 1.0, 0.0)
    slope = (x * jnp.sign(cos) * person.bag_side + 0.09) / 0.2
    one = jnp.abs(y - 0.17 - 0.28 * slope) * 0.6 + jnp.where(
      jnp.abs(x) > 0.10, 1.0, 0.0
    )
    strap = jnp.where(is_pack, two, one) - 0.009
    strap = jnp.maximum(strap, 0.165 - y)
    worn = ((person.bag == 1) & (cos > 0)) | (person.bag == 2)
    canvas.lay(
      canvas.cover(strap) * jnp.where(worn, 1.0, 0.0), (world.BAG, 0.8)
    )


def _occluder(canvas, shot, x, y):
  place = shot.occluder_place - 0.5
  post = jnp.abs(x - 0.35 * place) - 0.028
  barrier = 0.62 + 0.25 * shot.occluder_place - y
  bars = _wave(x * 14.0, 0.07, canvas.pixel)
  beside = jnp.sign(place) * 0.17 + 0.16 * place
  body, _ = _capsule(x, y, (beside, 0.26), (beside, 0.9), 0.085, 0.05)
  head = _ellipse(x, y, (beside, 0.11), 0.048, 0.064)
  passer = jnp.minimum(body, head)
  distance = jnp.select(
    [shot.occluder == 1, shot.occluder == 2, shot.occluder == 3],
    [post, barrier, passer],
    1.0,
  )
  cover = canvas.cover(distance)
  cover = cover * jnp.where(shot.occluder == 2, 0.55 + 0.45 * bars, 1.0)
  canvas.lay(cover, (world.OCCLUDER, 0.7 + 0.25 * y))


def _scenery(canvas, camera, shot, x, y, feet):
  """Lays everything that is left: ground, shadow, wall or foliage."""
  u = x + shot.drift
  low = jnp.clip(y - camera.horizon, 0.0, 2.0)
  ground = jnp.clip(0.5 + low / canvas.pixel, 0, 1)
  depth = 0.35 / (low + 0.15)
  tiles = _wave(u * depth / camera.pitch, camera.pitch / depth, canvas.pixel)
  tiles = tiles * _wave(depth / camera.pitch, 0.3 * camera.pitch, canvas.pixel)
  grain = _cloud(u * 9, y * 18, camera.seed)
  shadow = _ellipse(x, y, feet, 0.17, 0.035)
  dark = 1 - 0.5 * jnp.clip(0.5 - shadow * 25, 0, 1)
  shade = dark * (0.8 + 0.35 * grain)
  canvas.lay(
    ground, *_two(world.GROUND, world.GROUND_DETAIL, 0.7 * tiles, shade)
  )
  leaves = _cloud(u * 22, y * 22, camera.seed) * 0.6 + 0.4 * grain
  columns = _wave(u / camera.pitch, camera.pitch, canvas.pixel)
  rows = _wave(y / (0.8 * camera.pitch), 0.8 * camera.pitch, canvas.pixel)
  structure = jnp.select(
    [camera.scene == 0, camera.scene == 1, camera.scene == 2],
    [columns * rows, jnp.clip(3 * leaves - 1, 0, 1), columns],
    0.4 * grain,
  )
  canvas.lay(
    1.0,
    *_two(world.WALL, world.WALL_DETAIL, structure, 0.75 + 0.35 * grain),
  )


def _picture(person, camera, shot, height, width, infrared):
  """Composes the scene: reflected light, a list of three `[H, W]`."""
  y = (jnp.arange(height, dtype=jnp.float32)[:, None] + 0.5) / height
  x = (jnp.arange(width, dtype=jnp.float32)[None, :] + 0.5 - width / 2) / height
  size = 0.93 * shot.scale * person.height
  lens = jnp.maximum(1 / height, 1 / camera.lines)
  # The background stays where it is; the crop around the person jitters.
  by = (y - 0.035 - shot.top) / size
  bx = (x - shot.left) / size + shot.lean * (by - 0.5)
  canvas = _Canvas(lens / size)
  theta = camera.yaw + shot.yaw
  pose = (jnp.cos(theta), jnp.sin(theta), shot.phase, camera.elevation)
  # Seen from above a head is larger than the feet.
  bx = bx / (1 + 0.5 * camera.elevation * (0.5 - by))
  folds = 0.86 + 0.28 * _cloud(bx * 14, by * 9, shot.seed)
  behind = jnp.where(pose[0] < 0, 1.0, 0.0)
  _occluder(canvas, shot, x, y)
  _mane(canvas, person, pose, bx, by, behind)
  neck, shade = _head(canvas, person, pose, bx, by, camera.light)
  _bags(canvas, person, pose, bx, by, True)
  _limbs(canvas, person, pose, bx, by, 1.0, 0.95 * folds)
  hips, hips_mix = _trunk(canvas, person, pose, bx, by, camera.light, folds)
  canvas.lay(canvas.cover(neck), (world.SKIN, 0.85 * shade))
  canvas.lay(canvas.cover(hips), *hips_mix)
  _mane(canvas, person, pose, bx, by, 1 - behind)
  _bags(canvas, person, pose, bx, by, False)
  _limbs(canvas, person, pose, bx, by, -1.0, 0.75 * folds)
  feet = (shot.left, 0.035 + shot.top + 0.965 * size)
  _scenery(canvas, camera, shot, x, y, feet)
  table = jnp.concatenate(
    [person.materials, camera.materials, shot.material[None]]
  )
  paint = jnp.where(infrared, table[:, 3:], table[:, :3])
  return [
    sum(
      (plane * paint[m, c] for m, plane in enumerate(canvas.planes)),
      jnp.zeros((height, width)),
    )
    for c in range(3)
  ]


def _develop(planes, camera, shot, infrared):
  """Turns reflected light into what the sensor stores: uint8 `[H, W, 3]`."""
  height, width = planes[0].shape
  y = (jnp.arange(height, dtype=jnp.float32)[:, None] + 0.5) / height
  x = (jnp.arange(width, dtype=jnp.float32)[None, :] + 0.5 - width / 2) / height
  edge = jnp.clip(0.5 + 8 * (x * 0.7 + y - shot.shade_edge), 0, 1)
  # An infrared camera brings its own lamp: a bright middle, no shadows.
  radius = x * x * 4 + (y - 0.45) * (y - 0.45)
  fall = jnp.where(infrared, 0.5 + camera.vignette, camera.vignette)
  shadow = 1 - jnp.where(infrared, 0.0, shot.shade) * edge
  light = camera.exposure * shot.exposure * shadow * (1 - fall * radius)
  grey = (planes[0] + planes[1] + planes[2]) / 3
  # Grain has the size of the sensor's own pixels.
  lines = jnp.minimum(camera.lines * 1.5, height)
  column, row = jnp.floor((x + 4) * lines), jnp.floor(y * lines)
  channels = []
  for c in range(3):
    value = planes[c] + camera.mixing * (grey - planes[c])
    value = value * light * jnp.where(infrared, 1.0, camera.gain[c])
    value = jnp.clip(value, 1e-4, 1.5) ** (camera.gamma * 0.8)
    stream = jnp.where(infrared, 0, c).astype(jnp.uint32)
    bits = _hash(column, row, shot.seed + jnp.uint32(0x51ED27) * stream)
    high = (bits >> 16).astype(jnp.float32)
    grain = (high + (bits & 0xFFFF).astype(jnp.float32)) / 65536 - 1
    channels.append(value + 2.4 * camera.noise * grain)
  image = jnp.stack(channels, axis=-1)
  return (jnp.clip(image, 0, 1) * 255 + 0.5).astype(jnp.uint8)


def photograph(
  person: world.Identity,
  camera: world.Camera,
  shot: world.Shot,
  infrared: Array,
  *,
  height: int,
  width: int,
) -> Array:
  """Draws one person before one camera.

  Args:
    person: who is seen.
    camera: what sees.
    shot: the moment.
    infrared: whether the camera is an infrared one, scalar bool.
    height: H, pixels.
    width: W, pixels.

  Returns:
    image: uint8 `[H, W, 3]`; three equal channels in infrared.
  """
  planes = _picture(person, camera, shot, height, width, infrared)
  return _develop(planes, camera, shot, infrared)
