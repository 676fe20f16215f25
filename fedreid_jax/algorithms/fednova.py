"""FedNova: normalised averaging for clients with different numbers of steps.

Wang et al., Tackling the objective inconsistency problem in heterogeneous
federated optimization, NeurIPS 2020, section 4. With the update
D_k = w^t - w_k, p_k = n_k / sum n and |a_k|_1 the total weight of the local
gradients in D_k (`optim.effective_steps`),

  w = w^t - tau sum_k p_k D_k / |a_k|_1,  tau = sum_k p_k |a_k|_1.

With a proximal term (`mu`, which must equal the mu of FedProx if both are
used), tau = sum_k p_k tau_k, where tau_k is the number of steps.

FedNova needs a zero momentum buffer at the start of every round, and |a|_1 is
defined for SGD only: both are checked. Running statistics are averaged by size.

With `mu` the rate in |a| is the rate at the beginning of the round, without the
learning rate multipliers of parameters. Deviations from the paper: none.
Deviations from the released code: it treats Nesterov momentum like heavy ball
(281.8 instead of 290.6 after 37 steps of 0.9); here the recursion is that of
Nesterov.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from fedreid_jax import errors
from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array
from fedreid_jax.method import sums
from fedreid_jax.method.accounting import Released
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
)
from fedreid_jax.method.contexts import RoundEndCtx, UploadCtx
from fedreid_jax.method.rules import Given, Rule, divides_by_steps
from fedreid_jax.method.sums import Divisor, Sum

# Bound of |a_k| in sums of integers: 26,000 steps with momentum 0.9, 2,600
# with 0.99. A larger one would round the numbers of all clients more coarsely.
LIMIT = 2.0**18


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedNova."""

  mu: Annotated[
    float,
    Range(0),
    Mark.STRENGTH,
    'weight of a proximal term; with fedprox it must be fedprox.mu',
  ] = 0.0


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from divides_by_steps(given)
  mu = given.options.mu
  for other in given.others:
    if 'proximal' in other.properties:
      used = given.config.options[other.name].mu
      yield (
        mu != used,
        f'{given.name}.mu',
        f'{mu}, but the proximal weight is {used}',
        f'set it to {other.name}.mu',
      )


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  mu = options.mu

  def round_end(state: tuple[()], ctx: RoundEndCtx) -> tuple[tuple[()], Array]:
    if ctx.optimizer.effective_steps is None:
      raise errors.ConfigError(
        'FedNova is defined for SGD', 'optim.name', "set it to 'sgd'"
      )
    return state, ctx.optimizer.effective_steps(ctx.task.num_steps, ctx.lr * mu)

  def weight(message: Array, ctx: UploadCtx) -> dict[str, Array]:
    params, _ = trees.trainable(ctx.start)
    return dict.fromkeys(params, ctx.num_examples / message)

  def numbers(
    message: Array, ctx: UploadCtx
  ) -> dict[str, tuple[Array, Array | float]]:
    worth = ctx.num_steps if mu else message
    return {
      'images': (ctx.num_examples, 1.0),
      'steps': (ctx.num_examples, worth),
    }

  divisor = Divisor(numbers, {'images': 1.0, 'steps': LIMIT}, _divided)
  return Component(
    'fednova',
    client=ClientHooks(round_end=round_end),
    # A weight is at most the number of images, because |a_k| is at least 1, the
    # weight of the last gradient.
    aggregation=Sum(weight, sums.by_size, divisor),
    released=Released(),
  )


def _divided(found: dict[str, Array]) -> Array:
  """Returns sum n / tau, where tau is the mean of |a_k|."""
  return found['images'] ** 2 / found['steps']
