"""Components -> one algorithm: slot ownership, order, the server's round."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import aggregate, client, keys, partition, types
from fedreid_jax.core.component import Component
from fedreid_jax.core.keys import Stream
from fedreid_jax.core.types import Array, Flat, Tree

EXCLUSIVE = ('shared', 'grouping', 'weights')


class Algorithm(NamedTuple):
  """A federated method, ready to be run by an executor.

  Attributes:
    components: what it is made of, in order.
    shared: regular expression of the leaves that travel.
    program: the local round of one client.
    init_server: `(variables, num_clients, num_groups) -> ServerState`.
    init_client: `(uid) -> ClientState` of one client.
    extras: `(ServerState) -> extras` broadcast to every client.
    collect: `(ServerState, uploads) -> ServerState`, after the preparation.
    aggregate: `(ServerState, uploads, drawn, round) -> (ServerState, log)`.
    prepares: whether clients survey their images before round 0.
  """

  components: tuple[Component, ...]
  shared: str
  program: client.Program
  init_server: Callable[..., types.ServerState]
  init_client: Callable[[Array], types.ClientState]
  extras: Callable[[types.ServerState], dict[str, Tree]]
  collect: Callable[..., types.ServerState]
  aggregate: Callable[..., tuple[types.ServerState, dict[str, Array]]]
  prepares: bool


def available(package) -> list[str]:
  """Returns the names of the modules of a package, sorted."""
  return sorted(m.name for m in pkgutil.iter_modules(package.__path__))


def load(names: Sequence[str], arguments: dict, package) -> tuple:
  """Imports `package.NAME` and calls its `make(**arguments[NAME])`.

  Raises:
    ConfigError: for a name that is no module of the package, a name given
      twice, or arguments that `make` does not take.
  """
  choices = available(package)
  built = []
  for name in names:
    where = 'components'
    if name not in choices:
      raise errors.ConfigError(
        f'unknown component {name!r}', where, f'one of {", ".join(choices)}'
      )
    if name in names[: len(built)]:
      raise errors.ConfigError(
        f'component {name!r} twice', where, 'name it once'
      )
    module = importlib.import_module(f'{package.__name__}.{name}')
    built.append(module.make(**arguments.get(name, {})))
  return tuple(built)


def owner(components: tuple[Component, ...], slot: str) -> Component | None:
  """Returns the one component that fills an exclusive slot, or None.

  Raises:
    ConfigError: naming both owners when two components fill it.
  """
  owners = [c for c in components if getattr(c, slot) is not None]
  if len(owners) > 1:
    raise errors.ConfigError(
      f'{owners[0].name!r} and {owners[1].name!r} both own {slot!r}',
      'components',
      'keep one of them',
    )
  return owners[0] if owners else None


def shared_leaves(components: tuple[Component, ...]) -> str:
  """Returns the regular expression of the leaves that travel."""
  chosen = owner(components, 'shared')
  if chosen is None or chosen.shared is None:
    raise errors.ConfigError(
      'no component says what is shared', 'components', "start with 'fedpav'"
    )
  return chosen.shared


def compose(
  components: tuple[Component, ...],
  settings: client.Settings,
  *,
  bn_buffers: str,
  ordered: bool,
) -> Algorithm:
  """Composes components into an algorithm.

  Args:
    components: in the order of the configuration.
    settings: what the local loop is made of; `settings.shared` must be
      `shared_leaves(components)`.
    bn_buffers: policy for running statistics, `aggregate.BUFFER_POLICIES`.
    ordered: reduce in canonical client order (deterministic mode).

  Raises:
    ConfigError: for two owners of an exclusive slot.
  """
  weigh = owner(components, 'weights')
  group = owner(components, 'grouping')
  steps = {c.name: c.server_step for c in components if c.server_step}
  terms = {c.name: c.term for c in components if c.term}

  def init_server(variables: Flat, num_clients: int, num_groups: int):
    shared, _ = partition.split(variables, settings.shared)
    shared = {
      n: jnp.broadcast_to(x, (num_groups, *x.shape)) for n, x in shared.items()
    }
    base = keys.key(settings.seed, Stream.SERVER)
    slots = {
      name: step.init(
        jax.random.fold_in(base, keys.component_uid(name)),
        num_clients,
        settings.outputs,
      )
      for name, step in steps.items()
    }
    return types.ServerState(shared, jnp.zeros(num_clients, jnp.int32), slots)

  def init_client(uid: Array):
    key = keys.client(settings.seed, Stream.CLASSIFIER, 0, uid)
    variables = settings.model.init(key)
    _, personal = partition.split(variables, settings.shared)
    slots = {
      name: term.init(
        jax.random.fold_in(key, keys.component_uid(name)), variables
      )
      for name, term in terms.items()
    }
    params, _ = partition.trainable(variables)
    state = settings.optimizer.init(params) if settings.persistent else ()
    return types.ClientState(personal, slots, state)

  def extras(server: types.ServerState):
    return {
      name: step.broadcast(server.slots[name])
      for name, step in steps.items()
      if step.broadcast
    }

  def collect(server: Any, uploads: types.Upload):
    here = aggregate.arrived(uploads)
    slots = dict(server.slots)
    for name, step in steps.items():
      if step.collect:
        slots[name] = step.collect(slots[name], uploads, here)
    return server.replace(slots=slots)

  def reduce(server: Any, uploads, drawn, round_):
    here = aggregate.arrived(uploads)
    safe = jnp.where(uploads.index >= 0, uploads.index, 0)
    groups = server.groups[safe]
    if group is not None and group.grouping is not None:
      groups = group.grouping(server, uploads, here)
    num_groups = next(iter(server.shared.values())).shape[0]
    members = (groups[None] == jnp.arange(num_groups)[:, None]) & here[None]
    sizes = aggregate.by_size(uploads, members)
    weights = sizes
    if weigh is not None and weigh.weights is not None:
      weights = weigh.weights(uploads, members)
    by_leaf = aggregate.leaf_weights(
      weights, sizes, server.shared, _first(drawn, members), bn_buffers
    )
    shared = aggregate.reduce(server.shared, uploads.shared, by_leaf, ordered)
    nowhere = server.groups.shape[0]
    new_groups = server.groups.at[jnp.where(here, uploads.index, nowhere)].set(
      groups, mode='drop'
    )
    server = server.replace(shared=shared, groups=new_groups)
    server = collect(server, uploads)
    base = keys.key(settings.seed, Stream.SERVER, round_)
    for name, step in steps.items():
      if step.apply:
        key = jax.random.fold_in(base, keys.component_uid(name))
        server = step.apply(server, uploads, here, key)
    log = {'arrived': here, 'groups': groups}
    if not isinstance(weights, dict):
      log['weights'] = weights.sum(axis=0)
    return server, log

  return Algorithm(
    components=components,
    shared=settings.shared,
    program=client.make(settings, components),
    init_server=init_server,
    init_client=init_client,
    extras=extras,
    collect=collect,
    aggregate=reduce,
    prepares=any(t.prepare for t in terms.values()),
  )


def _first(drawn: Array, members: Array) -> Array:
  """One-hot `[G, K]` of the member drawn first in each group."""
  order = jnp.where(members, drawn[None], jnp.iinfo(jnp.int32).max)
  first = jnp.arange(drawn.shape[0])[None] == order.argmin(axis=1)[:, None]
  return (first & members).astype(jnp.float32)
