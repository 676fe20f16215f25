"""One local step: its batch, random keys, contexts, gradients and update."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core import prng, quotients, trees, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Metrics, Outputs, Tree
from fedreid_jax.method import component, contexts
from fedreid_jax.method.batch_stats import Layers
from fedreid_jax.method.contexts import Aux
from fedreid_jax.method.optimizers import LossFn
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


def gather(
  table: types.Table,
  rows: Array,
  valid: Array,
  transform: Callable[[Array], Array],
  frames: int = 1,
) -> types.Batch:
  """Returns a batch of a table's images.

  Args:
    rows: rows of the table, int32 `[B]`.
    valid: whether each row is an image and not padding, bool `[B]`.
    transform: `(uint8 images) -> float32 images`.
    frames: number of consecutive rows that are frames of one tracklet.
  """
  images = transform(table.images[rows])
  if frames > 1:
    rows, valid = rows[::frames], valid[::frames]
  return types.Batch(
    images=images,
    labels=table.labels[rows],
    cameras=table.cameras[rows],
    modalities=table.modalities[rows],
    valid=valid,
  )


class Step:
  """The batch, the random keys and the contexts of a step or a part of one."""

  def __init__(
    self,
    settings: Settings,
    broadcast: types.Broadcast,
    table: types.Table,
    task: types.ClientTask,
    i: Array,
  ):
    """Gathers and augments the batch.

    Args:
      i: index of the step within the rows of the task.
    """
    self.settings, self._broadcast, self._task = settings, broadcast, task
    # Counted in the whole round, so that segments have the same random keys.
    self.number = task.first_step + i
    self._first: Array | None = None
    rows, modalities = task.rows[i], table.modalities[task.rows[i]]

    def augment(images: Array) -> Array:
      key = self._key(Stream.AUGMENT)
      return settings.train_transform(key, images, modalities)

    def transform(key: Array) -> Array:
      return settings.train_transform(key, table.images[rows], modalities)

    valid, frames = task.valid[i], settings.frames
    self.batch = gather(table, rows, valid, augment, frames)
    within = 0.0
    if settings.schedule_per_step:
      within = self.number / jnp.maximum(task.num_steps, 1)
    photographs = table.images[rows]
    self.lr = settings.schedule(broadcast.round + within)
    self._common: dict[str, Any] = {
      'received': broadcast.shared,
      'task': task,
      'batch': self.batch,
      'photographs': photographs,
      'model': settings.model,
      'objective': settings.objective,
      'transform': transform,
      'test_transform': settings.test_transform,
      'optimizer': settings.optimizer,
      'step': self.number,
      'lr': self.lr,
      'round': broadcast.round,
    }

  def part(self, first: Array, size: int) -> 'Step':
    """Returns a step of consecutive rows of the batch, with different keys.

    Args:
      first: first row of the part, int32.
    """

    frames = self.settings.frames

    def rows(x: Array) -> Array:
      return jax.lax.dynamic_slice_in_dim(x, first, size)

    def images(x: Array) -> Array:
      if frames == 1:
        return rows(x)
      return jax.lax.dynamic_slice_in_dim(x, first * frames, size * frames)

    part = copy.copy(self)
    own = images(self.batch.images), *map(rows, self.batch[1:])
    part._first, part.batch = first, types.Batch(*own)
    photographs = images(self._common['photographs'])

    def transform(key: Array) -> Array:
      modalities = part.batch.modalities
      if frames > 1:
        modalities = jnp.repeat(modalities, frames)
      return self.settings.train_transform(key, photographs, modalities)

    part._common = self._common | {
      'batch': part.batch,
      'photographs': photographs,
      'transform': transform,
    }
    return part

  def gradient(
    self,
    name: str,
    loss: Callable[[Flat, Array, int], tuple[Array, types.Metrics]],
  ) -> contexts.GradientCtx:
    """Returns the context of the component that owns the gradient."""
    return contexts.GradientCtx(self.batch, loss, self._own(name)['key'])

  def apply(self, variables: Flat) -> tuple[Outputs, Flat]:
    """Returns the outputs of a model for the batch, and its new statistics."""
    return self.settings.model.apply(
      variables,
      self.batch.images,
      train=True,
      key=self._key(Stream.DROPOUT),
      mask=self.batch.valid if self.settings.masked else None,
      num_identities=self._task.num_identities,
      modalities=self.batch.modalities,
      labels=self.batch.labels,
      cameras=self.batch.cameras,
    )

  def before_loss(self, name: str, variables: Flat) -> contexts.StepCtx:
    """Returns the context of a component before the loss."""
    return contexts.StepCtx(**self._own(name), variables=variables)

  def with_outputs(
    self, name: str, variables: Flat, outputs: Outputs, aux: dict[str, Aux]
  ) -> contexts.LossCtx:
    """Returns the context of a component with the outputs of the model.

    Args:
      variables: variables of the client, with which `classify` computes
        identity scores.
      aux: second results of `pre_step`, by name.
    """

    def classify(embedding: Array) -> Array:
      num_identities = self._task.num_identities
      return self.settings.model.classify(variables, embedding, num_identities)

    return contexts.LossCtx(
      **self._own(name),
      variables=variables,
      outputs=outputs,
      classify=classify,
      aux=aux.get(name),
    )

  def _key(self, stream: Stream) -> Array:
    base = prng.of_task(self._task, stream, self._broadcast.round)
    return self._numbered(base)

  def _numbered(self, base: Array) -> Array:
    """Returns the key of the step, or of a part of it."""
    key = jax.random.fold_in(base, self.number)
    return key if self._first is None else jax.random.fold_in(key, self._first)

  def _own(self, name: str) -> dict[str, Any]:
    """Returns the fields of all contexts of one component."""
    base = prng.of_task(self._task, Stream.TERM, self._broadcast.round)
    round_key = jax.random.fold_in(base, prng.component_uid(name))
    return self._common | {
      'message': self._broadcast.messages.get(name),
      'key': self._numbered(round_key),
      'round_key': round_key,
    }


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
  variables = {**carry.params, **carry.batch_stats}
  states: dict[str, Tree] = dict(carry.states)
  aux: dict[str, Aux] = {}
  for name, hook in hooks.items():
    if hook.pre_step:
      ctx = step.before_loss(name, variables)
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
  some = jnp.maximum(images, 1.0)
  mean = {n: quotients.divide(sum_, some) for n, sum_ in total.items()}
  moved = trees.select(last, move(mean), carry)
  return dataclasses.replace(moved, sums=(total, images))
