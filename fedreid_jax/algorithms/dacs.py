"""DACS: images in a learned style, between diversity and authenticity.

Yang, Zhong, Luo, He, Li and Sebe, Diversity-Authenticity Co-constrained
Stylization for Federated Domain Generalization in Person Re-identification,
AAAI 2024, by the group of DFH. Beside the global model G that it receives and
trains, every client keeps a local model L, which it trains on its own images
and never sends, and a style transformation model of two arrays of the size of
an image, a scale s and a shift t. With the mean m(x) and the variance v(x) of
each channel of an image x, the transformed image is

  x' = s (x - m(x)) / sqrt(v(x)) + t.

With the mean entropies H_G and H_L of the scores of the client's classifier for
features of G and of L, each step of round 1 and later minimises

  L_ori(G, x) + L_ori(G, x') + L_div + lam L_auth,

  L_auth = softplus(H_G(x) - H_G(x')) + softplus(H_G(x') - H_L(x')),
  L_div = -mean (t - m(x))^2 - mean (s^2 - v(x))^2,

over G, the classifier, s and t: transformed images are hard for the local model
and easy for the global one, and their statistics differ from those of the
originals. H_G are those of a copy of G in evaluation mode that is not changed,
so that L_auth trains the classifier, s and t. The local model takes a step on
L_ori(L, x) with the client's classifier before, and L_auth and L_div begin in
round 1. s starts as N(1, 0.1^2) and t as N(0, 0.1^2). Nothing more is sent than
by FedPav.

The equations are those of the released code. The abstract of the paper says
that L_div enlarges the Wasserstein distance between original and transformed
data, and L_auth makes them easy for the global and hard for the local model.

Deviations from the paper: x and x' are normalised images, as in the code; the
paper's text could not be compared with its code. Deviations from the released
code: the classifier, triplet loss and retrieval use the space of the
configuration, there the normalisation after the pooling; running statistics of
G are those of the original images, there of both; m(x) and v(x) are biased.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core import quotients, trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import (
  Array,
  Batch,
  Flat,
  Metrics,
  Outputs,
  Tree,
)
from fedreid_jax.losses import identity, style
from fedreid_jax.method.component import ClientHooks, Component, Participants
from fedreid_jax.method.contexts import LossCtx, RoundCtx, RoundEndCtx, StepCtx
from fedreid_jax.models.layers import norm, styles

# The classifier is that of the client, for both models.
CLASSIFIER = r'params/(.+/)?classifier/'
SCALE, SHIFT = 'params/style/scale', 'params/style/shift'
FIRST = 1  # round of the first transformed images
SPREAD = 0.1  # standard deviation of s and t at the start
# The released code adds it to a standard deviation.
EPSILON = 1e-8
Objective = Callable[[Outputs, Batch], tuple[Array, Metrics]]


class Kept(NamedTuple):
  """What a client keeps: the local model without classifier, and s and t."""

  local: Flat
  transformation: Flat


class Training(NamedTuple):
  """The same within a round, with the states of their optimisers."""

  kept: Kept
  local_state: Tree
  transformation_state: Tree


class Transformed(NamedTuple):
  """The transformed images of a step, and what models say of them."""

  images: Array  # `[B, H, W, ch]`
  embeddings: Array  # of G for x', of G for x and of L for x', `[3, B, D]`
  diversity: Array


class Losses(NamedTuple):
  """L_ori of a step, which another method may replace.

  Attributes:
    local: that of the local model, for the images of a batch.
    transformed: that of G, for the transformed images.
  """

  local: Objective
  transformed: Objective


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DACS."""

  lam: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the authenticity loss'
  ] = 1.0


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def bind(participants: Participants) -> Component:
    return _of_images(options, participants.image_shape)

  # Images of any shape have the same hooks and properties.
  return _of_images(options, (1, 1, 1))._replace(bind=bind)


def _of_images(options: Options, shape: tuple[int, ...]) -> Component:
  return Component(
    'dacs',
    client=ClientHooks(
      init=functools.partial(init, shape),
      round_start=round_start,
      pre_step=functools.partial(_pre_step, options),
      loss=functools.partial(_loss, options),
      round_end=_round_end,
    ),
    properties=('learned_style', 'single_images'),
  )


def init(shape: tuple[int, ...], key: Array, variables: Flat) -> Kept:
  """Returns what a client keeps before its first round, for images `shape`."""
  noise = SPREAD * jax.random.normal(key, (2, *shape))
  _, local = trees.split(variables, CLASSIFIER)
  return Kept(local, {SCALE: 1.0 + noise[0], SHIFT: noise[1]})


def round_start(state: Kept, ctx: RoundCtx) -> Training:
  """Returns the state of a round, with new optimisers."""
  params, _ = trees.trainable(state.local)
  # The optimisers of the released code are made anew in each round.
  init = ctx.optimizer.init
  return Training(state, init(params), init(state.transformation))


def _round_end(state: Training, ctx: RoundEndCtx) -> tuple[Kept, tuple[()]]:
  del ctx
  return state.kept, ()


def _pre_step(
  options: Options, state: Training, ctx: StepCtx
) -> tuple[Training, Transformed]:
  losses = Losses(ctx.objective, ctx.objective)
  state, made, _ = step(options.lam, losses, state, ctx)
  return state, made


def step(
  lam: float, losses: Losses, state: Training, ctx: StepCtx
) -> tuple[Training, Transformed, Array]:
  """Trains the local model, then s and t.

  Returns (state, images from before that, their embeddings in training mode).
  """
  local, local_state = _train_local(losses.local, state, ctx)

  def loss(transformation: Flat) -> tuple[Array, tuple[Transformed, Array]]:
    made = _transform(transformation, local, ctx)
    outputs, _ = _trained(ctx, ctx.variables, made.images, 3)
    value = losses.transformed(outputs, ctx.batch)[0] + made.diversity
    if lam:
      value += lam * _authenticity(made.embeddings, classify, ctx)
    return value, (made, outputs.embedding)

  def classify(embedding: Array) -> Array:
    return ctx.model.classify(ctx.variables, embedding, ctx.task.num_identities)

  before = state.kept.transformation
  grads, made = ctx.optimizer.grad(loss)(before)
  after = ctx.optimizer.update(
    grads, state.transformation_state, before, ctx.lr
  )
  # Until then the arrays are not trained.
  now, own_state = trees.select(
    ctx.round >= FIRST, after, (before, state.transformation_state)
  )
  made, embedding = jax.lax.stop_gradient(made)
  return Training(Kept(local, now), local_state, own_state), made, embedding


def _train_local(
  objective: Objective, state: Training, ctx: StepCtx
) -> tuple[Flat, Tree]:
  params, running = trees.trainable(state.kept.local)

  def loss(params: Flat) -> tuple[Array, Flat]:
    outputs, updated = _trained(
      ctx, {**ctx.variables, **params, **running}, ctx.batch.images, 1
    )
    return objective(outputs, ctx.batch)[0], updated

  grads, updated = ctx.optimizer.grad(loss)(params)
  params, own_state = ctx.optimizer.update(
    grads, state.local_state, params, ctx.lr
  )
  return {**params, **updated}, own_state


def _transform(transformation: Flat, local: Flat, ctx: StepCtx) -> Transformed:
  # Padded pixels may not be finite, and the arrays meet all rows.
  real = norm.per_sample(ctx.batch.valid, ctx.batch.images.ndim)
  x = jnp.where(real, ctx.batch.images, 0)
  own = styles.style_of(x)
  centred = x - own.mean[:, None, None]
  std = jnp.sqrt(own.var) + EPSILON
  normal = quotients.divide(centred, std[:, None, None])
  scale, shift = transformation[SCALE], transformation[SHIFT]
  made = scale * normal + shift

  def frozen(images: Array) -> Array:
    outputs, _ = ctx.model.apply(
      ctx.variables,
      images,
      train=False,
      num_identities=ctx.task.num_identities,
      modalities=ctx.batch.modalities,
      cameras=ctx.batch.cameras,
    )
    return outputs.embedding

  hard, _ = _trained(ctx, {**ctx.variables, **local}, made, 2)
  return Transformed(
    made,
    jnp.stack([frozen(made), frozen(x), hard.embedding]),
    -_distance(shift, own.mean, ctx) - _distance(scale**2, own.var, ctx),
  )


def _distance(array: Array, of_images: Array, ctx: StepCtx) -> Array:
  """The mean square of differences of `[H, W, ch]` and `[B, ch]`."""
  squares = (array - of_images[:, None, None]) ** 2
  return identity.masked_mean(squares.mean((1, 2, 3)), ctx.batch.valid)


def _trained(
  ctx: StepCtx, variables: Flat, images: Array, use: int
) -> tuple[Outputs, Flat]:
  """Runs a model in training mode; `use` is the number of a random key."""
  return ctx.model.apply(
    variables,
    images,
    train=True,
    key=jax.random.fold_in(ctx.key, use),
    mask=ctx.batch.valid,
    num_identities=ctx.task.num_identities,
    modalities=ctx.batch.modalities,
    cameras=ctx.batch.cameras,
    labels=ctx.batch.labels,
  )


def _authenticity(
  embeddings: Array, classify: Callable[[Array], Array], ctx: StepCtx
) -> Array:
  """L_auth of embeddings `[3, B, D]`, in the order of `Transformed`."""
  # H_G(x) <= H_G(x') <= H_L(x') is the order that SNR's entropies have.
  scores = jnp.stack([classify(x) for x in embeddings])
  return style.entropy(scores, ctx.batch.valid)


def _loss(
  options: Options, variables: Flat, state: Training, ctx: LossCtx
) -> tuple[Array, Metrics]:
  del state
  return added(options.lam, ctx.objective, variables, ctx.aux, ctx)


def added(
  lam: float,
  transformed: Objective,
  variables: Flat,
  made: Transformed,
  ctx: LossCtx,
) -> tuple[Array, Metrics]:
  """The losses of G and of the classifier beside L_ori(G, x)."""
  outputs, _ = _trained(ctx, variables, made.images, 3)
  augmented, _ = transformed(outputs, ctx.batch)
  authenticity = _authenticity(made.embeddings, ctx.classify, ctx)
  total = augmented
  if lam:
    total += lam * authenticity
  metrics = {
    'transformed': augmented,
    'authenticity': authenticity,
    'diversity': -made.diversity,
  }
  return jnp.where(ctx.round >= FIRST, total, 0.0), metrics
