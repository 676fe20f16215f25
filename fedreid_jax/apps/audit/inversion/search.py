"""The optimisation of images from noise that DeepInversion uses.

Images are first reconstructed at half the resolution, from noise averaged over
2x2 pixels, and enlarged.

Deviations from the released code: it continues with the noise before this
averaging, and keeps the best image of both resolutions. Here the enlarged
images are continued, and the best image of the last resolution is kept.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jaxtyping import Float, Key

from fedreid_jax.apps.audit.inversion.inversion import Loss
from fedreid_jax.core.types import Array

JITTER = 30 / 256  # largest roll, as a fraction of the height
WARMUP = 100  # steps
BETAS = 0.5, 0.9  # of Adam


class Search(NamedTuple):
  """Settings of the optimisation.

  Attributes:
    steps: numbers of steps at half and at full resolution.
    lr: highest learning rate of Adam.
    seed: of noise, rolls and mirrors.
  """

  steps: tuple[int, int] = (2000, 1000)
  lr: float = 0.2
  seed: int = 0


class State(NamedTuple):
  """State of an optimisation.

  Attributes:
    images: the current ones.
    optimizer: state of the optimizer.
    best: the images with the smallest loss so far.
    least: loss of these images.
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
    # The loss is of the images before this step.
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
    # Losses of two resolutions are not comparable: each starts at infinity.
    state = State(images, optimizer.init(images), images, jnp.float32(jnp.inf))
    for number in range(steps):
      state = step(state, own_key, number)
    images = jax.image.resize(state.best, tuple(shape), 'nearest')
  return images, noise
