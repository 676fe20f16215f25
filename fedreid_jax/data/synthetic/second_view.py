"""The view of the second version, with a fixed background of each camera."""

import jax.numpy as jnp

from fedreid_jax.data.synthetic import body, parameters, shapes
from fedreid_jax.data.synthetic.imaging import Frame, View


def frame(person, shot, x, y) -> Frame:
  """Returns the coordinates of a scene that a crop moves with the person."""
  # A crop moves and scales the background as well, as a crop of one photograph.
  x, y = (x - shot.left) / shot.scale, (y - shot.top) / shot.scale
  size = 0.93 * person.height
  return Frame(
    x,
    y,
    across=x / size,
    down=(y - 0.035) / size,
    feet=(jnp.zeros(()), 0.035 + 0.965 * size),
    height=size * shot.scale,
  )


def light(camera, shot, x, y) -> body.Light:
  """Returns light from above and from the side of the camera's light."""
  folds = 0.80 + 0.36 * shapes.cloud(x * 13 + y * 4, y * 9, shot.seed)
  side = 1 + 0.2 * camera.light * jnp.clip(8 * x, -1, 1)
  return body.Light(camera.light, folds * side * (1.1 - 0.24 * y), 0.28, 0.4)


def scenery(canvas, camera, shot, frame: Frame) -> None:
  """Draws things, the ground with the shadow of the person, and the wall."""
  x, y = frame.x, frame.y
  u = x + shot.drift
  panes, sign, thing = camera.props
  # The background is out of focus.
  blurred = 2 * canvas.pixel

  def beside(prop):
    across = jnp.abs(u - prop[0]) - prop[2]
    distance = jnp.maximum(across, jnp.abs(y - prop[1]) - prop[3])
    return jnp.clip(0.5 - distance / blurred, 0, 1)

  grain = shapes.cloud(u * 8, y * 14, camera.seed)
  lit = 0.82 + 0.3 * grain
  # A thing is darker towards the ground.
  below = jnp.clip((y - thing[1]) / thing[3], -1, 1)
  canvas.lay(beside(thing), (parameters.PROP + 2, lit * (1.1 - 0.4 * below)))
  low = jnp.clip(y - camera.horizon, 0.0, 2.0)
  depth = 0.35 / (low + 0.15)
  tiles = shapes.wave(depth / camera.pitch, 0.3 * camera.pitch, canvas.pixel)
  centre = frame.feet[0] + 0.09 * camera.light, frame.feet[1]
  shadow = shapes.ellipse(x, y, centre, 0.20, 0.04)
  dark = 1 - 0.5 * jnp.clip(0.5 - shadow * 14, 0, 1)
  canvas.lay(
    jnp.clip(0.5 + (y - camera.horizon) / blurred, 0, 1),
    *shapes.blend(
      parameters.GROUND, parameters.GROUND_DETAIL, 0.7 * tiles, dark * lit
    ),
  )
  canvas.lay(beside(sign), (parameters.PROP + 1, 1.0))
  canvas.lay(beside(panes), (parameters.PROP, lit))
  columns = shapes.wave(u / camera.pitch, camera.pitch, blurred)
  rows = shapes.wave(y / (0.8 * camera.pitch), 0.8 * camera.pitch, blurred)
  leaves = jnp.clip(3 * shapes.cloud(u * 18, y * 18, camera.seed) - 1, 0, 1)
  structure = jnp.select(
    [camera.scene == 0, camera.scene == 1, camera.scene == 2],
    [columns * rows, leaves, columns],
    0.4 * grain,
  )
  canvas.lay(
    1.0,
    *shapes.blend(parameters.WALL, parameters.WALL_DETAIL, structure, lit),
  )


VIEW = View(frame, light, scenery)
