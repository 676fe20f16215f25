"""FedDyn: dynamic regularisation aligns the optima of clients and server.

Acar et al., Federated learning based on dynamic regularization, ICLR 2021,
Algorithm 1. With a gradient g_k at every client and its mean h at the server,
zero at first, a client minimises

  L_k(w) - <g_k, w> + alpha / 2 |w - w^t|^2,
  g_k' = g_k - alpha (w_k - w^t),

and the server, with the m uploads of N clients, sets

  h' = h - alpha / N sum_k (w_k - w^t),  w^{t+1} = 1 / m sum_k w_k - h' / alpha

over the trainable shared parameters. Where all clients have g_k = grad L_k(w)
and these sum to zero, no client moves: the fixed point is an optimum of the
mean of the losses, whatever the number of local steps. Running statistics are
the mean of the uploads.

Deviations from the paper: none in the equations; a client takes its local steps
instead of minimising to the end. Deviations from the released code: there the
weight decay of a client is replaced by alpha plus the decay and the linear term
holds w^t, which is the same loss; alpha is divided by the relative size of a
client if clients are unbalanced, while the paper and this module weight all
clients alike.
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.method.component import ClientHooks, Component, ServerHooks
from fedreid_jax.method.contexts import (
  AggregationCtx,
  LossCtx,
  RoundEndCtx,
  ServerInitCtx,
)
from fedreid_jax.method.sums import UNIFORM


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedDyn."""

  alpha: Annotated[
    float,
    Range(1e-6),
    Mark.STRENGTH,
    'weight of the regularisation; the paper tries 0.001 to 0.1',
  ] = 0.01


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  alpha = options.alpha

  def loss(variables: Flat, state: Flat, ctx: LossCtx) -> tuple[Array, Metrics]:
    received, _ = trees.trainable(ctx.received)
    linear = squared = jnp.float32(0.0)
    for name, start in received.items():
      # <g, w - w^t> has the gradient of <g, w> and stays small.
      moved = variables[name] - start
      linear += (state[name] * moved).sum()
      squared += (moved**2).sum()
    return 0.5 * alpha * squared - linear, {'distance': squared}

  def round_end(state: Flat, ctx: RoundEndCtx) -> tuple[Flat, tuple[()]]:
    received, _ = trees.trainable(ctx.received)
    own = {
      n: state[n] - alpha * (ctx.variables[n] - start)
      for n, start in received.items()
    }
    # The state also has personal parameters if a client has any; they stay 0.
    return {**state, **own}, ()

  def update(
    state: tuple[Flat, Array], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[Flat, Array], Flat]:
    mean, num_clients = state
    share = ctx.valid.sum() / num_clients
    before, _ = trees.trainable(ctx.start)
    mean = {
      n: h - alpha * share * (models[n] - before[n]) for n, h in mean.items()
    }
    # Without an upload the model stays; the paper has no such round.
    some = ctx.valid.any()
    after = {
      n: jnp.where(some, models[n] - h / alpha, before[n])
      for n, h in mean.items()
    }
    return (mean, num_clients), {**models, **after}

  return Component(
    'feddyn',
    client=ClientHooks(init=_init, loss=loss, round_end=round_end),
    server=ServerHooks(init=_init_server, update=update),
    aggregation=UNIFORM,
    properties=('anchored', 'label_free', 'separable'),
    conflicts=('clustering', 'max_staleness', 'server.update'),
  )


def _init(key: Array, variables: Flat) -> Flat:
  del key
  params, _ = trees.trainable(variables)
  return {n: jnp.zeros_like(x) for n, x in params.items()}


def _init_server(ctx: ServerInitCtx) -> tuple[Flat, Array]:
  params, _ = trees.trainable(ctx.shared)
  # A leading axis of one, because models of the server have one for clusters.
  zeros = {n: jnp.zeros_like(x)[None] for n, x in params.items()}
  return zeros, jnp.float32(ctx.num_clients)
