"""The second version of the world: wardrobe, cameras, crops and background.

A domain has a sample of the colours below. Fashions differ between domains in
the colours of a family, and little in the sizes of the families. A camera has a
fixed background, and a shot the box of a detector.
"""

import jax.numpy as jnp
import numpy as np

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance, body
from fedreid_jax.data.synthetic.appearance import (
  Camera,
  Domain,
  Identity,
  Shot,
  between,
  draws,
  rgb,
)
from fedreid_jax.data.synthetic.imaging import Frame, View

PALETTE = 48  # colours of a kind of garment in a domain
TOPS, LEGWEAR, SHOES, BAGS = range(4)
_NEUTRAL, _BLUE, _EARTH, _RED, _OTHER = range(5)
FAMILIES = 5

# Family, reflectance in red, green and blue, and how many in a thousand tops,
# trousers or skirts, shoes and bags have the colour.
_COLOURS = np.array(
  [
    (_NEUTRAL, 0.05, 0.05, 0.06, 150, 200, 330, 280),  # black
    (_NEUTRAL, 0.16, 0.17, 0.19, 80, 110, 80, 110),  # charcoal
    (_NEUTRAL, 0.40, 0.41, 0.42, 100, 100, 80, 100),  # grey
    (_NEUTRAL, 0.88, 0.88, 0.86, 150, 60, 240, 30),  # white
    (_BLUE, 0.08, 0.11, 0.24, 80, 110, 50, 80),  # navy
    (_BLUE, 0.22, 0.32, 0.48, 50, 120, 10, 20),  # denim
    (_BLUE, 0.52, 0.66, 0.80, 50, 30, 10, 10),  # light blue
    (_BLUE, 0.12, 0.26, 0.62, 30, 10, 10, 30),  # royal blue
    (_EARTH, 0.74, 0.66, 0.52, 50, 80, 30, 70),  # beige
    (_EARTH, 0.33, 0.21, 0.13, 30, 50, 60, 110),  # brown
    (_EARTH, 0.33, 0.34, 0.18, 30, 30, 10, 20),  # olive
    (_RED, 0.68, 0.10, 0.11, 40, 10, 10, 40),  # red
    (_RED, 0.36, 0.08, 0.13, 30, 10, 5, 20),  # burgundy
    (_RED, 0.84, 0.56, 0.60, 20, 10, 5, 10),  # pink
    (_OTHER, 0.83, 0.42, 0.12, 10, 0, 2, 2),  # orange
    (_OTHER, 0.85, 0.72, 0.20, 20, 0, 2, 2),  # yellow
    (_OTHER, 0.13, 0.42, 0.22, 30, 10, 2, 2),  # green
    (_OTHER, 0.10, 0.42, 0.44, 20, 5, 2, 2),  # teal
    (_OTHER, 0.36, 0.20, 0.45, 20, 5, 2, 2),  # purple
  ],
  np.float32,
)
_FAMILY = np.eye(FAMILIES, dtype=np.float32)[_COLOURS[:, 0].astype(int)]
_RGB = _COLOURS[:, 1:4]
_SHARES = _COLOURS[:, 4:].T / _COLOURS[:, 4:].sum(0)[:, None]  # [4, N]

# The kind of each material of a person, SKIN .. HAT. Those of skin and hair are
# not used, since `appearance` draws their colours.
_KIND = np.array([TOPS] * 4 + [LEGWEAR] * 2 + [TOPS, SHOES, BAGS, TOPS])
NUM_DRAWS = len(_RGB) + FAMILIES + 5 * 4 * PALETTE
# Streams of the root key, other than the first four of `appearance`.
DOMAIN, IDENTITY, CAMERA, SHOT = range(4, 8)
# Exponents that reduce the differences between the cameras of a domain, and
# between domains. Most garments are black, grey or white, so brightness tells
# persons apart.
OWN = 0.2
COMMON = 0.75
PROPS = 3  # an opening in the wall, a sign, a thing on the ground


def shares(draws: Array, season: Array) -> Array:
  """Fractions of colours by garment, `[4, N]`, from `[N + FAMILIES]` draws."""
  fashion, size = draws[: len(_RGB)], draws[len(_RGB) :]
  light = jnp.array(_RGB @ np.array(appearance.LUMINANCE, np.float32))
  # The draw changes a share by a quarter to four times.
  fashion = jnp.exp(2.8 * (fashion - 0.5) - 1.2 * season * light)
  weights = _SHARES * fashion
  # The shares of the families are then restored within 15 %, so that no family
  # is the clothing of a whole domain.
  wanted = (_SHARES @ _FAMILY) * (0.85 + 0.3 * size)
  weights = weights * ((wanted / (weights @ _FAMILY)) @ _FAMILY.T)
  return weights / weights.sum(axis=1, keepdims=True)


def palette(draws: Array, season: Array) -> Array:
  """Colours by garment, `[4, PALETTE, 3]`, from uniform `[NUM_DRAWS]`."""
  few = len(_RGB) + FAMILIES
  limits = jnp.cumsum(shares(draws[:few], season), axis=1)
  own = draws[few:].reshape(5, 4, PALETTE)
  # One colour in each of equal parts of the distribution.
  place = (jnp.arange(PALETTE) + own[0]) / PALETTE
  which = (place[..., None] > limits[:, None]).sum(axis=-1)
  # The last sum of float32 shares can be below 1.
  colours = jnp.array(_RGB)[jnp.minimum(which, len(_RGB) - 1)]
  shift = jnp.moveaxis(own[1:4] - 0.5, 0, -1)
  value = 1 + 0.5 * (own[4, ..., None] - 0.5)
  return jnp.clip(colours * (1 + 0.3 * shift) * value, 0.02, 0.95)


def choose(domain: Domain, material: Array | int, pick: Array) -> Array:
  """Colours `[..., 3]` of materials for uniform draws `[...]`."""
  kind = jnp.array(_KIND)[material]
  return domain.palette[kind, (pick * PALETTE).astype(jnp.int32)]


def domain(key: Array, drawn: Domain, *ids: Array | int) -> Domain:
  """Replaces the palette of a domain with colours of the wardrobe."""
  d = draws(key, NUM_DRAWS, DOMAIN, *ids)
  return drawn._replace(palette=palette(d, drawn.season))


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
  key: Array, drawn: Camera, place: Domain, *ids: Array | int
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


def shot(key: Array, drawn: Shot, place: Domain, *ids: Array | int) -> Shot:
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
  colour = choose(place, appearance.UPPER, d[4])
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


def frame(person, shot, x, y) -> Frame:
  """Coordinates of a scene that a crop moves with the person."""
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
  """Light from above and from the side of the camera's light."""
  folds = 0.80 + 0.36 * body.cloud(x * 13 + y * 4, y * 9, shot.seed)
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

  grain = body.cloud(u * 8, y * 14, camera.seed)
  lit = 0.82 + 0.3 * grain
  # A thing is darker towards the ground.
  below = jnp.clip((y - thing[1]) / thing[3], -1, 1)
  canvas.lay(beside(thing), (appearance.PROP + 2, lit * (1.1 - 0.4 * below)))
  low = jnp.clip(y - camera.horizon, 0.0, 2.0)
  depth = 0.35 / (low + 0.15)
  tiles = body.wave(depth / camera.pitch, 0.3 * camera.pitch, canvas.pixel)
  centre = frame.feet[0] + 0.09 * camera.light, frame.feet[1]
  shadow = body.ellipse(x, y, centre, 0.20, 0.04)
  dark = 1 - 0.5 * jnp.clip(0.5 - shadow * 14, 0, 1)
  canvas.lay(
    jnp.clip(0.5 + (y - camera.horizon) / blurred, 0, 1),
    *body.blend(
      appearance.GROUND, appearance.GROUND_DETAIL, 0.7 * tiles, dark * lit
    ),
  )
  canvas.lay(beside(sign), (appearance.PROP + 1, 1.0))
  canvas.lay(beside(panes), (appearance.PROP, lit))
  columns = body.wave(u / camera.pitch, camera.pitch, blurred)
  rows = body.wave(y / (0.8 * camera.pitch), 0.8 * camera.pitch, blurred)
  leaves = jnp.clip(3 * body.cloud(u * 18, y * 18, camera.seed) - 1, 0, 1)
  structure = jnp.select(
    [camera.scene == 0, camera.scene == 1, camera.scene == 2],
    [columns * rows, leaves, columns],
    0.4 * grain,
  )
  canvas.lay(
    1.0, *body.blend(appearance.WALL, appearance.WALL_DETAIL, structure, lit)
  )


VIEW = View(frame, light, scenery)
