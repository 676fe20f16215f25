"""FedOpt: the server's optimiser uses the mean update as a gradient.

Reddi et al., Adaptive federated optimization, ICLR 2021, Algorithm 2. With w'
the aggregated model of the round, D = w' - w^t, m <- b1 m + (1 - b1) D and

  adagrad  v <- v + D^2
  yogi     v <- v - (1 - b2) D^2 sign(v - D^2)
  adam     v <- b2 v + (1 - b2) D^2

  w = w^t + lr m / (sqrt(v) + tau),  m = 0 and v = tau^2 at first.

`sgd` is FedAvgM (Hsu et al., 2019): m <- b1 m + D, w = w^t + lr m. With rate 1
and momentum 0 it is FedAvg. Running statistics are taken from the aggregated
model.

Deviations from the paper: w' is the aggregated model, weighted by size unless
another rule is composed; the paper's D is the uniform mean of the clients'
updates (compose with 'uniform'). Deviations from released code: none is known.
Like in the paper, and unlike in other optimisers, the moments have no bias
correction.
"""

import dataclasses
from typing import Annotated, Literal

import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.component import Component, ServerHooks
from fedreid_jax.method.contexts import AggregationCtx, ServerInitCtx


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedOpt."""

  name: Annotated[
    Literal['sgd', 'adam', 'yogi', 'adagrad'], 'server optimiser'
  ] = 'adam'
  lr: Annotated[
    float, Range(0), Mark.STRENGTH, 'learning rate of the server'
  ] = 0.01
  momentum: Annotated[
    float,
    Range(0, 0.9999),
    'momentum of sgd (0.9 is FedAvgM), or decay of the first moment of adam, '
    'yogi and adagrad',
  ] = 0.9
  beta2: Annotated[
    float, Range(0, 0.999999), 'adam, yogi: decay of the second moment'
  ] = 0.99
  tau: Annotated[
    float,
    Range(1e-12),
    'constant added to the root of the second moment; its square is the '
    'initial second moment',
  ] = 1e-3


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  name, lr, momentum = options.name, options.lr, options.momentum
  beta2, tau = options.beta2, options.tau

  def second(v: Array, update: Array) -> Array:
    square = update**2
    if name == 'adagrad':
      return v + square
    if name == 'yogi':
      return v - (1 - beta2) * square * jnp.sign(v - square)
    return beta2 * v + (1 - beta2) * square

  def init(ctx: ServerInitCtx) -> tuple[Flat, Flat]:
    params, _ = trees.trainable(ctx.shared)
    # A leading axis of one, because models of the server have one for clusters.
    zeros = {n: jnp.zeros_like(x)[None] for n, x in params.items()}
    return zeros, {n: x + tau**2 for n, x in zeros.items()}

  def update(
    state: tuple[Flat, Flat], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[Flat, Flat], Flat]:
    before, _ = trees.trainable(ctx.start)
    moved = {n: models[n] - x for n, x in before.items()}
    m, v = state
    weight = 1.0 if name == 'sgd' else 1 - momentum
    m = {n: momentum * m[n] + weight * d for n, d in moved.items()}
    v = {n: second(v[n], d) for n, d in moved.items()}
    scale = {
      n: 1.0 if name == 'sgd' else jnp.sqrt(x) + tau for n, x in v.items()
    }
    after = {n: x + lr * m[n] / scale[n] for n, x in before.items()}
    return (m, v), {**models, **after}

  return Component(
    'fedopt',
    server=ServerHooks(init=init, update=update),
    conflicts=('clustering',),
  )
