"""Rounds in plain Python: nothing is compiled, and an error says where it is.

One client runs after another, step by step, so that hooks may print values and
stop in a debugger. Results are those of a simulation to 1e-5 after one round,
since XLA rounds the operations of a compiled program otherwise.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.core import trees, types
from fedreid_jax.core.types import ClientData, ClientState, Metrics
from fedreid_jax.method.component import Component
from fedreid_jax.round import cohort
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.clients import Kept, Sent
from fedreid_jax.round.cohort_tasks import CohortTasks
from fedreid_jax.round.cohorts import Cohort
from fedreid_jax.round.collect import Collector
from fedreid_jax.round.compose import HOOKS, Algorithm
from fedreid_jax.round.settings import SimulationOptions

AT_CLIENT = 'client', 'transport'
MOST = 6  # arrays of an argument that a message lists


@dataclasses.dataclass
class Place:
  """The client and the step that run, as in the contexts of hooks.

  Attributes:
    client: name of the client, '' at the server.
    round_: number of the round, None before round 0.
    step: index within the round, None outside of steps.
  """

  client: str = ''
  round_: int | None = None
  step: int | None = None


def watched(
  components: Sequence[Component], place: Place
) -> tuple[Component, ...]:
  """Returns components whose hooks raise `HookError` at the place of an error.

  Args:
    place: where a round is; the caller changes it.
  """

  def one(component: Component) -> Component:
    hooks = {
      name: _watched(getattr(component, name), component.name, name, place)
      for name in HOOKS
    }
    return component._replace(**hooks)

  return tuple(map(one, components))


def _watched(hook: Any, component: str, name: str, place: Place) -> Any:
  # A `MessageSum` can be called as well, but its functions are the hooks.
  if hasattr(hook, '_fields'):
    parts = {
      field: _watched(value, component, f'{name}.{field}', place)
      for field, value in hook._asdict().items()
    }
    return hook._replace(**parts)
  if not callable(hook):
    return hook

  @functools.wraps(hook)
  def call(*args: Any, **kwargs: Any) -> Any:
    try:
      result = hook(*args, **kwargs)
      if wrong := _wrong(name, args, result):
        raise TypeError(wrong)
    except Exception as error:
      # Of a hook that this one has called, or with a place of its own.
      if isinstance(error, errors.FedReIDError):
        raise
      raise _found(error, hook, component, name, place, args) from error
    return result

  return call


def _wrong(name: str, args: Sequence[Any], result: Any) -> str:
  """Returns what is wrong about a result that a compiled round refuses."""
  if name == 'client.loss' and jnp.shape(result[0]):
    return f'the loss is no number but {described(result[0])}'
  kept = {
    'client.pre_step': lambda: result[0],
    'client.post_step': lambda: result,
    'server.receive': lambda: result,
    'server.receive.finish': lambda: result,
    'server.update': lambda: result[0],
    'server.judge': lambda: result,
  }
  if name in kept and _forms(args[0]) != _forms(kept[name]()):
    return (
      f'the new state is {described(kept[name]())} in place of '
      f'{described(args[0])}'
    )
  return ''


def _found(
  error: Exception,
  hook: Callable[..., Any],
  component: str,
  name: str,
  place: Place,
  args: Sequence[Any],
) -> errors.HookError:
  client = place.client if name.split('.')[0] in AT_CLIENT else ''
  where = [
    f'component {component!r}',
    f'hook {name}',
    client and f'client {client}',
    '' if place.round_ is None else f'round {place.round_}',
    f'step {place.step}' if client and place.step is not None else '',
  ]
  text = f'{error}'.strip().partition('\n')[0]
  given = '; '.join(
    f'{one} = {described(value)}'
    for one, value in zip(_names(hook, len(args)), args, strict=True)
  )
  return errors.HookError(
    f'{type(error).__name__}: {text}',
    ', '.join(filter(None, where)),
    f'change the hook; its arguments: {given or "none"}',
  )


def _names(hook: Callable[..., Any], number: int) -> list[str]:
  """Returns the names of the first parameters of a hook."""
  try:
    names = [*inspect.signature(hook).parameters]
  except ValueError:  # a function of C may have no signature
    names = []
  return [
    *names[:number],
    *(f'argument {k}' for k in range(len(names), number)),
  ]


def described(value: Any) -> str:
  """Returns the shapes of the arrays in a value, of at most `MOST` of them.

  Of a context these are the arrays of each field, or their number.
  """
  if dataclasses.is_dataclass(value):
    names = [field.name for field in dataclasses.fields(value)]
    parts = {name: _leaves(getattr(value, name), name) for name in names}
    texts = [
      _listed(found)
      if len(found) <= MOST
      else f'{name} ({errors.counted(len(found), "array")})'
      for name, found in parts.items()
      if found
    ]
    return ', '.join(texts)
  found = _leaves(value)
  more = errors.counted(len(found) - MOST, 'array')
  text = _listed(found[:MOST]) or 'no arrays'
  return f'{text} and {more} more' if len(found) > MOST else text


def _listed(found: Sequence[tuple[str, str]]) -> str:
  return ', '.join(' '.join(filter(None, pair)) for pair in found)


def _leaves(value: Any, path: str = '') -> list[tuple[str, str]]:
  """Returns (path, type and shape) of the arrays in a value."""
  if hasattr(value, 'shape') and hasattr(value, 'dtype'):
    return [(path, f'{value.dtype}[{",".join(map(str, value.shape))}]')]
  parts: Mapping[Any, Any] = {}
  if dataclasses.is_dataclass(value):
    names = [field.name for field in dataclasses.fields(value)]
    parts = {name: getattr(value, name) for name in names}
  elif hasattr(value, '_asdict'):
    parts = value._asdict()
  elif isinstance(value, Mapping):
    parts = value
  elif isinstance(value, (list, tuple)):
    parts = dict(enumerate(value))
  return [
    leaf
    for name, part in parts.items()
    for leaf in _leaves(part, f'{path}.{name}' if path else f'{name}')
  ]


def _forms(tree: Any) -> Any:
  """Returns structure, shapes and types of a tree."""
  forms = [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]
  return jax.tree.structure(tree), forms


class Debug:
  """Runs the clients of a round in plain Python, in canonical order."""

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[ClientData],
    planner: cohort.Planner,
    size: int,
    options: SimulationOptions,
    mesh: Mesh,
    place: Place,
  ):
    """Reads no images yet.

    Args:
      size: largest number of clients of a round, `K`.
      place: place of the watched components; the runner changes it.
    """
    self._algorithm, self._clients, self._place = algorithm, clients, place
    # Every client has a table of its own images.
    none = np.zeros(len(clients), np.int32)
    rows = max(client.num_images for client in clients)
    placed = cohort.Placement(none, none, rows, 1)
    self._tasks = CohortTasks(clients, placed, planner, options)
    self._collector = Collector(algorithm, size, mesh)
    self._table = functools.lru_cache(size)(self._read)

  def run(
    self,
    server: types.ServerState,
    store: ClientStore,
    drawn: Cohort,
    round_: int,
    *,
    trains: bool,
  ) -> Sent:
    """Runs the local rounds of a cohort, one client after another."""
    # An empty cohort has an empty lane, as in a simulation.
    lanes = np.sort(drawn.clients) if len(drawn.clients) else np.array([-1])
    groups = np.asarray(server.groups)
    tasks = self._tasks.of(lanes, drawn, groups, round_)
    self._place.round_ = round_ if trains else None
    rows: list[ClientState] = []
    sums: list[Metrics] = []
    sent: list[types.Upload] = []
    with jax.disable_jit():
      collected = self._collector.start(server, drawn.clients.tolist(), trains)
      messages = self._algorithm.messages(server)
      for lane, client in enumerate(lanes.tolist()):
        task = jax.tree.map(jnp.asarray, trees.rows(tasks, lane))
        shared = {n: x[task.group] for n, x in server.shared.items()}
        broadcast = types.Broadcast(
          shared, messages, jnp.int32(round_), task.staleness
        )
        state = trees.rows(store.read([client]), 0)
        upload, kept, counted = self._client(broadcast, state, task, trains)
        collected.add(client, upload)
        rows.append(jax.device_get(kept))
        sums.append(jax.device_get(counted))
        sent = sent or [upload]
      uploads, ranks = collected.received()
    return Sent(
      uploads,
      ranks,
      lanes,
      tasks.num_steps,
      int(tasks.valid.sum()),
      {name: np.stack([one[name] for one in sums]) for name in sums[0]},
      [Kept(lanes, jax.tree.map(lambda *x: np.stack(x), *rows))],
      sent[0],
    )

  def _client(
    self,
    broadcast: types.Broadcast,
    state: ClientState,
    task: types.ClientTask,
    trains: bool,
  ) -> tuple[types.Upload, ClientState, Metrics]:
    """Returns (upload, state to keep, sums of metrics) of one client."""
    program, place, number = (
      self._algorithm.program,
      self._place,
      int(task.index),
    )
    place.client = self._clients[number].name
    state = jax.tree.map(jnp.asarray, state)
    table = self._table(max(number, 0))
    sums: Metrics = {}
    try:
      carry = program.begin(broadcast, state, task)
      for step in range(int(task.num_steps) if trains else 0):
        place.step = step
        i = jnp.int32(step)
        carry, more = program.step(broadcast, table, carry, task, i)
        sums = jax.tree.map(jnp.add, sums, more) if sums else more
      place.step = None
      if program.runs_data_pass(trains):
        variables = {**carry.params, **carry.batch_stats}
        found = program.measure(table, variables, carry.moments, task)
        carry = dataclasses.replace(carry, moments=found)
        carry = program.data_pass(table, carry, task)
      upload, kept = program.end(broadcast, state, carry, task, trains)
      self._check(state, kept)
    finally:
      place.client, place.step = '', None
    return upload, kept, sums

  def _check(self, state: ClientState, kept: ClientState) -> None:
    """Refuses states that are no states of the next round."""
    for name, old in state.states.items():
      new = kept.states.get(name)
      if _forms(old) != _forms(new):
        raise errors.HookError(
          f'the new state is {described(new)} in place of {described(old)}',
          f'component {name!r}, the last hook of client {self._place.client}, '
          f'round {self._place.round_}',
          'return a state as `init` does',
        )

  def _read(self, client: int) -> types.Table:
    one = self._clients[client]
    columns = one.images(), one.labels, one.cameras, one.modalities
    return types.Table(*map(jnp.asarray, columns))
