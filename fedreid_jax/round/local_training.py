"""The local round of one client: the only training loop of the package.

All functions are pure functions of ONE client, without a leading axis. `begin`
starts the round, `train` runs the steps whose images are in the given table,
`measure` re-estimates the moments of batch normalisation of the trained model,
`data_pass` folds over the client's images with these moments, and `end` ends
the round. If the images stay on the device, each is called once. Otherwise
`train`, `measure` and `data_pass` are called for each segment, with the same
results.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedreid_jax.core import prng, trees, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Metrics, Tree
from fedreid_jax.method import batch_stats, component, contexts
from fedreid_jax.round import local_step
from fedreid_jax.round.local_step import Carry
from fedreid_jax.round.settings import Settings

STEP = 'local_step'  # scope of the operations of a step in compiled programs
_T = TypeVar('_T')


class Program(NamedTuple):
  """The local round as pure functions.

  Attributes:
    begin: `(Broadcast, ClientState, ClientTask) -> Carry`.
    train: `(Broadcast, Table, Carry, ClientTask) -> (Carry, sums of metrics)`.
    step: `(Broadcast, Table, Carry, ClientTask, index of the step) -> (Carry,
      metrics)`, one step of `train`.
    no_moments: `(variables) -> moments` of zero images, by layer.
    measure: `(Table, variables, moments, ClientTask, augment=False) ->
      moments`, merged with the moments of the images in the table. `augment`
      chooses the augmentation of the training.
    data_pass: `(Table, Carry, ClientTask) -> Carry`, after all images have been
      measured.
    end: `(Broadcast, ClientState, Carry, ClientTask, trained=True) -> (Upload,
      ClientState)`. `trained` is false before round 0; then only components
      with a data pass before the first round take part.
    has_data_pass: whether any component has a data pass.
    repeats_data_pass: whether any has one after the training of each round.
  """

  begin: Callable[..., Carry]
  train: Callable[..., tuple[Carry, Metrics]]
  step: Callable[..., tuple[Carry, Metrics]]
  no_moments: Callable[[Flat], batch_stats.Layers]
  measure: Callable[..., batch_stats.Layers]
  data_pass: Callable[..., Carry]
  end: Callable[..., tuple[types.Upload, types.ClientState]]
  has_data_pass: bool
  repeats_data_pass: bool

  def runs_data_pass(self, trained: bool) -> bool:
    """Whether there is a data pass after training, or before round 0."""
    return self.repeats_data_pass if trained else self.has_data_pass


def make(
  settings: Settings, components: tuple[component.Component, ...]
) -> Program:
  """Builds the local round of a method from the hooks of its components."""
  hooks = {c.name: c.client for c in components if c.client}
  first = {c.name for c in components if component.early(c)}
  wire = _Wire(components)
  passes = [h.data_pass for h in hooks.values() if h.data_pass]
  return Program(
    begin=functools.partial(_begin, settings, hooks, wire),
    train=functools.partial(_train, settings, hooks, wire),
    step=functools.partial(_step, settings, hooks, wire),
    no_moments=functools.partial(no_moments, settings),
    measure=functools.partial(measure, settings),
    data_pass=functools.partial(run_passes, settings, hooks),
    end=functools.partial(_end, settings, hooks, first, wire),
    has_data_pass=bool(passes),
    repeats_data_pass=any(one.every_round for one in passes),
  )


class _Wire:
  """Both directions of the components' transport, with their keys."""

  def __init__(self, components: tuple[component.Component, ...]):
    self._transports = [
      (c.name, component.transport_state(c), c.transport)
      for c in components
      if c.transport
    ]

  def key(
    self,
    stream: Stream,
    name: str,
    broadcast: types.Broadcast,
    task: types.ClientTask,
  ) -> Array:
    """Returns the key of a component for a client and a round."""
    base = prng.of_task(task, stream, broadcast.round)
    return jax.random.fold_in(base, prng.component_uid(name))

  def download(
    self, broadcast: types.Broadcast, task: types.ClientTask
  ) -> types.Broadcast:
    """Returns the broadcast as the client receives it."""
    for name, _, transport in self._transports:
      if transport.down:
        key = self.key(Stream.DOWN, name, broadcast, task)
        broadcast = transport.down(broadcast, key)
    return broadcast

  def upload(
    self,
    upload: types.Upload,
    sent: types.Broadcast,
    received: types.Broadcast,
    task: types.ClientTask,
    states: dict[str, Tree],
  ) -> tuple[types.Upload, dict[str, Tree]]:
    """Returns (upload that the server receives, new states)."""
    states = dict(states)
    for name, kept, transport in self._transports:
      if transport.up is None:
        continue
      key = self.key(Stream.UP, name, sent, task)
      state, upload = transport.up(states.get(kept, ()), upload, received, key)
      if jax.tree.leaves(state):
        states[kept] = state
        # The state is kept, and would not be finite in any later round.
        finite = upload.finite & trees.all_finite(state)
        upload = dataclasses.replace(upload, finite=finite)
    return upload, states


def _begin(
  settings: Settings,
  hooks: local_step.Hooks,
  wire: _Wire,
  broadcast: types.Broadcast,
  state: types.ClientState,
  task: types.ClientTask,
) -> Carry:
  broadcast = wire.download(broadcast, task)
  variables = {**broadcast.shared, **state.personal}
  params, running = trees.trainable(variables)
  opt_state = state.opt_state
  if not settings.persistent:
    opt_state = settings.optimizer.init(params)

  def own(name: str) -> contexts.RoundCtx:
    return contexts.RoundCtx(
      received=broadcast.shared,
      message=broadcast.messages.get(name),
      task=task,
      variables=variables,
      optimizer=settings.optimizer,
      batch_shape=settings.image_shape,
      max_images=settings.num_steps
      * (settings.image_shape[0] // settings.frames),
      round=broadcast.round,
    )

  states = {
    name: hook.round_start(state.states[name], own(name))
    for name, hook in hooks.items()
  }
  passed = {
    name: hook.data_pass.init(settings.outputs, own(name))
    for name, hook in hooks.items()
    if hook.data_pass
  }
  sums: Tree = ()
  if settings.accumulate:
    sums = trees.zeros(params), jnp.float32(0.0)
  layers = no_moments(settings, variables) if passed else {}
  return Carry(params, running, opt_state, states, layers, passed, sums)


def _train(
  settings: Settings,
  hooks: local_step.Hooks,
  wire: _Wire,
  broadcast: types.Broadcast,
  table: types.Table,
  carry: Carry,
  task: types.ClientTask,
) -> tuple[Carry, Metrics]:
  # Every program of a round repeats the download with the same key, which gives
  # the same broadcast.
  received = wire.download(broadcast, task)
  step = functools.partial(
    local_step.run, settings, hooks, received, table, task
  )
  zeros = trees.zeros(jax.eval_shape(step, carry, jnp.int32(0))[1])

  def body(i: Array, loop: tuple[Carry, Metrics]) -> tuple[Carry, Metrics]:
    carry, sums = loop
    with jax.named_scope(STEP):
      carry, metrics = step(carry, i)
    return carry, jax.tree.map(jnp.add, sums, metrics)

  # A dynamic number of steps: if clients run one after another, each takes only
  # its steps. If they are vmapped, JAX selects on the carry, so that a client
  # that has finished, or an empty lane without steps, does not change.
  left = task.num_steps - task.first_step
  num_steps = jnp.clip(left, 0, task.rows.shape[0])
  return jax.lax.fori_loop(0, num_steps, body, (carry, zeros))


def _step(
  settings: Settings,
  hooks: local_step.Hooks,
  wire: _Wire,
  broadcast: types.Broadcast,
  table: types.Table,
  carry: Carry,
  task: types.ClientTask,
  i: Array,
) -> tuple[Carry, Metrics]:
  received = wire.download(broadcast, task)
  return local_step.run(settings, hooks, received, table, task, carry, i)


def _end(
  settings: Settings,
  hooks: local_step.Hooks,
  first: set[str],
  wire: _Wire,
  broadcast: types.Broadcast,
  state: types.ClientState,
  carry: Carry,
  task: types.ClientTask,
  trained: bool = True,
) -> tuple[types.Upload, types.ClientState]:
  received = wire.download(broadcast, task)
  variables = {**carry.params, **carry.batch_stats}
  start = {**received.shared, **state.personal}
  states: dict[str, Tree] = dict(state.states)
  messages: dict[str, Tree] = {}
  # The pass before round 0 and the pass in round 0 both have the round 0, and
  # must not have the same noise.
  stream = Stream.TERM if trained else Stream.BEFORE
  for name, hook in hooks.items():
    if not trained and name not in first:
      continue
    ctx = contexts.RoundEndCtx(
      received=received.shared,
      message=received.messages.get(name),
      task=task,
      start=start,
      variables=variables,
      data_pass=carry.passed.get(name),
      trained=trained,
      model=settings.model,
      optimizer=settings.optimizer,
      lr=settings.schedule(broadcast.round),
      test_transform=settings.test_transform,
      round=broadcast.round,
      key=wire.key(stream, name, broadcast, task),
    )
    states[name], messages[name] = hook.round_end(carry.states[name], ctx)
  shared, personal = trees.split(variables, settings.shared)
  opt_state = carry.opt_state if settings.persistent else ()
  kept = types.ClientState(personal, states, opt_state)
  upload = types.Upload(
    task.index,
    shared,
    task.num_examples,
    task.num_steps,
    trees.all_finite(kept),
    messages,
  )
  upload, states = wire.upload(upload, broadcast, received, task, states)
  kept = dataclasses.replace(kept, states=states)
  # The server takes a lost upload for a valid one, so that it cannot tell the
  # client to keep its previous state.
  if not isinstance(upload.lost, tuple):
    kept = trees.select(upload.lost, state, kept)
  return dataclasses.replace(upload, lost=()), kept


def fold_images(
  settings: Settings,
  table: types.Table,
  task: types.ClientTask,
  body: Callable[[_T, types.Batch], _T],
  start: _T,
  augment: bool = False,
) -> _T:
  """Folds `(value, batch) -> value` over the images of a pass.

  Args:
    task: task of the client; `pass_rows` are the batches.
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
    return body(value, local_step.gather(table, rows, valid, transform))

  # Padded batches are at the end.
  num = task.pass_valid.any(axis=1).sum(dtype=jnp.int32)
  return jax.lax.fori_loop(0, num, one, start)


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
    variables: variables of the model, which stay as they are.
    layers: moments of the images before this table.
    augment: whether images have the training transform.
  """
  return fold_images(
    settings,
    table,
    task,
    lambda layers, batch: batch_stats.merge(
      layers, _measured(settings, variables, batch, task.num_identities)[1]
    ),
    layers,
    augment,
  )


def run_passes(
  settings: Settings,
  hooks: local_step.Hooks,
  table: types.Table,
  carry: local_step.Carry,
  task: types.ClientTask,
) -> local_step.Carry:
  """Runs the components' data passes over the images in the table.

  Args:
    carry: carry of the client, with the moments of all its images.
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

  passed = fold_images(settings, table, task, body, carry.passed)
  return dataclasses.replace(carry, passed=passed)


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
