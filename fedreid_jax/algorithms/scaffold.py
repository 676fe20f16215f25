"""SCAFFOLD: local steps are corrected by what the other clients would do.

Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated
learning, ICML 2020, Algorithm 1, option II. With control variates c at the
server and c_k at client k, zero at first, every local gradient gets c - c_k
added, as the linear term <c - c_k, w> of the loss. After the round

  c_k' = c_k - c + (w^t - w_k) / (eta |a|_1),
  c' = c + sum_{k in S} p_k (c_k' - c_k),  p_k = n_k / sum_{j=1}^N n_j,

over the trainable leaves that travel. The sum of sizes is over all N clients,
the expected size of a cohort times N / |S|. So c = sum_k p_k c_k at any time,
whoever takes part, and where the controls are the gradients at w no client
moves if sum_k p_k grad F_k(w) = 0: the fixed point is the optimum of the
objective that weights clients by size, as the mean of models does.

Deviations from the paper: there p_k = 1/N, and the cohort's models count alike;
`weights='uniform'` gives both. It divides by the number of steps, which is
|a|_1 of SGD without momentum; with momentum a gradient counts
`optim.accumulated` times. The correction is a gradient of every leaf that
travels, so all of these have weight decay. The server's own step is 1; compose
with 'fedopt' for another. With `optim.schedule_per_step` eta is the rate at the
beginning of the round. There is no released code of the authors.
"""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import aggregation, param_filter
from fedreid_jax.core.component import (
  Component,
  FinishCtx,
  InitCtx,
  LocalTerm,
  ServerStep,
  StepCtx,
)
from fedreid_jax.core.options import Checked


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of SCAFFOLD."""

  weights: Annotated[
    Literal['size', 'uniform'],
    'of clients, in the control and in the model; size leaves the model to '
    'another rule',
  ] = 'size'


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  uniform = options.weights == 'uniform'

  def init(key, variables):
    del key
    params, _ = param_filter.trainable(variables)
    return {n: jnp.zeros_like(x) for n, x in params.items()}

  def loss(variables, state, ctx: StepCtx):
    control = ctx.broadcast.extras['scaffold']
    pull = sum(
      ((c - state[n]) * variables[n]).sum() for n, c in control.items()
    )
    # Only its gradient is wanted: the value would hide the loss.
    return pull - jax.lax.stop_gradient(pull), {}

  def finish(state, ctx: FinishCtx):
    if ctx.optimizer.accumulated is None:
      raise errors.ConfigError(
        'SCAFFOLD is defined for SGD', 'optim.name', "set it to 'sgd'"
      )
    counts = ctx.optimizer.accumulated(ctx.work.num_steps)
    control = ctx.broadcast.extras['scaffold']
    change = {}
    for name, c in control.items():
      rate = jnp.maximum(ctx.lr * ctx.optimizer.factor(name) * counts, 1e-12)
      moved = ctx.start[name] - ctx.variables[name]
      change[name] = moved / rate - c
    own = {n: state[n] + d for n, d in change.items()}
    return {**state, **own}, change

  def begin(ctx: InitCtx):
    params, _ = param_filter.trainable(ctx.shared)
    slot = {n: jnp.zeros_like(x) for n, x in params.items()}
    counts = jnp.ones_like(ctx.sizes) if uniform else ctx.sizes
    return slot, counts / counts.sum()

  def collect(slot, uploads, arrived):
    control, shares = slot
    share = jnp.where(arrived, shares[jnp.maximum(uploads.index, 0)], 0.0)

    def moved(c, changes):
      wide = (-1,) + (1,) * c.ndim
      changes = jnp.where(arrived.reshape(wide), changes, 0.0)
      return c + (share.reshape(wide) * changes).sum(axis=0)

    change = uploads.extras['scaffold']
    return {n: moved(c, change[n]) for n, c in control.items()}, shares

  def alike(ctx, members):
    return aggregation.uniform(ctx.uploads, members)

  return Component(
    'scaffold',
    weights=alike if uniform else None,
    term=LocalTerm(init=init, loss=loss, finish=finish),
    server_step=ServerStep(
      init=begin,
      collect=collect,
      broadcast=lambda slot: slot[0],
      one_model=True,
    ),
  )
