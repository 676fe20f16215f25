"""The batch, the random keys and the contexts of one local step."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedreid_jax.core import prng, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Outputs
from fedreid_jax.method import contexts
from fedreid_jax.method.hook_types import Aux
from fedreid_jax.round.client import batches
from fedreid_jax.round.settings import Settings


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
      settings: settings of the local round.
      broadcast: the broadcast as the client received it.
      table: images.
      task: task of the client.
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

    self.batch = batches.gather(table, rows, task.valid[i], augment)
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
      size: number of rows.
    """

    def rows(x: Array) -> Array:
      return jax.lax.dynamic_slice_in_dim(x, first, size)

    part = copy.copy(self)
    part._first, part.batch = first, types.Batch(*map(rows, self.batch))
    photographs = rows(self._common['photographs'])

    def transform(key: Array) -> Array:
      return self.settings.train_transform(
        key, photographs, part.batch.modalities
      )

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
    )

  def before_loss(self, name: str) -> contexts.StepCtx:
    """Returns the context of a component before the loss."""
    return contexts.StepCtx(**self._own(name))

  def with_outputs(
    self, name: str, variables: Flat, outputs: Outputs, aux: dict[str, Aux]
  ) -> contexts.LossCtx:
    """Returns the context of a component with the outputs of the model.

    Args:
      name: name of the component.
      variables: variables with which `classify` computes identity scores.
      outputs: outputs of the model for the batch.
      aux: second results of `pre_step`, by name.
    """

    def classify(embedding: Array) -> Array:
      num_identities = self._task.num_identities
      return self.settings.model.classify(variables, embedding, num_identities)

    return contexts.LossCtx(
      **self._own(name),
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
