"""Renders synthetic images of pedestrians: scene, light and sensor."""

import jax.numpy as jnp
from jaxtyping import Bool, Float, UInt8

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance, body, shapes


def _grid(height, width):
  """Returns pixel centres in image heights: `[H, 1]`, `[1, W]` centred."""
  y = (jnp.arange(height, dtype=jnp.float32) + 0.5) / height
  x = (jnp.arange(width, dtype=jnp.float32) + 0.5 - width / 2) / height
  return y[:, None], x[None, :]


def _occluder(canvas, shot, x, y):
  """Draws an occluder before the person: a post, a barrier, a passer-by."""
  place = shot.occluder_place - 0.5
  post = jnp.abs(x - 0.35 * place) - 0.028
  top = 0.62 + 0.25 * shot.occluder_place
  beside = jnp.sign(place) * 0.17 + 0.16 * place
  torso, _ = shapes.capsule(x, y, (beside, 0.24), (beside, 0.5), 0.085, 0.07)
  legs, _ = shapes.capsule(
    x, y, (beside, 0.5), (beside - 0.05 * jnp.sign(place), 1.0), 0.07, 0.03
  )
  skull = shapes.ellipse(x, y, (beside, 0.1), 0.048, 0.064)
  distance = jnp.select(
    [shot.occluder == 1, shot.occluder == 2, shot.occluder == 3],
    [post, top - y, jnp.minimum(jnp.minimum(torso, legs), skull)],
    1.0,
  )
  bars = 0.55 + 0.45 * shapes.wave(x * 14.0, 0.07, canvas.pixel)
  cover = canvas.cover(distance) * jnp.where(shot.occluder == 2, bars, 1.0)
  worn = jnp.where((y < 0.16) | (y > 0.52), 0.45, 0.9)
  shade = jnp.where(shot.occluder == 3, worn, 0.7 + 0.25 * y)
  canvas.lay(cover, (appearance.OCCLUDER, shade))


def _scenery(canvas, camera, shot, x, y, feet):
  """Draws the background: ground, shadow, wall or foliage."""
  u = x + shot.drift
  low = jnp.clip(y - camera.horizon, 0.0, 2.0)
  ground = jnp.clip(0.5 + low / canvas.pixel, 0, 1)
  depth = 0.35 / (low + 0.15)
  tiles = shapes.wave(
    u * depth / camera.pitch, camera.pitch / depth, canvas.pixel
  )
  tiles = tiles * shapes.wave(
    depth / camera.pitch, 0.3 * camera.pitch, canvas.pixel
  )
  grain = shapes.cloud(u * 9, y * 18, camera.seed)
  shadow = shapes.ellipse(x, y, feet, 0.17, 0.035)
  dark = 1 - 0.5 * jnp.clip(0.5 - shadow * 25, 0, 1)
  shade = dark * (0.8 + 0.35 * grain)
  canvas.lay(
    ground,
    *shapes.blend(
      appearance.GROUND, appearance.GROUND_DETAIL, 0.7 * tiles, shade
    ),
  )
  leaves = shapes.cloud(u * 22, y * 22, camera.seed) * 0.6 + 0.4 * grain
  columns = shapes.wave(u / camera.pitch, camera.pitch, canvas.pixel)
  rows = shapes.wave(y / (0.8 * camera.pitch), 0.8 * camera.pitch, canvas.pixel)
  structure = jnp.select(
    [camera.scene == 0, camera.scene == 1, camera.scene == 2],
    [columns * rows, jnp.clip(3 * leaves - 1, 0, 1), columns],
    0.4 * grain,
  )
  canvas.lay(
    1.0,
    *shapes.blend(
      appearance.WALL, appearance.WALL_DETAIL, structure, 0.75 + 0.35 * grain
    ),
  )


def _picture(
  person, camera, shot, height, width, infrared: Bool[Array, '']
) -> Float[Array, '3 {height} {width}']:
  """Composes the scene: reflected light."""
  y, x = _grid(height, width)
  size = 0.93 * shot.scale * person.height
  lens = jnp.maximum(1 / height, 1 / camera.lines)
  # The background is fixed; the crop around the person varies.
  by = (y - 0.035 - shot.top) / size
  bx = (x - shot.left) / size + shot.lean * (by - 0.5)
  canvas = shapes.Canvas(lens / size)
  theta = camera.yaw + shot.yaw
  pose = body.Pose(jnp.cos(theta), jnp.sin(theta), shot.phase, camera.elevation)
  # Seen from above, a head is larger than the feet.
  bx = bx / (1 + 0.5 * camera.elevation * (0.5 - by))
  folds = 0.86 + 0.28 * shapes.cloud(bx * 14, by * 9, shot.seed)
  part = canvas, person, pose, bx, by
  _occluder(canvas, shot, x, y)
  body.mane(*part, near=True)
  body.head(*part, camera.light)
  body.bag(*part, near=True)
  body.straps(*part)
  body.arm(*part, 1.0, 0.95 * folds)
  body.trunk(*part, camera.light, folds)
  body.leg(*part, 1.0, 0.95 * folds)
  body.mane(*part, near=False)
  body.bag(*part, near=False)
  body.arm(*part, -1.0, 0.75 * folds)
  body.leg(*part, -1.0, 0.75 * folds)
  feet = (shot.left, 0.035 + shot.top + 0.965 * size)
  _scenery(canvas, camera, shot, x, y, feet)
  table = jnp.concatenate(
    [person.materials, camera.materials, shot.material[None]]
  )
  paint = jnp.where(infrared, table[:, 3:], table[:, :3])
  weights = jnp.stack(
    [jnp.broadcast_to(plane, (height, width)) for plane in canvas.planes]
  )
  # A matrix product instead of a sum of planes: compilers do not fuse it. If it
  # were fused with its consumers, every layer would be drawn for each of them.
  return jnp.einsum('mhw,mc->chw', weights, paint)


def _develop(
  planes: Float[Array, '3 H W'], camera, shot, infrared: Bool[Array, '']
) -> UInt8[Array, 'H W 3']:
  """Converts reflected light to sensor output."""
  _, height, width = planes.shape
  y, x = _grid(height, width)
  edge = jnp.clip(0.5 + 8 * (x * 0.7 + y - shot.shade_edge), 0, 1)
  # An infrared camera has its own lamp: a bright middle, no shadows.
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
    bits = shapes.hash_grid(
      column, row, shot.seed + jnp.uint32(0x51ED27) * stream
    )
    high = (bits >> 16).astype(jnp.float32)
    grain = (high + (bits & 0xFFFF).astype(jnp.float32)) / 65536 - 1
    channels.append(value + 2.4 * camera.noise * grain)
  image = jnp.stack(channels, axis=-1)
  return (jnp.clip(image, 0, 1) * 255 + 0.5).astype(jnp.uint8)


def photograph(
  person: appearance.Identity,
  camera: appearance.Camera,
  shot: appearance.Shot,
  infrared: Bool[Array, ''],
  *,
  height: int,
  width: int,
) -> UInt8[Array, '{height} {width} 3']:
  """Renders one person seen by one camera.

  Args:
    person: parameters of the person.
    camera: parameters of the camera.
    shot: parameters of the moment.
    infrared: whether the camera is an infrared one.
    height: H, pixels.
    width: W, pixels.

  Returns:
    image: three equal channels in infrared.
  """
  planes = _picture(person, camera, shot, height, width, infrared)
  return _develop(planes, camera, shot, infrared)
