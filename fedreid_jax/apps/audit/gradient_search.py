"""The gradient that an attacker observes, and the search for images of it.

Geiping et al., "Inverting gradients: how easy is it to break privacy in
federated learning?" (NeurIPS 2020). The attacker knows the network, its
parameters and the identities of the images, and has the gradient g of the mean
cross-entropy of the images with respect to the parameters that clients share.
If the run shares no classifier, a random one is used, whose gradient is not
observed. Images x are optimised from noise to minimise

  1 - cos(grad L(x), g) + a mean |differences of neighbouring pixels|

with Adam on the signs of the gradient, at a rate of 0.05 that falls by ten
after 3/8, 5/8 and 7/8 of the steps. Pixels stay in their range. The best of
several starts, by this objective, is the answer.

Deviations from the paper: the rate is half of the published one, since images
are small; pixels are optimised between 0 and 1.

With noise the gradient is that of a step of DP-SGD (Abadi et al., CCS 2016,
algorithm 1): the gradients of the B images are scaled to norm 1, as by a clip
below the norm of each, and normal noise of the standard deviation z is added to
their sum:

  (sum_i g_i / |g_i| + z N(0, 1)) / B.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import identity
from fedreid_jax.training.loaded_run import LoadedRun

Pixels = Float[Array, 'B H W ch']
# `(pixels in 0..1, labels [B]) -> gradient` by parameter.
Gradient = Callable[[Pixels, Array], Flat]
Attack = Callable[[Flat, Array, int], tuple[np.ndarray, float]]
FALLS = 3 / 8, 5 / 8, 7 / 8
CLASSIFIER = 'params/classifier/'
_SMALLEST = 1e-12  # norm of a gradient that vanishes


class Search(NamedTuple):
  """Settings of the optimisation."""

  steps: int = 800  # number of steps of each start
  starts: int = 3  # number of starts
  rate: float = 0.05  # first learning rate
  # Weight of the differences of neighbouring pixels, `a`.
  variation: float = 1e-3
  seed: int = 0  # of the noise


class Sent(NamedTuple):
  """A message of the client."""

  images: int = 1  # number of images of a gradient, B
  # Standard deviation of the noise over the clip, z; 0 sends the gradient as it
  # is.
  noise: float = 0.0


def make(gradient: Gradient, shape: tuple[int, ...], search: Search) -> Attack:
  """Compiles an attack `(gradient, labels, number) -> (pixels, value)`.

  Pixels have the given shape, `[B, H, W, ch]`. The number of an attack also
  determines its noise.
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
    images, values = jax.lax.map(lambda key: start(key, wanted, labels), keys)
    best = jnp.argmin(values)
    return images[best], values[best]

  def attack(
    wanted: Flat, labels: Array, number: int
  ) -> tuple[np.ndarray, float]:
    key = jax.random.fold_in(jax.random.key(search.seed), number)
    pixels, value = every(wanted, labels, key)
    return np.asarray(pixels), float(value)

  return attack


def cosine(one: Flat, other: Flat) -> Float[Array, '']:
  """The cosine of two gradients over all their parameters."""

  def dot(a: Flat, b: Flat) -> Array:
    return jnp.stack([(a[name] * b[name]).sum() for name in a]).sum()

  squared = dot(one, one) * dot(other, other)
  # The maximum below the root keeps the gradient of zero gradients finite.
  return dot(one, other) / jnp.sqrt(jnp.maximum(squared, 1e-24))


def variation(x: Pixels) -> Float[Array, '']:
  """The mean absolute differences of vertical and horizontal pairs."""
  down = jnp.abs(x[:, 1:] - x[:, :-1]).mean()
  return down + jnp.abs(x[:, :, 1:] - x[:, :, :-1]).mean()


def observed(run: LoadedRun, persons: int) -> Gradient:
  """The gradient of the shared parameters, for a number of persons."""
  params, moments = trees.trainable(run.variables)
  mean, std = (
    jnp.asarray(v, jnp.float32)
    for v in (run.federation.mean, run.federation.std)
  )
  head = _head(run, persons)
  fixed = {
    n: v
    for n, v in params.items()
    if head is not None and n.startswith(CLASSIFIER)
  }
  shared = {n: v for n, v in params.items() if n not in fixed}

  def gradient(x: Array, y: Array) -> Flat:
    def loss(shared: Flat) -> Array:
      # A client that sends gradients of one image has to use the running
      # moments of batch normalisation, since a batch of one image has none.
      outputs, _ = run.model.apply(
        {**moments, **fixed, **shared}, (x - mean) / std, train=False
      )
      scores = outputs.logits if head is None else outputs.embedding @ head
      return identity.cross_entropy(scores, y, jnp.ones(len(y), bool))

    return jax.grad(loss)(shared)

  return gradient


def _head(run: LoadedRun, persons: int) -> Array | None:
  """A random classifier `[D, C]` where the run shares none."""
  kernel = run.variables.get(f'{CLASSIFIER}kernel')
  # A classifier may have fewer columns than the client has persons.
  if kernel is not None and kernel.shape[-1] >= persons:
    return None
  image = jnp.zeros((1, *run.federation.image_shape))
  outputs = jax.eval_shape(
    lambda: run.model.apply(run.variables, image, train=False)[0]
  )
  size = outputs.embedding.shape[1]
  # The variance 1 / D keeps the scores in the range of the embedding.
  return jax.random.normal(jax.random.key(0), (size, persons)) / size**0.5


def clipped(gradient: Gradient) -> Gradient:
  """A function of the mean of single images' gradients of norm 1."""

  def one(x: Array, y: Array) -> Flat:
    parts = gradient(x[None], y[None])
    norm = jnp.maximum(optax.tree.norm(parts), _SMALLEST)
    return {name: part / norm for name, part in parts.items()}

  def mean(x: Array, y: Array) -> Flat:
    return jax.tree.map(lambda part: part.mean(0), jax.vmap(one)(x, y))

  return mean


def noisy(mean: Flat, sent: Sent, key: Array) -> Flat:
  """Adds the noise of a sum, divided by `B`, to a mean of clipped gradients."""
  scale = sent.noise / sent.images
  noise = _normal(mean, key)
  return {name: part + scale * noise[name] for name, part in mean.items()}


def random_like(wanted: Flat, seed: int) -> Flat:
  """Returns random normal parts with the norms of the parts of a gradient."""

  def scaled(noise: Array, part: Array) -> Array:
    size = jnp.linalg.norm(part) / jnp.maximum(jnp.linalg.norm(noise), 1e-12)
    return size * noise

  noise = _normal(wanted, jax.random.key(seed))
  return {name: scaled(noise[name], part) for name, part in wanted.items()}


def _normal(like: Flat, key: Array) -> Flat:
  return {
    name: jax.random.normal(jax.random.fold_in(key, place), part.shape)
    for place, (name, part) in enumerate(sorted(like.items()))
  }
