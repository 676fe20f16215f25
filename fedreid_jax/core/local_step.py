"""One local step: gradients of the re-ID loss and of the components' losses."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core import component, contexts, prng, trees, types
from fedreid_jax.core.batch_stats import Layers
from fedreid_jax.core.optimizers import Optimizer
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Metrics, Outputs, Tree

Hooks = Mapping[str, component.ClientHooks]


class Settings(NamedTuple):
  """The parts of a local round that do not belong to components.

  Attributes:
    model: the network.
    objective: `(Outputs, Batch) -> (loss, metrics)`.
    optimizer: pure functions over the parameters.
    schedule: `(round with fraction) -> lr`.
    train_transform: `(key, uint8 [B, H, W, ch], modalities) -> float32 images`.
    test_transform: `(uint8 [B, H, W, ch]) -> float32 images`.
    outputs: shapes of the model's outputs for a batch.
    image_shape: `(B, H, W, ch)` of a batch.
    num_steps: number of steps of the longest round.
    seed: typed PRNG key of the run.
    shared: regular expression of the shared parameters.
    persistent: whether the optimiser state is kept between rounds.
    schedule_per_step: whether the learning rate changes within the round.
    masked: whether some batches have padded rows.
    data_pass_batch: images of one step of a pass over all images.
    accumulate: whether the gradients of a round are accumulated for one update
      at its end.
  """

  model: types.Model
  objective: Callable[..., tuple[Array, Metrics]]
  optimizer: Optimizer
  schedule: Callable[[Array], Array]
  train_transform: Callable[..., Array]
  test_transform: Callable[[Array], Array]
  outputs: types.Outputs
  image_shape: tuple[int, int, int, int]
  num_steps: int
  seed: Array
  shared: str
  persistent: bool = False
  schedule_per_step: bool = False
  masked: bool = True
  data_pass_batch: int = 64
  accumulate: bool = False


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
    sums: (accumulated gradients, their number of images) if gradients are
      accumulated.
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
) -> types.Batch:
  """Returns a batch of a table's images.

  Args:
    table: table of images.
    rows: int32 `[B]`.
    valid: real rows, bool `[B]`.
    transform: `(uint8 images) -> float32 images`.
  """
  return types.Batch(
    images=transform(table.images[rows]),
    labels=table.labels[rows],
    cameras=table.cameras[rows],
    modalities=table.modalities[rows],
    valid=valid,
  )


def make(
  settings: Settings, hooks: Hooks
) -> Callable[..., tuple[Carry, Metrics]]:
  """Returns `(broadcast, table, task, carry, i) -> (carry, metrics)`."""
  model = settings.model

  def one_step(
    broadcast: types.Broadcast,
    table: types.Table,
    task: types.ClientTask,
    carry: Carry,
    i: Array,
  ) -> tuple[Carry, Metrics]:
    step = task.first_step + i
    rows, modalities = task.rows[i], table.modalities[task.rows[i]]

    def key(stream: Stream) -> Array:
      base = prng.client(settings.seed, stream, broadcast.round, task.uid)
      return jax.random.fold_in(base, step)

    def transform(key: Array) -> Array:
      return settings.train_transform(key, table.images[rows], modalities)

    batch = gather(
      table,
      rows,
      task.valid[i],
      lambda images: settings.train_transform(
        key(Stream.AUGMENT), images, modalities
      ),
    )
    within = 0.0
    if settings.schedule_per_step:
      within = step / jnp.maximum(task.num_steps, 1)
    common: dict[str, Any] = {
      'received': broadcast.shared,
      'task': task,
      'batch': batch,
      'photographs': table.images[rows],
      'model': model,
      'objective': settings.objective,
      'transform': transform,
      'test_transform': settings.test_transform,
      'optimizer': settings.optimizer,
      'step': step,
      'lr': settings.schedule(broadcast.round + within),
      'round': broadcast.round,
    }

    def own(name: str) -> dict[str, Any]:
      """Returns the fields of a step's context for one component."""
      base = prng.client(settings.seed, Stream.TERM, broadcast.round, task.uid)
      round_key = jax.random.fold_in(base, prng.component_uid(name))
      return common | {
        'message': broadcast.messages.get(name),
        'key': jax.random.fold_in(round_key, step),
        'round_key': round_key,
      }

    def loss_ctx(
      name: str, variables: Flat, outputs: types.Outputs, aux: dict[str, Any]
    ) -> contexts.LossCtx:
      return contexts.LossCtx(
        **own(name),
        outputs=outputs,
        classify=lambda x: model.classify(variables, x, task.num_identities),
        aux=aux.get(name),
      )

    states: dict[str, Tree] = dict(carry.states)
    aux: dict[str, Any] = {}
    for name, hook in hooks.items():
      if hook.pre_step:
        ctx = contexts.StepCtx(**own(name))
        states[name], aux[name] = hook.pre_step(states[name], ctx)
    carry = dataclasses.replace(carry, states=states)

    def loss(params: Flat) -> tuple[Array, tuple[Outputs, Flat, Metrics]]:
      variables = {**params, **carry.batch_stats}
      outputs, new_stats = model.apply(
        variables,
        batch.images,
        train=True,
        key=key(Stream.DROPOUT),
        mask=batch.valid if settings.masked else None,
        num_identities=task.num_identities,
        modalities=batch.modalities,
        labels=batch.labels,
      )
      total, metrics = settings.objective(outputs, batch)
      for name, hook in hooks.items():
        if hook.loss:
          ctx = loss_ctx(name, variables, outputs, aux)
          extra, more = hook.loss(variables, carry.states[name], ctx)
          total = total + extra
          metrics |= {f'{name}_{k}': v for k, v in more.items()}
      return total, (outputs, new_stats, metrics | {'loss': total})

    gradient = settings.optimizer.grad(loss)
    grads, (outputs, new_stats, metrics) = gradient(carry.params)
    last = step == task.num_steps - 1
    carry = _update(settings, carry, grads, batch, common['lr'], last)
    states = dict(carry.states)
    for name, hook in hooks.items():
      if hook.post_step:
        variables = {**carry.params, **new_stats}
        ctx = loss_ctx(name, variables, outputs, aux)
        states[name] = hook.post_step(states[name], ctx)
    carry = dataclasses.replace(carry, batch_stats=new_stats, states=states)
    return carry, metrics

  return one_step


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
  num = batch.valid.sum().astype(jnp.float32)
  total, images = carry.sums
  total = {name: old + num * grads[name] for name, old in total.items()}
  images = images + num
  mean = {name: sum_ / jnp.maximum(images, 1.0) for name, sum_ in total.items()}
  moved = trees.select(last, move(mean), carry)
  return dataclasses.replace(moved, sums=(total, images))
