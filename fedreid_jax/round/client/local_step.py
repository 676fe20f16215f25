"""One local step: gradients of the re-ID loss and of the components' losses."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array, Flat, Metrics, Outputs, Tree
from fedreid_jax.method import component
from fedreid_jax.method.batch_stats import Layers
from fedreid_jax.method.hook_types import Aux
from fedreid_jax.method.optimizers import LossFn
from fedreid_jax.round.client.step_contexts import Step
from fedreid_jax.round.settings import Settings

Hooks = Mapping[str, component.ClientHooks]


@struct.dataclass
class Carry:
  """The state of one client within its round.

  Attributes:
    params: parameters.
    batch_stats: running statistics.
    opt_state: state of the optimiser.
    states: states of the components in this round, by name.
    moments: moments of the trained model on the client's images, for data
      passes.
    passed: accumulators of data passes, by name.
    sums: (accumulated gradients, number of images in them) if gradients are
      accumulated, else ().
  """

  params: Flat
  batch_stats: Flat
  opt_state: Tree
  states: dict[str, Tree]
  moments: Layers
  passed: dict[str, Tree]
  sums: Tree


def run(
  settings: Settings,
  hooks: Hooks,
  broadcast: types.Broadcast,
  table: types.Table,
  task: types.ClientTask,
  carry: Carry,
  i: Array,
) -> tuple[Carry, Metrics]:
  """Runs one step.

  Args:
    settings: settings of the local round.
    hooks: hooks of the components, by name.
    broadcast: the broadcast as the client received it.
    table: images.
    task: task of the client.
    carry: state of the client before the step.
    i: index of the step within the rows of the task.

  Returns:
    (state after the step, metrics).
  """
  step = Step(settings, broadcast, table, task, i)
  carry, aux = _pre_step(hooks, step, carry)
  last = step.number == task.num_steps - 1
  owner = next((n for n, hook in hooks.items() if hook.gradient), None)
  # With an owner of the gradient, running statistics stay and no `post_step`
  # runs, because both would use images without its bound.
  if owner is not None:
    grads, metrics = _owned(owner, hooks, step, carry)
    return _update(settings, carry, grads, step.batch, step.lr, last), metrics
  gradient = settings.optimizer.grad(_loss(hooks, step, carry, aux))
  grads, (outputs, new_stats, metrics) = gradient(carry.params)
  carry = _update(settings, carry, grads, step.batch, step.lr, last)
  carry = dataclasses.replace(carry, batch_stats=new_stats)
  return _post_step(hooks, step, carry, outputs, aux), metrics


def _pre_step(
  hooks: Hooks, step: Step, carry: Carry
) -> tuple[Carry, dict[str, Aux]]:
  states: dict[str, Tree] = dict(carry.states)
  aux: dict[str, Aux] = {}
  for name, hook in hooks.items():
    if hook.pre_step:
      ctx = step.before_loss(name)
      states[name], aux[name] = hook.pre_step(states[name], ctx)
  return dataclasses.replace(carry, states=states), aux


def _loss(
  hooks: Hooks, step: Step, carry: Carry, aux: dict[str, Aux]
) -> LossFn:
  """Returns the sum of all losses as a function of the parameters."""

  def loss(params: Flat) -> tuple[Array, tuple[Outputs, Flat, Metrics]]:
    variables = {**params, **carry.batch_stats}
    outputs, new_stats = step.apply(variables)
    total, metrics = step.settings.objective(outputs, step.batch)
    for name, hook in hooks.items():
      if hook.loss:
        ctx = step.with_outputs(name, variables, outputs, aux)
        extra, more = hook.loss(variables, carry.states[name], ctx)
        total = total + extra
        metrics |= {f'{name}_{k}': v for k, v in more.items()}
    return total, (outputs, new_stats, metrics | {'loss': total})

  return loss


def _owned(
  owner: str, hooks: Hooks, step: Step, carry: Carry
) -> tuple[Flat, Metrics]:
  """Returns (gradients, metrics) of the component with a `gradient` hook."""

  def loss(params: Flat, first: Array, size: int) -> tuple[Array, Metrics]:
    of_part = _loss(hooks, step.part(first, size), carry, {})
    total, (_, _, metrics) = of_part(params)
    return total, metrics

  compute = hooks[owner].gradient
  assert compute
  given, metrics = compute(carry.params, step.gradient(owner, loss))

  def linear(params: Flat) -> tuple[Array, tuple[()]]:
    # The gradient of this function is the given one. The optimiser, which
    # differentiates it, adds the weight decay of the parameters in it.
    products = [jnp.vdot(x, params[n]) for n, x in given.items()]
    return jnp.stack(products).sum(), ()

  return step.settings.optimizer.grad(linear)(carry.params)[0], metrics


def _post_step(
  hooks: Hooks,
  step: Step,
  carry: Carry,
  outputs: Outputs,
  aux: dict[str, Aux],
) -> Carry:
  variables = {**carry.params, **carry.batch_stats}
  states = dict(carry.states)
  for name, hook in hooks.items():
    if hook.post_step:
      ctx = step.with_outputs(name, variables, outputs, aux)
      states[name] = hook.post_step(states[name], ctx)
  return dataclasses.replace(carry, states=states)


def _update(
  settings: Settings,
  carry: Carry,
  grads: Flat,
  batch: types.Batch,
  lr: Array,
  last: Array,
) -> Carry:
  """Updates the parameters, or accumulates gradients until the last step."""

  def move(grads: Flat) -> Carry:
    params, opt_state = settings.optimizer.update(
      grads, carry.opt_state, carry.params, lr
    )
    return dataclasses.replace(carry, params=params, opt_state=opt_state)

  if not settings.accumulate:
    return move(grads)
  # Weighted by images: the update has the gradient of the mean over all images.
  num = batch.valid.sum().astype(jnp.float32)
  total, images = carry.sums
  total = {name: old + num * grads[name] for name, old in total.items()}
  images = images + num
  mean = {name: sum_ / jnp.maximum(images, 1.0) for name, sum_ in total.items()}
  moved = trees.select(last, move(mean), carry)
  return dataclasses.replace(moved, sums=(total, images))
