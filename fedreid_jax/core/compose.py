"""Components -> one algorithm: slot ownership, order, the server's round."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import (
  aggregation,
  local_training,
  param_filter,
  plugins,
  prng,
  types,
)
from fedreid_jax.core.component import Component, InitCtx, ServerCtx
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Tree

EXCLUSIVE = ('shared', 'grouping', 'weights')


class Algorithm(NamedTuple):
  """A federated method, ready to be run by an executor.

  Attributes:
    components: what it is made of, in order.
    shared: regular expression of the leaves that travel.
    program: the local round of one client.
    grouped: whether the server keeps several models.
    init_server: `(variables, sizes, public) -> ServerState`; sizes are images
      of each client, float32 `[N]`.
    init_client: `(uid, pretrained leaves) -> ClientState` of one client.
    extras: `(ServerState) -> extras` broadcast to every client.
    collect: `(ServerState, uploads) -> ServerState`, after the preparation.
    aggregate: `(ServerState, uploads, drawn, round, public) -> (ServerState,
      log)`.
    prepares: whether clients survey their images before round 0.
  """

  components: tuple[Component, ...]
  shared: str
  program: local_training.Program
  grouped: bool
  init_server: Callable[..., types.ServerState]
  init_client: Callable[[Array, Flat], types.ClientState]
  extras: Callable[[types.ServerState], dict[str, Tree]]
  collect: Callable[..., types.ServerState]
  aggregate: Callable[..., tuple[types.ServerState, dict[str, Array]]]
  prepares: bool


def load(
  names: Sequence[str],
  arguments: Mapping[str, Mapping[str, Any]],
  package: ModuleType,
) -> tuple[Component, ...]:
  """Imports components and calls their `make(Options(...))`.

  Args:
    names: of modules of the package, and of plug-ins (`core.plugins`).
    arguments: hyper-parameters by the name of a component's group.
    package: of the built-in components.

  Raises:
    ConfigError: for a component that is not found or is given twice, or for
      hyper-parameters that it does not have or cannot have.
  """
  built = []
  for name in names:
    if name in names[: len(built)]:
      raise errors.ConfigError(
        f'component {name!r} twice', 'components', 'name it once'
      )
    module = importlib.import_module(plugins.module_of(name, package))
    own = arguments.get(plugins.group_of(name), {})
    if hasattr(module, 'Options'):
      built.append(module.make(module.Options(**own)))
    else:
      built.append(module.make())
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
  settings: local_training.Settings,
  *,
  batch_stats_rule: str,
  ordered: bool,
) -> Algorithm:
  """Composes components into an algorithm.

  Args:
    components: in the order of the configuration.
    settings: what the local loop is made of; `settings.shared` must be
      `shared_leaves(components)`.
    batch_stats_rule: for running statistics, `aggregation.BatchStatsRule`.
    ordered: reduce in canonical client order (deterministic mode).

  Raises:
    ConfigError: for two owners of an exclusive slot.
  """
  group = owner(components, 'grouping')
  steps = {c.name: c.server_step for c in components if c.server_step}
  terms = {c.name: c.term for c in components if c.term}
  if group:
    _check_models(group.name, steps)

  def init_server(variables: Flat, sizes: Array, public: Array | None):
    num_clients = sizes.shape[0]
    leaves, _ = param_filter.split(variables, settings.shared)
    num_groups = num_clients if group else 1
    shared = {
      n: jnp.broadcast_to(x, (num_groups, *x.shape)) for n, x in leaves.items()
    }
    base = prng.key(settings.seed, Stream.SERVER)
    slots = {}
    for name, step in steps.items():
      key = jax.random.fold_in(base, prng.component_uid(name))
      slots[name] = step.init(
        InitCtx(key, num_clients, sizes, settings.outputs, leaves, public)
      )
    return types.ServerState(shared, jnp.zeros(num_clients, jnp.int32), slots)

  def init_client(uid: Array, pretrained: Flat):
    key = prng.client(settings.seed, Stream.CLASSIFIER, 0, uid)
    variables = settings.model.init(key) | pretrained
    _, personal = param_filter.split(variables, settings.shared)
    slots = {
      name: term.init(
        jax.random.fold_in(key, prng.component_uid(name)), variables
      )
      for name, term in terms.items()
    }
    params, _ = param_filter.trainable(variables)
    state = settings.optimizer.init(params) if settings.persistent else ()
    return types.ClientState(personal, slots, state)

  def extras(server: types.ServerState):
    return {
      name: step.broadcast(server.slots[name])
      for name, step in steps.items()
      if step.broadcast
    }

  preparing = {name for name, term in terms.items() if term.prepare}

  def collect(server: Any, uploads: types.Upload, trained: bool = False):
    here = aggregation.arrived(uploads)
    slots = dict(server.slots)
    for name, step in steps.items():
      if step.collect and (trained or name in preparing):
        slots[name] = step.collect(slots[name], uploads, here)
    return server.replace(slots=slots)

  return Algorithm(
    components=components,
    shared=settings.shared,
    program=local_training.make(settings, components),
    grouped=group is not None,
    init_server=init_server,
    init_client=init_client,
    extras=extras,
    collect=collect,
    aggregate=_make_round(
      components, settings, batch_stats_rule, ordered, collect
    ),
    prepares=bool(preparing),
  )


def _check_models(grouping: str, steps) -> None:
  """Refuses server steps that need one model where there are several."""
  for name, step in steps.items():
    if step.one_model:
      raise errors.ConfigError(
        f'{name!r} needs one model at the server, {grouping!r} keeps several',
        'components',
        'keep one of them',
      )


def _make_round(
  components,
  settings: local_training.Settings,
  batch_stats_rule,
  ordered,
  collect,
):
  """Returns `Algorithm.aggregate`, the server's side of a round."""
  weigh, group = owner(components, 'weights'), owner(components, 'grouping')

  def complete(shared: Flat) -> Flat:
    shapes = jax.eval_shape(settings.model.init, settings.seed)
    zeros = {n: jnp.zeros(x.shape, x.dtype) for n, x in shapes.items()}
    return zeros | shared

  def run(server: Any, uploads, drawn, round_, public):
    here = aggregation.arrived(uploads)
    base = prng.key(settings.seed, Stream.SERVER, round_)

    def ctx(name: str) -> ServerCtx:
      return ServerCtx(
        uploads=uploads,
        arrived=here,
        previous=previous,
        public=public,
        model=settings.model,
        train_view=settings.train_view,
        test_view=settings.test_view,
        complete=complete,
        round=round_,
        key=jax.random.fold_in(base, prng.component_uid(name)),
      )

    previous = server.shared
    num_clients = server.groups.shape[0]
    num_groups = num_clients if group else 1
    groups = old = server.groups[jnp.maximum(uploads.index, 0)]
    if group and group.grouping:
      groups = group.grouping(server, ctx(group.name))
    members = (groups[None] == jnp.arange(num_groups)[:, None]) & here[None]
    sizes = aggregation.by_size(uploads, members)
    if group:
      # A group is new: what it moves from is what its members started from.
      starts = {n: x[old] for n, x in previous.items()}
      by_size = dict.fromkeys(previous, sizes)
      previous = aggregation.reduce(previous, starts, by_size, ordered)
    weights, fell_back = sizes, jnp.bool_(False)
    if weigh and weigh.weights:
      weights = weigh.weights(ctx(weigh.name), members)
      weights, fell_back = aggregation.usable(weights, members, sizes)
    by_leaf = aggregation.leaf_weights(
      weights, sizes, previous, _first(drawn, members), batch_stats_rule
    )
    shared = aggregation.reduce(previous, uploads.shared, by_leaf, ordered)
    there = jnp.where(here, uploads.index, num_clients)
    server = server.replace(
      shared=shared, groups=server.groups.at[there].set(groups, mode='drop')
    )
    server = collect(server, uploads, trained=True)
    for component in components:
      step = component.server_step
      if step and step.apply:
        server = step.apply(server, ctx(component.name))
    log = {'arrived': here, 'groups': groups, 'fell_back': fell_back}
    return server, log | aggregation.described(weights)

  return run


def _first(drawn: Array, members: Array) -> Array:
  """One-hot `[G, K]` of the member drawn first in each group."""
  order = jnp.where(members, drawn[None], jnp.iinfo(jnp.int32).max)
  first = jnp.arange(drawn.shape[0])[None] == order.argmin(axis=1)[:, None]
  return (first & members).astype(jnp.float32)
