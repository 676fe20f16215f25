"""DeepInversion: photographs from a model and the statistics that clients send.

Yin et al., "Dreaming to distill: data-free knowledge transfer via
DeepInversion" (CVPR 2020), which DFH calls D2D and uses to measure the
information in feature statistics (DFH, figure 5). Images x are optimised from
noise to minimise

  G(x') + a_tv TV(x') + a_l2 mean_n |x'_n|
    + a_f sum_l c_l (|mean_l(x') - m_l| + |var_l(x') - v_l|),

where x' is x rolled and mirrored at random, m_l and v_l are the running
statistics of the l-th batch normalisation, mean_l and var_l those of its input
for x', c_l is 10 for the first and 1 for the others, and TV is the sum of the
norms of the differences between neighbours in four directions. The network is
frozen. Images are first reconstructed at half the resolution, from noise
averaged over 2x2 pixels, and enlarged.

G is the goal of the attack. In figure 5 of DFH the attacker has the mean
feature mu_j of each identity j (IFS), and these are the weights of a classifier
W of features f,

  CE(W f, y), W_j = mu_j.

By default f is scaled to the length 30 and mu_j to the length 1; a scale of 0
is the published form. The other goal asks that each image n has a given feature
t_n, with a = 10,

  a mean_n |f_n - t_n|^2 / |t_n|^2.

Deviations: the released code of DeepInversion continues with the noise before
the averaging, and keeps the best image of both resolutions. Here the enlarged
images are continued, and the best image of the last resolution is kept. DFH
writes that the means initialise the classifier; here they stay fixed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Float, Int, Key, UInt8

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import identity
from fedreid_jax.models.layers import norm
from fedreid_jax.training.loaded_run import LoadedRun

# The cross-entropy of features that are not scaled saturates.
SCALE = 30.0
# a is chosen so that the goal outweighs the batch statistics.
FACTOR = 10.0
JITTER = 30 / 256  # largest roll, as a fraction of the height
WARMUP = 100  # steps
BETAS = 0.5, 0.9  # of Adam

# `images -> (loss, its parts)`.
Loss = Callable[
  [Float[Array, 'B H W ch']],
  tuple[Float[Array, ''], dict[str, Float[Array, '']]],
]


class Goal(NamedTuple):
  """The part of the objective that depends on the attack."""

  name: str  # name of the part
  num_images: int  # number of images, `B`
  # Function of the outputs of the network for these images.
  loss: Callable[[types.Outputs], Float[Array, '']]


class Weights(NamedTuple):
  """Weights of the objective, as published; the weight of the goal is 1."""

  variation: float = 1e-4  # of the differences between neighbours, `a_tv`
  size: float = 1e-5  # of the norm of an image, `a_l2`
  statistics: float = 0.05  # of the batch statistics, `a_f`
  first: float = 10.0  # of the statistics of the first normalisation, `c_0`


class Search(NamedTuple):
  """Settings of the optimisation."""

  # Numbers of steps at half and at full resolution.
  steps: tuple[int, int] = (2000, 1000)
  lr: float = 0.2  # highest learning rate of Adam
  seed: int = 0  # of noise, rolls and mirrors


class Reconstructed(NamedTuple):
  """Reconstructed images."""

  photos: UInt8[np.ndarray, 'B H W ch']  # reconstructed pixels
  noise: UInt8[np.ndarray, 'B H W ch']  # initial noise as pixels
  # The `loss` and its parts, 'before' and 'after' the search, of images at full
  # resolution that are not rolled.
  losses: dict[str, dict[str, float]]


def reconstruct(
  run: LoadedRun, goal: Goal, weights: Weights, search: Search
) -> Reconstructed:
  """Reconstructs images whose features minimise the loss of a goal.

  Raises:
    ConfigError: for half the resolution with a model of a fixed size.
    DivergedError: when the loss is not finite.
  """
  if search.steps[0] and run.config.model.pool == 'flatten':
    raise errors.ConfigError(
      'pooling by flatten needs one resolution', '--steps', 'use 0,N'
    )
  loss = make_loss(run.model, run.variables, goal, weights)
  mean, std = (
    jnp.asarray(v, jnp.float32)
    for v in (run.federation.mean, run.federation.std)
  )
  # Limits of pixels in 0..1 after the normalisation of the network's input.
  limits = -mean / std, (1.0 - mean) / std
  shape = goal.num_images, *run.federation.image_shape
  images, noise = optimise(loss, shape, limits, search)

  def photos(x):
    values = jnp.clip(jnp.round((x * std + mean) * 255.0), 0.0, 255.0)
    return np.asarray(values.astype(jnp.uint8))

  losses = {}
  for when, x in (('before', noise), ('after', images)):
    total, parts = jax.jit(loss)(x)
    losses[when] = {n: float(v) for n, v in {'loss': total, **parts}.items()}
  if not all(np.isfinite(v) for v in losses['after'].values()):
    raise errors.DivergedError(
      'the loss of reconstructed images is not finite', '--steps', 'try 0,N'
    )
  return Reconstructed(photos(images), photos(noise), losses)


def identities(
  means: Float[Array | np.ndarray, 'C D'],
  labels: Int[Array | np.ndarray, ' B'],
  space: str = 'feature',
  scale: float = SCALE,
) -> Goal:
  """The goal that images show persons with the mean features `means`.

  Features are scaled to the length `scale` and means to 1, unless it is 0.
  """
  rows, labels = jnp.asarray(means), jnp.asarray(labels)
  valid = jnp.ones(len(labels), bool)

  def unit(x: Float[Array, 'M D']) -> Float[Array, 'M D']:
    # The maximum is below the root, whose gradient at zero is infinite.
    lengths = jnp.sqrt(jnp.maximum(jnp.square(x).sum(1), 1e-12))
    return x / lengths[:, None]

  if scale:
    rows = unit(rows)

  def loss(outputs: types.Outputs) -> Float[Array, '']:
    feature = getattr(outputs, space)
    if scale:
      feature = scale * unit(feature)
    return identity.cross_entropy(feature @ rows.T, labels, valid)

  return Goal('identity', len(labels), loss)


def features(
  wanted: Float[Array | np.ndarray, 'B D'], space: str = 'feature'
) -> Goal:
  """The goal that images have given features, of a field of Outputs."""
  rows = jnp.asarray(wanted)
  sizes = jnp.maximum(jnp.square(rows).sum(1), 1e-12)

  def loss(outputs: types.Outputs) -> Float[Array, '']:
    gaps = jnp.square(getattr(outputs, space) - rows).sum(1)
    return FACTOR * (gaps / sizes).mean()

  return Goal('feature', len(rows), loss)


def make_loss(
  model: types.Model, variables: Flat, goal: Goal, weights: Weights
) -> Loss:
  """Builds the objective; it returns all parts unweighted."""

  def loss(
    images: Float[Array, 'B H W ch'],
  ) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
    outputs, seen = watch(model, variables, images)
    gaps = [
      _norm(mean - variables[f'batch_stats/{name}/mean'])
      + _norm(var - variables[f'batch_stats/{name}/var'])
      for name, (mean, var) in seen.items()
    ]
    # The first in the order of the calls; the slice allows networks without
    # batch normalisation.
    gaps[:1] = [weights.first * gap for gap in gaps[:1]]
    parts = {
      goal.name: goal.loss(outputs),
      'variation': variation(images),
      'size': _norm(images, (1, 2, 3)).mean(),
      'statistics': sum(gaps, jnp.float32(0.0)),
    }
    return (
      parts[goal.name]
      + weights.variation * parts['variation']
      + weights.size * parts['size']
      + weights.statistics * parts['statistics']
    ), parts

  return loss


def watch(
  model: types.Model, variables: Flat, images: Float[Array, 'B H W ch']
) -> tuple[
  types.Outputs, dict[str, tuple[Float[Array, ' _'], Float[Array, ' _']]]
]:
  """Runs a network in evaluation mode and measures its normalisation inputs.

  Returns the outputs, and the mean and the biased variance, `[D]` each, of the
  input of each batch normalisation of maps, by name in the order of the calls.
  """
  seen: dict[str, tuple[Array, Array]] = {}

  def measure(call, args, kwargs, context):
    layer = context.module
    if isinstance(layer, norm.BatchNorm) and args[0].ndim == images.ndim:
      maps = args[0].astype(jnp.float32)
      seen['/'.join(layer.path)] = norm.moments(maps, kwargs.get('mask'))
    return call(*args, **kwargs)

  with nn.intercept_methods(measure):
    outputs, _ = model.apply(variables, images, train=False)
  return outputs, seen


def variation(images: Float[Array, 'B H W ch']) -> Float[Array, '']:
  """Sums the norms of four maps of differences between neighbours."""
  early, late = slice(None, -1), slice(1, None)
  return (
    _norm(images[:, :, late] - images[:, :, early])
    + _norm(images[:, late] - images[:, early])
    + _norm(images[:, late, late] - images[:, early, early])
    + _norm(images[:, late, early] - images[:, early, late])
  )


def _norm(x: Float[Array, '...'], axis=None) -> Float[Array, '...']:
  # With the maximum the gradient of the norm of zero is zero, not NaN.
  return jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis), 1e-12))


class State(NamedTuple):
  """State of an optimisation."""

  images: Float[Array, 'B H W ch']  # the current ones
  optimizer: optax.OptState  # state of the optimizer
  best: Float[Array, 'B H W ch']  # the images with the smallest loss so far
  least: Float[Array, '']  # loss of these images


def optimise(
  loss: Loss,
  shape: Sequence[int],
  limits: tuple[Float[Array, ' ch'], Float[Array, ' ch']],
  search: Search,
) -> tuple[Float[Array, 'B H W ch'], Float[Array, 'B H W ch']]:
  """(optimised images, their initial noise), both of shape `[B, H, W, ch]`."""
  noise_key, key = jax.random.split(jax.random.key(search.seed))
  noise = jax.random.normal(noise_key, tuple(shape))
  images = noise
  for stage, steps in enumerate(search.steps):
    if not steps:
      continue
    if stage == 0:
      images = nn.avg_pool(images, (2, 2), (2, 2))
    warmup = min(WARMUP, steps // 4)
    rate = optax.warmup_cosine_decay_schedule(
      search.lr / (warmup + 1), search.lr, warmup, steps
    )
    optimizer = optax.adam(rate, *BETAS)
    step = _make_step(loss, optimizer, limits)
    own_key = jax.random.fold_in(key, stage)
    # Losses of two resolutions are not comparable: each starts at infinity.
    state = State(images, optimizer.init(images), images, jnp.float32(jnp.inf))
    for number in range(steps):
      state = step(state, own_key, number)
    images = jax.image.resize(state.best, tuple(shape), 'nearest')
  return images, noise


def _make_step(
  loss: Loss,
  optimizer: optax.GradientTransformation,
  limits: tuple[Float[Array, ' ch'], Float[Array, ' ch']],
) -> Callable[[State, Key[Array, ''], int], State]:
  """A compiled step, `(state, key of all steps, number) -> state`."""

  @jax.jit
  def step(state, key, number):
    roll_key, flip_key = jax.random.split(jax.random.fold_in(key, number))
    reach = round(JITTER * state.images.shape[1])
    roll = jax.random.randint(roll_key, (2,), -reach, reach + 1)
    mirror = jax.random.bernoulli(flip_key)

    def moved(images):
      images = jnp.roll(images, roll, (1, 2))
      return loss(jnp.where(mirror, images[:, :, ::-1], images))

    (value, _), grads = jax.value_and_grad(moved, has_aux=True)(state.images)
    change, inner = optimizer.update(grads, state.optimizer)
    better = value < state.least
    # The loss is of the images before this step.
    return State(
      jnp.clip(state.images + change, *limits),
      inner,
      jnp.where(better, state.images, state.best),
      jnp.where(better, value, state.least),
    )

  return step
