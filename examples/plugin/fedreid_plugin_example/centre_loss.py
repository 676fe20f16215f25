"""Centre loss: embeddings of an identity stay near the identity's centre.

Wen et al., A discriminative feature learning approach for deep face
recognition, ECCV 2016, equations 2 and 4. With embeddings x_i of the identities
y_i and a centre c_j of every identity of the client,

  L = L_reid + weight / 2 mean_i |x_i - c_{y_i}|^2
  c_j <- c_j - rate sum_{i: y_i = j} (c_j - x_i) / (1 + #{i: y_i = j})

The centres are the state of the client: they are kept between rounds, never
sent, and moved after every step by the embeddings before the update.

Deviations from the paper: the loss is a mean over the batch, not a sum. Centres
start at zero. Deviations from the released code: it updates centres with the
optimiser of the network in some versions; here they have their own rule, which
is equation 4.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from fedreid_jax.method import (
  Checked,
  ClientHooks,
  Component,
  LossCtx,
  Range,
)


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the centre loss."""

  weight: Annotated[float, Range(0), 'of the centre loss'] = 0.003
  rate: Annotated[float, Range(0, 1), 'of the move of a centre'] = 0.5


def distance(embedding, labels, valid, centres):
  """Returns half the mean squared distance to the centres, float32.

  Args:
    embedding: `[B, D]`.
    labels: int32 `[B]`.
    valid: real rows, bool `[B]`.
    centres: `[C, D]`.
  """
  squared = ((embedding - centres[labels]) ** 2).sum(axis=1)
  total = jnp.where(valid, squared, 0.0).sum()
  return 0.5 * total / jnp.maximum(valid.sum(), 1)


def moved(embedding, labels, valid, centres, rate: float):
  """Returns the centres after a batch, `[C, D]`; arguments as `distance`."""
  hits = jax.nn.one_hot(labels, len(centres)) * valid[:, None]  # [B, C]
  count = hits.sum(axis=0)[:, None]
  embedding = jnp.where(valid[:, None], embedding, 0)
  difference = count * centres - hits.T @ embedding
  return centres - rate * difference / (1 + count)


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def init(key, variables):
    del key
    kernel = next(
      leaf
      for name, leaf in sorted(variables.items())
      if name.endswith('classifier/kernel')
    )
    return jnp.zeros(kernel.shape[::-1], jnp.float32)  # [C, D]

  def loss(variables, centres, ctx: LossCtx):
    del variables
    batch = ctx.batch
    value = distance(ctx.outputs.embedding, batch.labels, batch.valid, centres)
    return options.weight * value, {'distance': value}

  def post_step(centres, ctx: LossCtx):
    batch = ctx.batch
    embedding = jax.lax.stop_gradient(ctx.outputs.embedding)
    return moved(embedding, batch.labels, batch.valid, centres, options.rate)

  return Component(
    'centre_loss',
    client=ClientHooks(init=init, loss=loss, post_step=post_step),
  )
