"""Renders synthetic images of pedestrians: scene, light and sensor."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float, UInt8

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance, body


class Frame(NamedTuple):
  """Coordinates in a scene and on the person in it.

  Attributes:
    x: across the scene; 0 is the middle of a good crop.
    y: down the scene; 0 and 1 are the edges of a good crop.
    across: distance from the axis of the person, in body heights.
    down: distance below the top of the person, in body heights.
  """

  x: Float[Array, '1 W']
  y: Float[Array, 'H 1']
  across: Float[Array, '1 W']
  down: Float[Array, 'H 1']
  feet: tuple[Array, Array]  # place in the scene
  height: Array  # of the person, in image heights


class View(NamedTuple):
  """The functions in which the versions of the world differ.

  Attributes:
    frame: `(person, shot, x, y) -> Frame`, from the coordinates of an image.
    light: `(camera, shot, x, y) -> body.Light` on a body of height 1.
    scenery: `(canvas, camera, shot, frame) -> None`, draws the background.
  """

  frame: Callable[..., Frame]
  light: Callable[..., body.Light]
  scenery: Callable[..., None]


def photograph(
  view: View,
  person: appearance.Identity,
  camera: appearance.Camera,
  shot: appearance.Shot,
  infrared: Bool[Array, ''],
  *,
  height: int,
  width: int,
) -> UInt8[Array, '{height} {width} 3']:
  """Renders a person seen by a camera; infrared channels are equal."""
  planes = _picture(view, person, camera, shot, height, width, infrared)
  return _develop(planes, camera, shot, infrared)


def _picture(
  view: View, person, camera, shot, height, width, infrared: Bool[Array, '']
) -> Float[Array, '3 {height} {width}']:
  """Draws the scene; the planes are reflected light in red, green and blue."""
  y, x = _grid(height, width)
  frame = view.frame(person, shot, x, y)
  lens = jnp.maximum(1 / height, 1 / camera.lines)
  by = frame.down
  bx = frame.across + shot.lean * (by - 0.5)
  table = jnp.concatenate(
    [
      person.materials,
      camera.materials[: appearance.PROPS],
      shot.material[None],
      camera.materials[appearance.PROPS :],
    ]
  )
  canvas = body.Canvas(lens / frame.height, len(table))
  theta = camera.yaw + shot.yaw
  pose = body.Pose(jnp.cos(theta), jnp.sin(theta), shot.phase, camera.elevation)
  # Seen from above, a head is larger than the feet.
  bx = bx / (1 + 0.5 * camera.elevation * (0.5 - by))
  light = view.light(camera, shot, bx, by)
  part = canvas, person, pose, bx, by
  # From front to back: a canvas hides later layers behind earlier ones.
  _occluder(canvas, shot, frame.x, frame.y)
  body.mane(*part, near=True)
  body.head(*part, light)
  body.bag(*part, near=True)
  body.straps(*part)
  body.arm(*part, 1.0, light)
  body.trunk(*part, light)
  body.leg(*part, 1.0, light)
  body.mane(*part, near=False)
  body.bag(*part, near=False)
  body.arm(*part, -1.0, light)
  body.leg(*part, -1.0, light)
  view.scenery(canvas, camera, shot, frame)
  paint = jnp.where(infrared, table[:, 3:], table[:, :3])
  weights = jnp.stack(
    [jnp.broadcast_to(plane, (height, width)) for plane in canvas.planes]
  )
  # Compilers do not fuse a matrix product. A sum of planes would be fused with
  # its consumers, and every layer would be drawn again for each of them.
  return jnp.einsum('mhw,mc->chw', weights, paint)


def _develop(
  planes: Float[Array, '3 H W'], camera, shot, infrared: Bool[Array, '']
) -> UInt8[Array, 'H W 3']:
  """Converts reflected light to sensor output."""
  _, height, width = planes.shape
  y, x = _grid(height, width)
  edge = jnp.clip(0.5 + 8 * (x * 0.7 + y - shot.shade_edge), 0, 1)
  # An infrared camera has a lamp: the middle is bright, and shadows are absent.
  radius = x * x * 4 + (y - 0.45) * (y - 0.45)
  fall = jnp.where(infrared, 0.5 + camera.vignette, camera.vignette)
  shadow = 1 - jnp.where(infrared, 0.0, shot.shade) * edge
  light = camera.exposure * shot.exposure * shadow * (1 - fall * radius)
  grey = (planes[0] + planes[1] + planes[2]) / 3
  # Grain has the size of a pixel of the sensor.
  lines = jnp.minimum(camera.lines * 1.5, height)
  column, row = jnp.floor((x + 4) * lines), jnp.floor(y * lines)
  channels = []
  for c in range(3):
    value = planes[c] + camera.mixing * (grey - planes[c])
    value = value * light * jnp.where(infrared, 1.0, camera.gain[c])
    # A power needs a positive base; the corners of a wide image may have none.
    value = jnp.clip(value, 1e-4, 1.5) ** (camera.gamma * 0.8)
    # In infrared the channels have the same grain, so that they are equal.
    stream = jnp.where(infrared, 0, c).astype(jnp.uint32)
    bits = body.hash_grid(
      column, row, shot.seed + jnp.uint32(0x51ED27) * stream
    )
    # The sum of two uniform variables has a triangular distribution.
    high = (bits >> 16).astype(jnp.float32)
    grain = (high + (bits & 0xFFFF).astype(jnp.float32)) / 65536 - 1
    channels.append(value + 2.4 * camera.noise * grain)
  image = jnp.stack(channels, axis=-1)
  return (jnp.clip(image, 0, 1) * 255 + 0.5).astype(jnp.uint8)


def _grid(height, width):
  """Pixel centres in image heights: `[H, 1]`, `[1, W]` centred."""
  y = (jnp.arange(height, dtype=jnp.float32) + 0.5) / height
  x = (jnp.arange(width, dtype=jnp.float32) + 0.5 - width / 2) / height
  return y[:, None], x[None, :]


def _occluder(canvas, shot, x, y):
  """Draws a post, a barrier or a passer-by before the person."""
  place = shot.occluder_place - 0.5
  post = jnp.abs(x - 0.35 * place) - 0.028
  top = 0.62 + 0.25 * shot.occluder_place
  beside = jnp.sign(place) * 0.17 + 0.16 * place
  torso, _ = body.capsule(x, y, (beside, 0.24), (beside, 0.5), 0.085, 0.07)
  legs, _ = body.capsule(
    x, y, (beside, 0.5), (beside - 0.05 * jnp.sign(place), 1.0), 0.07, 0.03
  )
  skull = body.ellipse(x, y, (beside, 0.1), 0.048, 0.064)
  distance = jnp.select(
    [shot.occluder == 1, shot.occluder == 2, shot.occluder == 3],
    [post, top - y, jnp.minimum(jnp.minimum(torso, legs), skull)],
    1.0,
  )
  bars = 0.55 + 0.45 * body.wave(x * 14.0, 0.07, canvas.pixel)
  cover = canvas.cover(distance) * jnp.where(shot.occluder == 2, bars, 1.0)
  worn = jnp.where((y < 0.16) | (y > 0.52), 0.45, 0.9)
  shade = jnp.where(shot.occluder == 3, worn, 0.7 + 0.25 * y)
  canvas.lay(cover, (appearance.OCCLUDER, shade))
