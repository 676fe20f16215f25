"""Drawing primitives: signed distances, noise and layers of material.

Layers are drawn from front to back: each takes a part of the remaining light
and adds it to the weight planes of its materials.
"""

import jax.numpy as jnp

from fedreid_jax.core.types import Array


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
  """Returns smooth noise in [0, 1] with independent values at whole numbers."""
  i, j = jnp.floor(x), jnp.floor(y)
  u, v = x - i, y - j
  u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
  a, b = (unit(hash_grid(i + k, j, seed)) for k in (0, 1))
  c, d = (unit(hash_grid(i + k, j + 1, seed)) for k in (0, 1))
  return (a + (b - a) * u) * (1 - v) + (c + (d - c) * u) * v


def capsule(x, y, start, end, radius, tip):
  """Returns the distance to a tapered capsule, and the position along it."""
  dx, dy = end[0] - start[0], end[1] - start[1]
  along = (x - start[0]) * dx + (y - start[1]) * dy
  # Both ends can be projected on one point.
  along = jnp.clip(along / (dx * dx + dy * dy + 1e-6), 0, 1)
  across = jnp.hypot(x - start[0] - along * dx, y - start[1] - along * dy)
  return across - (radius + (tip - radius) * along), along


def ellipse(x, y, centre, wide, high):
  """Returns the first-order distance to an ellipse."""
  p, q = (x - centre[0]) / wide, (y - centre[1]) / high
  return (jnp.sqrt(p * p + q * q) - 1) * jnp.minimum(wide, high)


def wave(phase, period, pixel):
  """Returns a smooth square wave in [0, 1].

  Args:
    phase: number of periods.
    period: length of a period.
    pixel: width of a pixel, in the unit of the period.
  """
  # A wave of two pixels or less cannot be resolved and fades to its mean.
  contrast = jnp.clip(1.6 - 3.2 * pixel / period, 0, 1)
  level = jnp.clip(1.5 * jnp.sin(2 * jnp.pi * phase), -1, 1)
  return 0.5 + 0.5 * contrast * level


def blend(base: int, accent: int, pattern, shade):
  """Returns the mix of two materials; `pattern` is the accent's fraction."""
  return (base, (1 - pattern) * shade), (accent, pattern * shade)


class Canvas:
  """Weight planes of the materials and the light that is left."""

  # One plane per material makes the colours one small product at the end.
  def __init__(self, pixel, materials: int):
    self.pixel, self.clear = pixel, 1.0
    self.planes: list = [0.0] * materials

  def cover(self, distance):
    """Returns the coverage in [0, 1] of the shape `distance < 0`."""
    # The pixel can be the larger pixel of the camera; this blur costs nothing.
    return jnp.clip(0.5 - distance / self.pixel, 0, 1)

  def lay(self, coverage, *mix):
    """Draws a layer behind earlier ones; `mix` has pairs (material, weight)."""
    seen = self.clear * coverage
    for material, share in mix:
      self.planes[material] = self.planes[material] + seen * share
    self.clear = self.clear - seen
