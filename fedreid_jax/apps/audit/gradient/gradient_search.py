"""Images whose gradient has the direction of an observed one.

Geiping et al., "Inverting gradients: how easy is it to break privacy in
federated learning?" (NeurIPS 2020). The attacker knows the network, its
parameters and the identities of the images, and has the gradient g of the loss.
Images x are optimised from noise to minimise

  1 - cos(grad L(x), g) + a mean |differences of neighbouring pixels|

with Adam on the signs of the gradient, at a rate of 0.05 that falls by ten
after 3/8, 5/8 and 7/8 of the steps. Pixels stay in their range. The best of
several starts, by this objective, is the answer.

Deviations from the paper: the rate is half of the published one, since images
are small; pixels are optimised between 0 and 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from fedreid_jax.core.types import Array, Flat

Pixels = Float[Array, 'B H W ch']
Gradient = Callable[[Pixels, Array], Flat]
Attack = Callable[[Flat, Array, int], tuple[np.ndarray, float]]
FALLS = 3 / 8, 5 / 8, 7 / 8


class Search(NamedTuple):
  """Settings of the optimisation.

  Attributes:
    steps: number of steps of each start.
    starts: number of starts.
    rate: first learning rate.
    variation: weight of the differences of neighbouring pixels, `a`.
    seed: of the noise.
  """

  steps: int = 800
  starts: int = 3
  rate: float = 0.05
  variation: float = 1e-3
  seed: int = 0


def make(gradient: Gradient, shape: tuple[int, ...], search: Search) -> Attack:
  """Returns a compiled attack `(gradient, labels, number) -> (pixels, value)`.

  Args:
    gradient: `(pixels [B, H, W, ch] in 0..1, labels [B]) -> gradient` of the
      parameters.
    shape: of the pixels, `[B, H, W, ch]`.
    search: settings; the number of an attack also determines its noise.
  """
  falls = {round(part * search.steps): 0.1 for part in FALLS}
  optimizer = optax.adam(optax.piecewise_constant_schedule(search.rate, falls))

  def objective(x: Pixels, wanted: Flat, labels: Array) -> Float[Array, '']:
    return (
      1.0
      - cosine(gradient(x, labels), wanted)
      + search.variation * variation(x)
    )

  def start(
    key: Array, wanted: Flat, labels: Array
  ) -> tuple[Pixels, Float[Array, '']]:
    x = jnp.clip(0.5 + 0.25 * jax.random.normal(key, shape), 0.0, 1.0)

    def step(state: tuple[Pixels, optax.OptState], _: None):
      x, kept = state
      signs = jnp.sign(jax.grad(objective)(x, wanted, labels))
      change, kept = optimizer.update(signs, kept)
      moved = jnp.asarray(optax.apply_updates(x, change))
      return (jnp.clip(moved, 0.0, 1.0), kept), None

    (x, _), _ = jax.lax.scan(
      step, (x, optimizer.init(x)), None, length=search.steps
    )
    return x, objective(x, wanted, labels)

  @jax.jit
  def every(
    wanted: Flat, labels: Array, key: Array
  ) -> tuple[Pixels, Float[Array, '']]:
    keys = jax.random.split(key, search.starts)
    # Starts run one after another, so that the memory is that of one start.
    found, values = jax.lax.map(lambda key: start(key, wanted, labels), keys)
    best = jnp.argmin(values)
    return found[best], values[best]

  def attack(
    wanted: Flat, labels: Array, number: int
  ) -> tuple[np.ndarray, float]:
    key = jax.random.fold_in(jax.random.key(search.seed), number)
    found, value = every(wanted, labels, key)
    return np.asarray(found), float(value)

  return attack


def cosine(one: Flat, other: Flat) -> Float[Array, '']:
  """Returns the cosine of two gradients over all their parameters."""

  def dot(a: Flat, b: Flat) -> Array:
    return jnp.stack([(a[name] * b[name]).sum() for name in a]).sum()

  squared = dot(one, one) * dot(other, other)
  # The maximum below the root keeps the gradient of zero gradients finite.
  return dot(one, other) / jnp.sqrt(jnp.maximum(squared, 1e-24))


def variation(x: Pixels) -> Float[Array, '']:
  """Returns the mean absolute differences of vertical and horizontal pairs."""
  down = jnp.abs(x[:, 1:] - x[:, :-1]).mean()
  return down + jnp.abs(x[:, :, 1:] - x[:, :, :-1]).mean()


def random_like(wanted: Flat, seed: int) -> Flat:
  """Returns random normal parts with the norms of the parts of a gradient."""
  key = jax.random.key(seed)
  found: Flat = {}
  for place, (name, part) in enumerate(sorted(wanted.items())):
    noise = jax.random.normal(jax.random.fold_in(key, place), part.shape)
    size = jnp.linalg.norm(part) / jnp.maximum(jnp.linalg.norm(noise), 1e-12)
    found[name] = size * noise
  return found
