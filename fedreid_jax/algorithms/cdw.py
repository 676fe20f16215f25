"""Cosine distance weight: clients are weighted by the change of their model.

Zhuang et al. (FedReIDBench), ACM MM 2020, section 5.2, and its journal version,
eq. 1 and 2. Let g be the identity scores of one batch by the model that a
client received, and g' the scores by the model that it trained, each with its
classifier. Then

  d_k = mean_i [ 1 - <g_i, g'_i> / (|g_i| |g'_i|) ],
  w = sum_{k in S} (d_k / sum_{j in S} d_j) w_k.

The batch is the first batch of the round, which contains images of the client
(`batch='local'`), or the first public images (`batch='public'`, the algorithms
of the journal). Both models are in evaluation mode, but normalise with the
moments of that batch, or with the running moments if it has a single image.

Deviations from the paper: the conference's Algorithm 3 divides by sum 1/m_k, so
that the weights do not sum to one; the journal's equation and the released code
do not. Deviations from the released code: it uses an augmented batch and both
models in training mode, where dropout adds to d; this module uses the test
transform and no dropout. If no model changed, the weights are by size.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Batch, Flat
from fedreid_jax.losses import identity, metric
from fedreid_jax.method import batch_stats
from fedreid_jax.method.accounting import Released
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  Participants,
  ServerHooks,
  broadcast_state,
)
from fedreid_jax.method.contexts import (
  RoundCtx,
  RoundEndCtx,
  ServerInitCtx,
  StepCtx,
  UploadCtx,
)
from fedreid_jax.method.rules import Given, Rule, needs_public
from fedreid_jax.method.sums import Sum

EXPOSES = (
  "it compares scores of images of the client; cdw.batch='public' does not"
)


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of CDW."""

  batch: Annotated[
    Literal['local', 'public'], 'images on which the distance is measured'
  ] = 'local'
  images: Annotated[int, Range(1), 'public: number of public images'] = 32


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  if given.options.batch == 'public':
    yield from needs_public(given, f'{given.name}.batch=public')


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  images, public = options.images, options.batch == 'public'

  def check(participants: Participants) -> None:
    if public:
      participants.require_public(images, 'cdw.images')

  def public_batch(ctx: ServerInitCtx) -> Array:
    return ctx.public[:images]

  on_own = ClientHooks(
    round_start=_no_batch, pre_step=_keep_first, round_end=_of_own_batch
  )
  return Component(
    'cdw',
    client=ClientHooks(round_end=_of_public_batch) if public else on_own,
    server=ServerHooks(init=public_batch, message=broadcast_state)
    if public
    else None,
    aggregation=Sum(_by_distance, _largest, fallback=True),
    properties=('single_images',),
    bind=check,
    released=Released() if public else EXPOSES,
  )


def _no_batch(state: tuple[()], ctx: RoundCtx) -> Batch:
  del state
  column = jnp.zeros(ctx.batch_shape[0], jnp.int32)
  photographs = jnp.zeros(ctx.batch_shape, jnp.uint8)
  return Batch(photographs, column, column, column, column > 0)


def _keep_first(first: Batch, ctx: StepCtx) -> tuple[Batch, tuple[()]]:
  now = ctx.batch._replace(images=ctx.photographs)
  return trees.select(ctx.step == 0, now, first), ()


def _distance(
  ctx: RoundEndCtx, photographs: Array, valid: Array, modalities: Array | None
) -> Array:
  """Returns d_k, the mean cosine distance between the scores of both models."""
  images = ctx.test_transform(photographs)

  def scores(variables: Flat) -> Array:
    # The running moments fit neither model: the received ones are averages, the
    # trained ones are delayed, and these errors would enter d.
    measured, _ = ctx.model.measure(
      variables, images, mask=valid, modalities=modalities
    )
    running, _ = ctx.model.apply(
      variables, images, train=False, modalities=modalities
    )
    # One image has no moments. Both are computed because `valid` is traced.
    several = valid.sum() >= batch_stats.FEWEST_IMAGES
    logits = jnp.where(several, measured.logits, running.logits)
    real = jnp.arange(logits.shape[1]) < ctx.task.num_identities
    # Padded identities, whose columns the loss masks, do not enter the cosine.
    return jnp.where(real, logits, 0.0)

  near = metric.cosine(scores(ctx.start), scores(ctx.variables))
  # Rounding may bring a cosine above 1, and a weight must not be negative.
  return identity.masked_mean(jnp.maximum(1.0 - near, 0.0), valid)


def _of_own_batch(first: Batch, ctx: RoundEndCtx) -> tuple[tuple[()], Array]:
  return (), _distance(ctx, first.images, first.valid, first.modalities)


def _of_public_batch(
  state: tuple[()], ctx: RoundEndCtx
) -> tuple[tuple[()], Array]:
  valid = jnp.ones(ctx.message.shape[0], bool)
  return state, _distance(ctx, ctx.message, valid, None)


def _by_distance(message: Array, ctx: UploadCtx) -> Array:
  del ctx
  return message


def _largest(sizes: np.ndarray) -> float:
  # The cosine distance of opposite vectors is 2.
  return 2.0 * len(sizes)
