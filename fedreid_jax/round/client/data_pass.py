"""Passes over all images of a client: moments of layers, and data passes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedreid_jax.core import prng, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import batch_stats
from fedreid_jax.round.client import batches, local_step
from fedreid_jax.round.settings import Settings

_T = TypeVar('_T')


def fold(
  settings: Settings,
  table: types.Table,
  task: types.ClientTask,
  body: Callable[[_T, types.Batch], _T],
  start: _T,
  augment: bool = False,
) -> _T:
  """Folds `(value, batch) -> value` over the images of a pass.

  Args:
    settings: settings of the local round.
    table: images.
    task: task of the client; `pass_rows` are the batches.
    body: function of the fold.
    start: initial value.
    augment: whether images have the training transform instead of the test
      transform.
  """
  # The same keys in every round, so that moments depend on the model only.
  base = prng.of_task(task, Stream.PASS, 0)

  def one(i: Array, value: _T) -> _T:
    # Without the barrier XLA would treat a pass of a single batch as constant,
    # hoist it out of the loop and sum its images in a different order.
    rows, valid, _ = jax.lax.optimization_barrier(
      (task.pass_rows[i], task.pass_valid[i], i)
    )
    transform: Callable[..., Array] = settings.test_transform
    if augment:
      transform = functools.partial(
        settings.train_transform,
        # Counted in the whole pass, so that segments have the same keys.
        jax.random.fold_in(base, task.first_step + i),
        modalities=table.modalities[rows],
      )
    return body(value, batches.gather(table, rows, valid, transform))

  # Padded batches are at the end.
  num = task.pass_valid.any(axis=1).sum(dtype=jnp.int32)
  return jax.lax.fori_loop(0, num, one, start)


def _measured(
  settings: Settings,
  variables: Flat,
  batch: types.Batch,
  num_identities: Array | None = None,
) -> tuple[types.Outputs, batch_stats.Layers]:
  return settings.model.measure(
    variables,
    batch.images,
    mask=batch.valid,
    num_identities=num_identities,
    modalities=batch.modalities,
  )


def no_moments(settings: Settings, variables: Flat) -> batch_stats.Layers:
  """Returns the moments of zero images, by layer."""
  column = jnp.zeros(settings.data_pass_batch, jnp.int32)
  images = jnp.zeros((len(column), *settings.image_shape[1:]))
  batch = types.Batch(images, column, column, column, column == 0)
  return batch_stats.zeros(lambda: _measured(settings, variables, batch))


def measure(
  settings: Settings,
  table: types.Table,
  variables: Flat,
  layers: batch_stats.Layers,
  task: types.ClientTask,
  augment: bool = False,
) -> batch_stats.Layers:
  """Merges moments with the moments of the images in the table.

  Args:
    settings: settings of the local round.
    table: images.
    variables: variables of the model, which stay as they are.
    layers: moments of the images before this table.
    task: task of the client.
    augment: whether images have the training transform.
  """
  return fold(
    settings,
    table,
    task,
    lambda layers, batch: batch_stats.merge(
      layers, _measured(settings, variables, batch, task.num_identities)[1]
    ),
    layers,
    augment,
  )


def run(
  settings: Settings,
  hooks: local_step.Hooks,
  table: types.Table,
  carry: local_step.Carry,
  task: types.ClientTask,
) -> local_step.Carry:
  """Runs the components' data passes over the images in the table.

  Args:
    settings: settings of the local round.
    hooks: hooks of the components, by name.
    table: images.
    carry: carry of the client, with the moments of all its images.
    task: task of the client.
  """
  # The running moments follow the weights with a delay (`method.batch_stats`).
  passes = {n: h.data_pass for n, h in hooks.items() if h.data_pass}
  variables = batch_stats.install(
    {**carry.params, **carry.batch_stats}, carry.moments
  )

  def body(passed: dict[str, Any], batch: types.Batch) -> dict[str, Any]:
    outputs, _ = settings.model.apply(
      variables,
      batch.images,
      train=False,
      num_identities=task.num_identities,
      modalities=batch.modalities,
    )
    return {n: p.update(passed[n], outputs, batch) for n, p in passes.items()}

  passed = fold(settings, table, task, body, carry.passed)
  return dataclasses.replace(carry, passed=passed)
