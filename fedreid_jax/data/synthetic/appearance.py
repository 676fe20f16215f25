"""Random parameters of synthetic domains, identities, cameras and shots.

All parameters are functions of a key and of ids, never of counts. The infrared
reflectance of garments is a mixture of their brightness and of an independent
draw; the weight of the brightness is `brightness_correlation`. Lengths on a
person are in body heights, and positions in an image are in image heights.
Angles are in radians. Materials are reflectances in [0, 1] of four channels
(red, green, blue and near infrared); a palette has the first three.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array, Number

COLOURS = 9  # colours of the garments of a domain

# Rows of a material table; a row is the reflectance of one material.
SKIN, HAIR, UPPER, UPPER_ACCENT, LOWER, LOWER_ACCENT = range(6)
INNER, SHOE, BAG, HAT = range(6, 10)
WALL, WALL_DETAIL, GROUND, GROUND_DETAIL, OCCLUDER = range(10, 15)
PROP = 15  # the first prop of the second world
PROPS = GROUND_DETAIL - WALL + 1  # the row of a camera with its first prop
DOMAIN_NAMES = tuple(
  'plaza campus station mall park market harbour alley arcade bridge depot '
  'garden'.split()
)

# One row for each of the first domains; further domains reuse the rows with
# other draws. Columns: season, 0 summer .. 1 winter; hue and saturation of the
# fashion; scene, 0 facade, 1 foliage, 2 tiled hall, 3 open; brightness of
# ground and wall; warmth of the light, -1 blue .. 1 orange; exposure; lines of
# the sensors; elevation of the cameras; fraction of occluded persons.
_ARCHETYPES = (
  (0.10, 0.08, 0.65, 0, 0.55, 0.50, 0.40, 1.05, 100.0, 0.20, 0.25),
  (0.45, 0.35, 0.55, 1, 0.45, 0.40, 0.00, 1.00, 92.0, 0.14, 0.22),
  (0.70, 0.60, 0.50, 2, 0.45, 0.50, 0.20, 0.92, 76.0, 0.28, 0.25),
  (0.50, 0.85, 0.60, 2, 0.62, 0.62, -0.25, 1.03, 84.0, 0.24, 0.22),
  (0.30, 0.40, 0.60, 1, 0.45, 0.35, -0.10, 0.95, 100.0, 0.12, 0.25),
  (0.60, 0.02, 0.65, 0, 0.40, 0.50, 0.45, 0.92, 80.0, 0.18, 0.35),
  (0.70, 0.58, 0.50, 3, 0.55, 0.70, -0.40, 1.00, 88.0, 0.10, 0.20),
  (0.95, 0.75, 0.40, 0, 0.30, 0.30, 0.30, 0.80, 68.0, 0.24, 0.30),
)

DOMAIN, IDENTITY, CAMERA, SHOT = range(4)  # streams of the root key
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue


class Domain(NamedTuple):
  """Parameters that all cameras of a domain have in common, mostly scalars."""

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


def draws(key: Array, num: int, *ids: Array | int) -> Array:
  """Draws `[num]` uniforms of an object; `ids` are its stream and its ids."""
  # The key depends on ids and not on counts, so that more identities, cameras
  # or shots do not change the existing ones.
  for i in ids:
    key = jax.random.fold_in(key, i)
  return jax.random.uniform(key, (num,))


def between(draw: Array, low, high) -> Array:
  """Maps a uniform draw in [0, 1) to [low, high)."""
  return low + (high - low) * draw


def _seed(draw: Array) -> Array:
  # A float32 represents whole numbers below 2**24 exactly.
  return (draw * 16777216.0).astype(jnp.uint32)


def rgb(hue, saturation, value) -> Array:
  """Converts hue, saturation, value, all `[...]`, to `[..., 3]`."""
  hue, saturation, value = jnp.broadcast_arrays(hue, saturation, value)
  offsets = jnp.array([0.0, 2 / 3, 1 / 3])
  offsets = offsets.reshape((1,) * jnp.ndim(hue) + (3,))
  wheel = jnp.abs((hue[..., None] + offsets) % 1.0 * 6 - 3) - 1
  tint = 1 - saturation[..., None] * (1 - jnp.clip(wheel, 0, 1))
  return value[..., None] * tint


def sample_domain(key: Array, domain: Array) -> Domain:
  """Draws a domain: a perturbed archetype and a palette."""
  rows = jnp.array(_ARCHETYPES, jnp.float32)
  row = rows[domain % len(_ARCHETYPES)]
  season, hue, saturation, scene, ground, wall = (row[i] for i in range(6))
  warmth, exposure, lines, elevation, hidden = (row[i] for i in range(6, 11))
  d = draws(key, 4 * COLOURS + 8, DOMAIN, domain)
  colour = d[: 4 * COLOURS].reshape(4, COLOURS)
  move = d[4 * COLOURS :] - 0.5
  # A third of each palette is neutral (black, grey, white), the rest lies
  # around a few hues, so that colour alone does not identify a person.
  neutral = jnp.arange(COLOURS) % 3 == 0
  hues = hue + 0.06 * move[0] + (colour[0] - 0.5) * (0.45 + 0.4 * (1 - season))
  vivid = saturation * (0.5 + colour[1])
  value = between(colour[2], 0.10, 0.95 - 0.40 * season)
  palette = rgb(hues % 1.0, jnp.where(neutral, 0.08, vivid), value)
  return Domain(
    palette=palette,
    season=jnp.clip(season + 0.1 * move[1], 0, 1),
    scene=scene,
    ground=ground * (1 + 0.2 * move[2]),
    wall=wall * (1 + 0.2 * move[3]),
    hue=hue,
    warmth=warmth + 0.2 * move[4],
    exposure=exposure * (1 + 0.1 * move[5]),
    lines=lines * (1 + 0.1 * move[6]),
    elevation=elevation,
    hidden=hidden,
  )


def choose(domain: Domain, material: Array | int, pick: Array) -> Array:
  """Colours of the palette, `[..., 3]`, for uniform draws `[...]`."""
  del material  # all garments have one palette
  return domain.palette[(pick * COLOURS).astype(jnp.int32)]


def _wardrobe(
  domain: Domain,
  brightness_correlation: Number,
  d: Array,
  choose: Callable[..., Array],
) -> Array:
  """Draws materials from the domain's palette: `[10, 4]`, SKIN .. HAT."""
  pick, jitter, infrared = d[:10], d[10:20] - 0.5, d[20:30]
  colours = choose(domain, jnp.arange(10), pick)
  skin = rgb(0.06 + 0.02 * pick[SKIN], 0.45, between(pick[SKIN], 0.35, 0.9))
  hair = rgb(0.08, 0.4 * pick[HAIR], 0.04 + 0.5 * pick[HAIR] ** 3)
  colours = colours.at[SKIN].set(skin).at[HAIR].set(hair)
  colours = jnp.clip(colours * (1 + 0.25 * jitter[:, None]), 0.02, 0.97)
  own = between(infrared, 0.15, 0.9)
  infrared = (
    brightness_correlation * (colours @ jnp.array(LUMINANCE))
    + (1 - brightness_correlation) * own
  )
  # A texture must be visible in the infrared too, with either contrast.
  for base, accent in ((UPPER, UPPER_ACCENT), (LOWER, LOWER_ACCENT)):
    away = 0.25 + 0.2 * pick[accent]
    turned = infrared[base] + jnp.where(infrared[base] > 0.5, -away, away)
    infrared = infrared.at[accent].set(turned)
  infrared = infrared.at[SKIN].set(0.75 + 0.1 * jitter[SKIN])
  return jnp.concatenate([colours, infrared[:, None]], axis=1)


def sample_identity(
  key: Array,
  domain: Domain,
  brightness_correlation: Number,
  *ids: Array | int,
  choose: Callable[..., Array] = choose,
) -> Identity:
  """Draws a person of a domain; `ids` are the domain and the identity.

  `brightness_correlation` is the weight of the brightness in the infrared
  reflectance of garments.
  """
  both = draws(key, 56, IDENTITY, *ids)
  d = both[30:]
  winter = domain.season
  warm = d[9] > 0.25 + 0.6 * winter  # dressed for a warm day
  skirt = d[12] < 0.18
  bag = jnp.searchsorted(jnp.array([0.40, 0.65, 0.85]), d[15])
  return Identity(
    materials=_wardrobe(domain, brightness_correlation, both[:30], choose),
    height=between(d[0], 0.93, 1.03),
    build=between(d[1], 0.82, 1.22),
    shoulders=between(d[2], 0.92, 1.10),
    hair=jnp.where(d[3] < 0.06, 0.0, between(d[4] ** 2, 0.06, 0.24)),
    upper_texture=jnp.searchsorted(jnp.array([0.3, 0.46, 0.58, 0.72]), d[5]),
    frequency=between(d[6], 9.0, 22.0),
    lower_texture=jnp.searchsorted(jnp.array([0.7, 0.8, 0.9]), d[7]),
    hem=jnp.where(d[8] < 0.1 + 0.35 * winter, 0.66, 0.50) + 0.04 * d[21],
    sleeve=jnp.where(warm, between(d[10], 0.15, 0.45), 1.0),
    leg=jnp.where(
      skirt | (d[11] > 0.55 + 0.4 * winter), between(d[13], 0.62, 0.80), 1.0
    ),
    skirt=skirt.astype(jnp.float32),
    opening=jnp.where(d[14] < 0.15 + 0.3 * winter, 0.35, 0.0),
    print_size=between(d[16], 0.25, 0.6),
    bag=bag,
    bag_size=between(d[17], 0.8, 1.25),
    bag_side=jnp.where(d[18] < 0.5, -1.0, 1.0),
    hat=jnp.searchsorted(jnp.array([0.7, 0.85]), d[19]),
    stride=between(d[20], 0.07, 0.15),
  )


def gain(warmth: Array, green: Number = 1.0) -> Array:
  """Gains of red, green and blue, `[3]`, for a warmth of light."""
  return jnp.stack([1 + 0.18 * warmth, jnp.asarray(green), 1 - 0.22 * warmth])


def sample_camera(
  key: Array, domain: Domain, modality: Array, *ids: Array | int
) -> Camera:
  """Draws a camera of a domain; `ids` are the domain and the camera.

  An infrared camera is another device than the visible camera with the same
  number, with another position and another view of the persons.
  """
  d = draws(key, 40, CAMERA, *ids, modality)
  cold = domain.warmth + 0.4 * (d[0] - 0.5)
  colour = gain(cold, 1 + 0.10 * (d[1] - 0.5))
  wall = rgb(domain.hue + 0.3 * (d[2] - 0.5), 0.25 * d[3], domain.wall)
  foliage = rgb(0.26 + 0.08 * d[2], 0.35 + 0.3 * d[3], domain.wall)
  wall = jnp.where(domain.scene == 1, foliage, wall)
  ground = rgb(0.1 + 0.1 * d[4], 0.15 * d[5], domain.ground)
  detail = jnp.where(d[6] < 0.5, 0.6, 1.35)
  scenery = jnp.stack([wall, wall * detail, ground, ground * 0.75])
  infrared = jnp.stack([d[7], d[7] * detail, d[8], d[8] * 0.75])
  infrared = jnp.clip(0.2 + 0.6 * infrared, 0, 1)
  return Camera(
    materials=jnp.concatenate([scenery, infrared[:, None]], axis=1),
    yaw=2 * jnp.pi * d[9],
    elevation=domain.elevation * between(d[10], 0.6, 1.4),
    horizon=between(d[11], 0.20, 0.55) - 0.6 * domain.elevation,
    scene=domain.scene,
    pitch=between(d[12], 0.10, 0.35),
    gain=colour,
    mixing=between(d[13], 0.0, 0.20),
    exposure=domain.exposure * between(d[14], 0.85, 1.18),
    gamma=between(d[15], 0.85, 1.15),
    vignette=between(d[16], 0.0, 0.5),
    lines=domain.lines * between(d[17], 0.7, 1.3),
    noise=between(d[18], 0.006, 0.022),
    light=between(d[19], -1.0, 1.0),
    props=jnp.zeros((0, 4)),
    seed=_seed(d[20]),
  )


def recolour(camera: Camera, factor: Number) -> Camera:
  """Multiplies the logarithms of gains, exposure and gamma, and the mixture."""
  return camera._replace(
    gain=camera.gain**factor,
    exposure=camera.exposure**factor,
    gamma=camera.gamma**factor,
    mixing=jnp.minimum(camera.mixing * factor, 0.8),
  )


def spread(camera: Camera, factor: Number) -> Camera:
  """Multiplies the differences of a camera from others.

  The factor multiplies the logarithms of gains, exposure and gamma, and the
  mixture of channels. Noise and resolution change by its square root.
  """
  return recolour(camera, factor)._replace(
    lines=camera.lines / jnp.sqrt(factor),
    noise=camera.noise * jnp.sqrt(factor),
  )


def sample_shot(
  key: Array,
  domain: Domain,
  modality: Array,
  *ids: Array | int,
  choose: Callable[..., Array] = choose,
) -> Shot:
  """Draws a shot; `ids` are domain, identity, camera and shot."""
  d = draws(key, 24, SHOT, *ids, modality)
  # Most persons walk in the camera's usual direction, some in the opposite one.
  turn = jnp.where(d[0] < 0.3, jnp.pi, 0.0) + 0.9 * (d[1] + d[2] - 1)
  hidden = d[3] < domain.hidden
  kind = 1 + (d[4] * 3).astype(jnp.int32)
  colour = choose(domain, UPPER, d[5])
  return Shot(
    material=jnp.append(colour, between(d[6], 0.15, 0.9)),
    yaw=turn,
    phase=2 * jnp.pi * d[7],
    left=between(d[8], -0.05, 0.05),
    top=between(d[9], -0.03, 0.07),
    scale=between(d[10], 0.86, 1.02),
    lean=between(d[11], -0.04, 0.04),
    exposure=between(d[12], 0.9, 1.1),
    shade=jnp.where(d[13] < 0.25, between(d[14], 0.15, 0.4), 0.0),
    shade_edge=between(d[15], 0.2, 0.8),
    occluder=jnp.where(hidden, kind, 0),
    occluder_place=d[16],
    drift=2 * d[17],
    seed=_seed(d[18]),
  )
