"""The view of the first version: a long background and loose crops."""

import jax.numpy as jnp

from fedreid_jax.data.synthetic import body, parameters, shapes
from fedreid_jax.data.synthetic.imaging import Frame, View


def frame(person, shot, x, y) -> Frame:
  """Returns a fixed scene in which the place of the person varies."""
  size = 0.93 * shot.scale * person.height
  return Frame(
    x,
    y,
    across=(x - shot.left) / size,
    down=(y - 0.035 - shot.top) / size,
    feet=(shot.left, 0.035 + shot.top + 0.965 * size),
    height=size,
  )


def light(camera, shot, x, y) -> body.Light:
  """Returns folds of little contrast."""
  folds = 0.86 + 0.28 * shapes.cloud(x * 14, y * 9, shot.seed)
  return body.Light(camera.light, folds, 0.22, 0.0)


def scenery(canvas, camera, shot, frame: Frame) -> None:
  """Draws the background: ground, shadow, wall or foliage."""
  x, y = frame.x, frame.y
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
  shadow = shapes.ellipse(x, y, frame.feet, 0.17, 0.035)
  dark = 1 - 0.5 * jnp.clip(0.5 - shadow * 25, 0, 1)
  shade = dark * (0.8 + 0.35 * grain)
  canvas.lay(
    ground,
    *shapes.blend(
      parameters.GROUND, parameters.GROUND_DETAIL, 0.7 * tiles, shade
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
      parameters.WALL, parameters.WALL_DETAIL, structure, 0.75 + 0.35 * grain
    ),
  )


VIEW = View(frame, light, scenery)
