"""SCAFFOLD: local steps are corrected by what the other clients would do.

Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated
learning, ICML 2020, Algorithm 1, option II. With control variates c at the
server and c_k at client k, zero at first, every local gradient gets c - c_k
added, as the linear term <c - c_k, w> of the loss. After the round

  c_k' = c_k - c + (w^t - w_k) / (eta |a|_1),  c' = c + (1/N) sum_S (c_k' - c_k)

over the trainable leaves that travel.

Deviations from the paper: it divides by the number of steps, which is |a|_1 of
SGD without momentum; with momentum a gradient counts `optim.accumulated` times.
Weights are by size; compose with 'uniform' for the paper's. The server's own
step is 1; compose with 'fedopt' for another. With `optim.ramp` eta is the rate
at the beginning of the round. There is no released code of the authors.
"""

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import partition
from fedreid_jax.core.component import (
  Component,
  FinishCtx,
  InitCtx,
  LocalTerm,
  ServerStep,
  StepCtx,
)


def make() -> Component:
  """Builds the component."""

  def init(key, variables):
    del key
    params, _ = partition.trainable(variables)
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
    params, _ = partition.trainable(ctx.shared)
    slot = {n: jnp.zeros_like(x) for n, x in params.items()}
    return slot, jnp.float32(ctx.num_clients)

  def collect(slot, uploads, arrived):
    control, num_clients = slot

    def moved(c, changes):
      here = arrived.reshape((-1,) + (1,) * (changes.ndim - 1))
      return c + jnp.where(here, changes, 0.0).sum(axis=0) / num_clients

    change = uploads.extras['scaffold']
    return {n: moved(c, change[n]) for n, c in control.items()}, num_clients

  return Component(
    'scaffold',
    term=LocalTerm(init=init, loss=loss, finish=finish),
    server_step=ServerStep(
      init=begin,
      collect=collect,
      broadcast=lambda slot: slot[0],
      one_model=True,
    ),
  )
