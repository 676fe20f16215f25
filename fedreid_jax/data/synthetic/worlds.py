"""The versions of the synthetic world, and the functions of each.

Both versions have the same bodies, sensors and streams of keys. The second
version has garments of a realistic wardrobe, a fixed background for each
camera, crops like those of a detector, and shading.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fedreid_jax import errors
from fedreid_jax.core.types import Number
from fedreid_jax.data.synthetic import (
  appearance,
  body,
  imaging,
  second_world,
  shifts,
  versions,
)
from fedreid_jax.data.synthetic.imaging import Frame, View

Scene = tuple[
  appearance.Identity, appearance.Camera, appearance.Shot, Bool[Array, '']
]


# The view of the first version: a long background and loose crops.


def frame(person, shot, x, y) -> Frame:
  """Coordinates of a fixed scene in which the person moves."""
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
  """Describes even light, with folds of low contrast."""
  folds = 0.86 + 0.28 * body.cloud(x * 14, y * 9, shot.seed)
  return body.Light(camera.light, folds, 0.22, 0.0)


def scenery(canvas, camera, shot, frame: Frame) -> None:
  """Draws the background: ground, shadow, wall or foliage."""
  x, y = frame.x, frame.y
  u = x + shot.drift
  low = jnp.clip(y - camera.horizon, 0.0, 2.0)
  ground = jnp.clip(0.5 + low / canvas.pixel, 0, 1)
  depth = 0.35 / (low + 0.15)
  tiles = body.wave(
    u * depth / camera.pitch, camera.pitch / depth, canvas.pixel
  )
  tiles = tiles * body.wave(
    depth / camera.pitch, 0.3 * camera.pitch, canvas.pixel
  )
  grain = body.cloud(u * 9, y * 18, camera.seed)
  shadow = body.ellipse(x, y, frame.feet, 0.17, 0.035)
  dark = 1 - 0.5 * jnp.clip(0.5 - shadow * 25, 0, 1)
  shade = dark * (0.8 + 0.35 * grain)
  canvas.lay(
    ground,
    *body.blend(
      appearance.GROUND, appearance.GROUND_DETAIL, 0.7 * tiles, shade
    ),
  )
  leaves = body.cloud(u * 22, y * 22, camera.seed) * 0.6 + 0.4 * grain
  columns = body.wave(u / camera.pitch, camera.pitch, canvas.pixel)
  rows = body.wave(y / (0.8 * camera.pitch), 0.8 * camera.pitch, canvas.pixel)
  structure = jnp.select(
    [camera.scene == 0, camera.scene == 1, camera.scene == 2],
    [columns * rows, jnp.clip(3 * leaves - 1, 0, 1), columns],
    0.4 * grain,
  )
  canvas.lay(
    1.0,
    *body.blend(
      appearance.WALL, appearance.WALL_DETAIL, structure, 0.75 + 0.35 * grain
    ),
  )


VIEW = View(frame, light, scenery)


@dataclasses.dataclass(frozen=True)
class World:
  """One version of the world; its functions change drawn parameters."""

  digest: str  # `data.source` in the digest of images
  salt: int  # folded into the key if not 0
  choose: Callable[..., Array]  # `(domain, material, pick)`
  domain: Callable[..., appearance.Domain]  # `(key, domain, *ids)`
  identity: Callable[..., appearance.Identity]  # `(key, identity, *ids)`
  camera: Callable[..., appearance.Camera]  # `(key, camera, domain, *ids)`
  shot: Callable[..., appearance.Shot]  # `(key, shot, domain, *ids)`
  view: imaging.View

  def sample(
    self,
    key: Key[Array, ''],
    domain: Int[Array, ''],
    identity: Int[Array, ''],
    camera: Int[Array, ''],
    shot: Int[Array, ''],
    *,
    modality: Int[Array, ''],
    brightness_correlation: Number,
    shift: str = '',
  ) -> Scene:
    """Draws the parameters of an image; modality 0 is visible, 1 infrared.

    `shift` is one of `shifts.SHIFTS`, or empty.
    """
    # Persons of one version must not be persons of another.
    if self.salt:
      key = jax.random.fold_in(key, self.salt)
    place = self._domain(key, domain)
    if shift in ('clothing', 'all'):
      other = self._domain(key, domain + shifts.OTHER_FASHION)
      place = shifts.clothing(place, other)
    ids = domain, identity
    person = appearance.sample_identity(
      key, place, brightness_correlation, *ids, choose=self.choose
    )
    seen_by = appearance.sample_camera(key, place, modality, domain, camera)
    ids = domain, identity, camera, shot
    moment = appearance.sample_shot(
      key, place, modality, *ids, choose=self.choose
    )
    seen_by = self.camera(key, seen_by, place, domain, camera, modality)
    moment = self.shot(key, moment, place, *ids, modality)
    if shift:
      seen_by, moment = shifts.scene(shift, seen_by, moment)
    person = self.identity(key, person, domain, identity)
    return person, seen_by, moment, modality == 1

  def _domain(
    self, key: Key[Array, ''], domain: Int[Array, '']
  ) -> appearance.Domain:
    return self.domain(key, appearance.sample_domain(key, domain), domain)


def _unchanged(key, drawn, *ids):
  del key, ids
  return drawn


_FIRST = World(
  # Runs from before there were versions have this digest.
  digest=versions.UNVERSIONED,
  salt=0,
  choose=appearance.choose,
  domain=_unchanged,
  identity=_unchanged,
  camera=_unchanged,
  shot=_unchanged,
  view=VIEW,
)
_SECOND = World(
  digest=versions.NEWEST,
  salt=2,
  choose=second_world.choose,
  domain=second_world.domain,
  identity=second_world.identity,
  camera=second_world.camera,
  shot=second_world.shot,
  view=second_world.VIEW,
)
_WORLDS = {versions.FIRST: _FIRST, versions.NEWEST: _SECOND}


def find(source: str) -> World:
  """World of a `data.source`; raises ConfigError for a name of no version."""
  if source not in versions.NAMES:
    raise errors.ConfigError(
      f'no synthetic world {source!r}',
      'synthetic.generate',
      f'one of {", ".join(versions.NAMES)}',
    )
  return _WORLDS[versions.resolve(source)]
