"""DeepInversion: reconstruction of photographs from a model alone.

Yin et al., "Dreaming to distill: data-free knowledge transfer via
DeepInversion" (CVPR 2020), as DFH uses it to measure the information in shared
feature statistics (its figure 5). With f the pooled feature before the neck and
mu_j the mean feature of identity j, images x are optimised from noise to
minimise

  CE(W f(x'), y) + a_tv TV(x') + a_l2 mean_n |x'_n|
    + a_f sum_l c_l (|mean_l(x') - m_l| + |var_l(x') - v_l|), W_j = mu_j,

where x' is x rolled and mirrored at random, m_l and v_l are the running
statistics of the l-th batch normalisation, mean_l and var_l those of its input
for x', c_l is 10 for the first and 1 for the others, and TV is the sum of the
norms of the differences between neighbours in four directions. The network is
frozen.

Images are first reconstructed at half the resolution, from noise averaged over
2x2 pixels, and enlarged. The published code continues with the noise before
this averaging. It keeps the best image of both resolutions, whose losses are
not comparable; here the best image of the last resolution is kept. By default
features and mean features are scaled to one length in the cross-entropy
(`Weights.scale`), which otherwise saturates; 0 is the published form.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Float, Int, Key

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import identity
from fedreid_jax.models import norm

JITTER = 30 / 256  # largest roll, as a fraction of the height
WARMUP = 100  # steps
BETAS = 0.5, 0.9  # of Adam

Loss = Callable[
  [Float[Array, 'B H W ch']],
  tuple[Float[Array, ''], dict[str, Float[Array, '']]],
]


class Weights(NamedTuple):
  """Weights of the objective, as published except for the scale.

  Attributes:
    variation: of the differences between neighbours, `a_tv`.
    size: of the norm of an image, `a_l2`.
    statistics: of the batch statistics, `a_f`.
    first: of the statistics of the first normalisation, `c_0`.
    scale: length of features and mean features in the cross-entropy; 0 leaves
      them unchanged.
  """

  variation: float = 1e-4
  size: float = 1e-5
  statistics: float = 0.05
  first: float = 10.0
  scale: float = 30.0


class Search(NamedTuple):
  """How images are optimised.

  Attributes:
    steps: at half the resolution, and at the full one.
    lr: highest learning rate of Adam.
    seed: of noise, rolls and mirrors.
  """

  steps: tuple[int, int] = (2000, 1000)
  lr: float = 0.2
  seed: int = 0


def watch(
  model: types.Model, variables: Flat, images: Float[Array, 'B H W ch']
) -> tuple[
  types.Outputs, dict[str, tuple[Float[Array, ' _'], Float[Array, ' _']]]
]:
  """Runs a network in evaluation mode and measures its normalisation inputs.

  Args:
    model: network.
    variables: of the network.
    images: normalised images.

  Returns:
    (outputs, mean and biased variance, `[D]` each, of the input of each batch
    normalisation of maps, by its name and in the order they are called).
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
  # The gradient of the norm of zero is zero, not nan.
  return jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis), 1e-12))


def make_loss(
  model: types.Model,
  variables: Flat,
  means: Float[Array | np.ndarray, 'C D'],
  labels: Int[Array | np.ndarray, ' B'],
  weights: Weights,
) -> Loss:
  """Builds the objective `(images [B, H, W, ch]) -> (loss, its parts)`.

  Args:
    model: network.
    variables: of the network, frozen.
    means: mean pooled feature of each identity.
    labels: identity of each image.
    weights: of the parts, which are returned unweighted.
  """
  rows, labels = jnp.asarray(means), jnp.asarray(labels)
  if weights.scale:
    rows = rows / _norm(rows, 1)[:, None]

  def loss(
    images: Float[Array, 'B H W ch'],
  ) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
    outputs, seen = watch(model, variables, images)
    feature = outputs.feature
    if weights.scale:
      feature = weights.scale * feature / _norm(feature, 1)[:, None]
    gaps = [
      _norm(mean - variables[f'batch_stats/{name}/mean'])
      + _norm(var - variables[f'batch_stats/{name}/var'])
      for name, (mean, var) in seen.items()
    ]
    gaps[:1] = [weights.first * gap for gap in gaps[:1]]
    valid = jnp.ones(len(labels), bool)
    parts = {
      'identity': identity.cross_entropy(feature @ rows.T, labels, valid),
      'variation': variation(images),
      'size': _norm(images, (1, 2, 3)).mean(),
      'statistics': sum(gaps, jnp.float32(0.0)),
    }
    return (
      parts['identity']
      + weights.variation * parts['variation']
      + weights.size * parts['size']
      + weights.statistics * parts['statistics']
    ), parts

  return loss


class State(NamedTuple):
  """State of an optimisation.

  Attributes:
    images: the current ones.
    optimizer: its state.
    best: the images with the smallest loss so far.
    least: that loss.
  """

  images: Float[Array, 'B H W ch']
  optimizer: optax.OptState
  best: Float[Array, 'B H W ch']
  least: Float[Array, '']


def make_step(
  loss: Loss,
  optimizer: optax.GradientTransformation,
  limits: tuple[Float[Array, ' ch'], Float[Array, ' ch']],
) -> Callable[[State, Key[Array, ''], int], State]:
  """Builds a compiled step, `(state, key of all steps, number) -> state`.

  Args:
    loss: objective.
    optimizer: of the images.
    limits: lowest and highest value of each channel.
  """

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
    return State(
      jnp.clip(state.images + change, *limits),
      inner,
      jnp.where(better, state.images, state.best),
      jnp.where(better, value, state.least),
    )

  return step


def reconstruct(
  loss: Loss,
  shape: Sequence[int],
  limits: tuple[Float[Array, ' ch'], Float[Array, ' ch']],
  search: Search,
) -> tuple[Float[Array, 'B H W ch'], Float[Array, 'B H W ch']]:
  """Reconstructs images.

  Args:
    loss: objective.
    shape: of the images, `[B, H, W, ch]`.
    limits: lowest and highest value of each channel.
    search: settings of the optimisation.

  Returns:
    (reconstructed images, initial noise).
  """
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
    step = make_step(loss, optimizer, limits)
    own_key = jax.random.fold_in(key, stage)
    state = State(images, optimizer.init(images), images, jnp.float32(jnp.inf))
    for number in range(steps):
      state = step(state, own_key, number)
    images = jax.image.resize(state.best, tuple(shape), 'nearest')
  return images, noise
