"""Cosine distance weight: clients whose model changed more count more.

Zhuang et al. (FedReIDBench), ACM MM 2020, section 5.2, and its journal version,
eq. 1 and 2. With g the identity scores of one batch by the model a client
received and g' by the model it trained, both with the classifier of their time,

  d_k = mean_i [ 1 - <g_i, g'_i> / (|g_i| |g'_i|) ],
  w = sum_{k in S} (d_k / sum_{j in S} d_j) w_k.

The batch is the round's first, of the client's own images (`batch='local'`), or
the first public ones (`batch='public'`, the journal's algorithms). Both models
are in evaluation mode, but normalise with the moments of that batch: running
moments belong to neither, those of the received model being an average and
those of the trained one delayed, and their errors would enter d. A batch of one
image has no moments; there the running ones are used.

Deviations from the paper: the conference's Algorithm 3 divides by sum 1/m_k, so
that weights do not sum to one; the journal's equation and the released code do
not. Deviations from the released code: it takes an augmented batch and both
models in training mode, where dropout adds to d; here the test transform and no
dropout. If no model changed, weights are by size.
"""

import dataclasses
from typing import Annotated, Literal

import jax.numpy as jnp

from fedreid_jax.core import aggregation, batch_stats
from fedreid_jax.core.component import (
  Component,
  FinishCtx,
  InitCtx,
  LocalTerm,
  Population,
  ServerStep,
)
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.losses import identity, similarity


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of CDW."""

  batch: Annotated[
    Literal['local', 'public'], 'images on which the distance is measured'
  ] = 'local'
  images: Annotated[int, Range(1), 'public: number of public images'] = 32


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  images, public = options.images, options.batch == 'public'

  def finish(state, ctx: FinishCtx):
    own = ctx.first_batch
    if public:
      sent = ctx.test_view(ctx.broadcast.extras['cdw'])
      valid, modalities = jnp.ones(sent.shape[0], bool), None
    else:
      assert own is not None
      sent, valid, modalities = own.images, own.valid, own.modalities

    def scores(variables):
      measured, _ = ctx.model.measure(
        variables, sent, mask=valid, modalities=modalities
      )
      running, _ = ctx.model.apply(
        variables, sent, train=False, modalities=modalities
      )
      several = valid.sum() >= batch_stats.FEWEST_IMAGES
      logits = jnp.where(several, measured.logits, running.logits)
      real = jnp.arange(logits.shape[1]) < ctx.work.num_identities
      return jnp.where(real, logits, 0.0)

    near = similarity.cosine(scores(ctx.start), scores(ctx.variables))
    return state, identity.masked_mean(jnp.maximum(1.0 - near, 0.0), valid)

  def check(people: Population):
    if public:
      people.require_public(images, 'cdw.images')

  def init(ctx: InitCtx):
    assert ctx.public is not None
    return ctx.public[:images]

  return Component(
    'cdw',
    term=LocalTerm(finish=finish, first_batch=not public),
    weights=lambda ctx, members: aggregation.normalise(
      ctx.uploads.extras['cdw'], members
    ),
    server_step=ServerStep(init=init, broadcast=lambda slot: slot)
    if public
    else None,
    check=check,
  )
