"""SCAFFOLD: control variates correct the drift of local steps.

Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated
learning, ICML 2020, Algorithm 1, option II. With control variates c at the
server and c_k at client k, zero at first, c - c_k is added to every local
gradient, as the linear term <c - c_k, w> of the loss. After the round

  c_k' = c_k - c + (w^t - w_k) / (eta |a|_1),
  c' = c + sum_{k in S} p_k (c_k' - c_k),  p_k = n_k / sum_{j=1}^N n_j,

over the trainable shared parameters. The sum of sizes is over all N clients, so
that c = sum_k p_k c_k at any time, for any cohorts. If the controls are the
gradients at w, no client moves when sum_k p_k grad F_k(w) = 0: the fixed point
is the optimum of the objective that weights clients by size, like the mean of
models.

Deviations from the paper: there p_k = 1/N, and the models of the cohort have
equal weights; `weights='uniform'` gives both. The paper divides by the number
of steps, which is |a|_1 of SGD without momentum; with momentum a gradient has a
total weight of `optim.effective_steps`. The correction is a gradient of every
shared parameter, so all of these have weight decay. The server's step is 1;
compose with 'fedopt' for another step. With `optim.schedule_per_step` eta is
the rate at the beginning of the round. There is no released code of the
authors.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import quotients, trees
from fedreid_jax.core.options import Checked
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.method.accounting import Released
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  ServerHooks,
)
from fedreid_jax.method.contexts import (
  LossCtx,
  ReceiveCtx,
  RoundEndCtx,
  ServerInitCtx,
)
from fedreid_jax.method.rules import Given, Rule, divides_by_steps
from fedreid_jax.method.sums import UNIFORM, MessageSum, by_share

# Bound of the changes of a control in secure aggregation. They are gradients,
# which are larger only at a client that diverges.
LIMIT = 2.0**10


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of SCAFFOLD."""

  weights: Annotated[
    Literal['size', 'uniform'],
    'weights of clients in the control and in the model; with size another '
    'component may weight the model',
  ] = 'size'


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from divides_by_steps(given)


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  uniform = options.weights == 'uniform'

  def init_server(ctx: ServerInitCtx) -> tuple[Flat, Array]:
    params, _ = trees.trainable(ctx.shared)
    control = {n: jnp.zeros_like(x) for n, x in params.items()}
    counts = jnp.ones_like(ctx.sizes) if uniform else ctx.sizes
    return control, counts / counts.sum()

  return Component(
    'scaffold',
    client=ClientHooks(init=_init, loss=_correction, round_end=_update_control),
    server=ServerHooks(
      init=init_server,
      receive=MessageSum(_share, _moved, by_share, LIMIT),
      message=_own_control,
    ),
    aggregation=UNIFORM if uniform else None,
    properties=('label_free', 'separable'),
    # Equal weights would be those of the model only, not of the control.
    conflicts=('clustering', 'equal_weights', 'max_staleness'),
    released=Released(),
  )


def _init(key: Array, variables: Flat) -> Flat:
  del key
  params, _ = trees.trainable(variables)
  return {n: jnp.zeros_like(x) for n, x in params.items()}


def _correction(
  variables: Flat, state: Flat, ctx: LossCtx
) -> tuple[Array, Metrics]:
  """The linear term, whose gradient is c - c_k."""
  control = ctx.message
  pull = jnp.asarray(
    sum(((c - state[n]) * variables[n]).sum() for n, c in control.items())
  )
  # Only the gradient is used; adding the value would distort the loss.
  return pull - jax.lax.stop_gradient(pull), {}


def _update_control(state: Flat, ctx: RoundEndCtx) -> tuple[Flat, Flat]:
  """Returns (c_k', c_k' - c_k) after the steps of the round."""
  if ctx.optimizer.effective_steps is None:
    raise errors.ConfigError(
      'SCAFFOLD is defined for SGD', 'optim.name', "set it to 'sgd'"
    )
  counts = ctx.optimizer.effective_steps(ctx.task.num_steps)
  control = ctx.message
  change: Flat = {}
  for name, c in control.items():
    # A rate of zero leaves the weights unmoved, which must not become 0 / 0.
    rate = jnp.maximum(ctx.lr * ctx.optimizer.factor(name) * counts, 1e-12)
    moved = ctx.start[name] - ctx.variables[name]
    change[name] = quotients.divide(moved, rate) - c
  own = {n: state[n] + d for n, d in change.items()}
  # The state also has private parameters if a client has any; they stay zero.
  return {**state, **own}, change


def _share(
  state: tuple[Flat, Array], message: Flat, ctx: ReceiveCtx
) -> tuple[Array, Flat]:
  """Returns (p_k, c_k' - c_k) of one client."""
  return state[1][jnp.maximum(ctx.index, 0)], message


def _moved(
  state: tuple[Flat, Array], changes: Flat, valid: Array, ctx: ReceiveCtx
) -> tuple[Flat, Array]:
  del valid, ctx
  control, shares = state
  return {n: c + changes[n] for n, c in control.items()}, shares


def _own_control(state: tuple[Flat, Array]) -> Flat:
  return state[0]
