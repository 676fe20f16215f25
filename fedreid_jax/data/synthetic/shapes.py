"""What a picture is made of: signed distances, noise, layers of material.

A distance becomes a coverage by the width of a pixel, or of the camera's own
pixel if that is larger: blur costs nothing. Layers are laid front to back:
each takes what light is left and adds it to the weight plane of its material,
so that colour is one small product at the end.
"""

import jax.numpy as jnp

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance


def hash_grid(x: Array, y: Array, seed: Array) -> Array:
  """Hashes whole coordinates to uint32, cheaply enough for every pixel."""
  h = x.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
  h = h ^ (y.astype(jnp.int32).astype(jnp.uint32) * jnp.uint32(0x85EBCA77))
  h = (h ^ seed) * jnp.uint32(0xC2B2AE3D)
  h = (h ^ (h >> 15)) * jnp.uint32(0x27D4EB2F)
  return h ^ (h >> 13)


def unit(bits: Array) -> Array:
  """Reads hashed bits as a number in [0, 1)."""
  return (bits >> 8).astype(jnp.float32) * (1 / 16777216.0)


def cloud(x: Array, y: Array, seed: Array) -> Array:
  """Smooth noise of unit spacing in [0, 1]."""
  i, j = jnp.floor(x), jnp.floor(y)
  u, v = x - i, y - j
  u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
  a, b = (unit(hash_grid(i + k, j, seed)) for k in (0, 1))
  c, d = (unit(hash_grid(i + k, j + 1, seed)) for k in (0, 1))
  return (a + (b - a) * u) * (1 - v) + (c + (d - c) * u) * v


def capsule(x, y, start, end, radius, tip):
  """Distance to a tapered capsule, and the place along it in [0, 1]."""
  dx, dy = end[0] - start[0], end[1] - start[1]
  along = (x - start[0]) * dx + (y - start[1]) * dy
  along = jnp.clip(along / (dx * dx + dy * dy + 1e-6), 0, 1)
  across = jnp.hypot(x - start[0] - along * dx, y - start[1] - along * dy)
  return across - (radius + (tip - radius) * along), along


def ellipse(x, y, centre, wide, high):
  """First-order distance to an ellipse."""
  p, q = (x - centre[0]) / wide, (y - centre[1]) / high
  return (jnp.sqrt(p * p + q * q) - 1) * jnp.minimum(wide, high)


def wave(phase, period, pixel):
  """Square-ish wave in [0, 1] that fades to its mean below the resolution."""
  contrast = jnp.clip(1.6 - 3.2 * pixel / period, 0, 1)
  level = jnp.clip(1.5 * jnp.sin(2 * jnp.pi * phase), -1, 1)
  return 0.5 + 0.5 * contrast * level


def blend(base: int, accent: int, pattern, shade):
  """The mix of two materials: `pattern` is the share of the accent."""
  return (base, (1 - pattern) * shade), (accent, pattern * shade)


class Canvas:
  """Weight planes of the materials and the light that is still to be used."""

  def __init__(self, pixel):
    self.pixel, self.clear = pixel, 1.0
    self.planes: list = [0.0] * appearance.MATERIALS

  def cover(self, distance):
    """Coverage in [0, 1] of the shape inside `distance < 0`."""
    return jnp.clip(0.5 - distance / self.pixel, 0, 1)

  def lay(self, coverage, *mix):
    """Lays a layer behind those laid before; `mix` is (material, share)."""
    seen = self.clear * coverage
    for material, share in mix:
      self.planes[material] = self.planes[material] + seen * share
    self.clear = self.clear - seen
