"""FedOpt: an optimiser at the server takes the mean update for a gradient.

Reddi et al., Adaptive federated optimization, ICLR 2021, Algorithm 2. With w'
the reduction's model of the round, D = w' - w^t, m <- b1 m + (1 - b1) D and

  adagrad  v <- v + D^2
  yogi     v <- v - (1 - b2) D^2 sign(v - D^2)
  adam     v <- b2 v + (1 - b2) D^2

  w = w^t + lr m / (sqrt(v) + tau),  m = 0 and v = tau^2 at first.

`sgd` is FedAvgM (Hsu et al., 2019): m <- b1 m + D, w = w^t + lr m; rate 1 and
momentum 0 is FedAvg. Running statistics are those of the reduction.

Deviations from the paper: w' is the reduction's, by size unless another rule
is composed; the paper's D is the uniform mean of the clients' (compose with
'uniform'). Deviations from released code: none is known;
like the paper, and unlike optimisers elsewhere, moments are not corrected for
their start.
"""

import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import param_filter
from fedreid_jax.core.component import Component, ComponentInfo, ServerHooks
from fedreid_jax.core.contexts import AggregationCtx, ServerInitCtx
from fedreid_jax.core.types import Array, Flat

OPTIMIZERS = ('sgd', 'adam', 'yogi', 'adagrad')


def make(
  name: str = 'adam',
  lr: float = 0.01,
  momentum: float = 0.9,
  beta2: float = 0.99,
  tau: float = 1e-3,
) -> Component:
  """Builds the component.

  Args:
    name: one of `OPTIMIZERS`.
    lr: of the server.
    momentum: b1.
    beta2: b2 of adam and yogi.
    tau: what keeps the division finite, also the first root of v.

  Raises:
    ConfigError: for an unknown optimiser.
  """
  if name not in OPTIMIZERS:
    raise errors.ConfigError(
      f'unknown optimiser {name!r}', 'fedopt.name', f'one of {OPTIMIZERS}'
    )

  def second(v: Array, update: Array) -> Array:
    square = update**2
    if name == 'adagrad':
      return v + square
    if name == 'yogi':
      return v - (1 - beta2) * square * jnp.sign(v - square)
    return beta2 * v + (1 - beta2) * square

  def init(ctx: ServerInitCtx) -> tuple[Flat, Flat]:
    params, _ = param_filter.trainable(ctx.shared)
    zeros = {n: jnp.zeros_like(x)[None] for n, x in params.items()}
    return zeros, {n: x + tau**2 for n, x in zeros.items()}

  def update(
    state: tuple[Flat, Flat], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[Flat, Flat], Flat]:
    before, _ = param_filter.trainable(ctx.start)
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
    info=ComponentInfo(conflicts=('clustering',)),
  )
