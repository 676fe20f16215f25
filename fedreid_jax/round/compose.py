"""Composition of components into an algorithm.

It checks the owners and the order of hooks, and gives the states before round
0 and the reports of the components: notices, warnings and models of clients.
"""

import difflib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import plugins, prng, trees, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import contexts
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  Property,
  ServerHooks,
  Transport,
  early,
  judges,
  releases,
  transport_state,
)
from fedreid_jax.method.sums import Gather
from fedreid_jax.round import local_training
from fedreid_jax.round.client_store import ClientStore, OnDemand
from fedreid_jax.round.server import fold as fold_
from fedreid_jax.round.server import gathering, masked, server_round
from fedreid_jax.round.server.arithmetic import FixedPoint, Float32
from fedreid_jax.round.settings import Settings

# At most one component of a method fills each of these hooks.
SINGLE_OWNER = ('shared', 'clustering', 'aggregation', 'summation')
# Fields of `Component` whose own fields are hooks.
FIELDS = {'client': ClientHooks, 'server': ServerHooks, 'transport': Transport}
HOOKS = (*SINGLE_OWNER, *FIELDS)


class Algorithm(NamedTuple):
  """A federated method that can be simulated.

  Attributes:
    components: components of the method, in order.
    shared: regular expression of the shared parameters.
    program: the local round of one client.
    clustered: whether the server keeps several models.
    init_server: `(variables, sizes, public, seed) -> ServerState`; `sizes` are
      the numbers of images of each client, float32 `[N]`, and `seed` is
      `prng.data` of the run's seed.
    init_client: `(uid, pretrained variables, seed) -> ClientState` of one
      client.
    messages: `(ServerState) -> messages` broadcast to every client, by name.
    receive: `(ServerState, uploads) -> ServerState`, after the data pass before
      round 0.
    aggregate: `(ServerState, uploads, drawn, round, public, seed) ->
      (ServerState, log)`.
    judge: `(states of the server by name, metrics, number of rounds) ->
      states`, after an evaluation; None if no component has the hook.
    prepares: whether clients run a data pass before round 0.
    fold: sums to which an upload is added when its client has trained; None if
      uploads are stacked.
    by_coordinate: whether every value of stacked uploads is combined on its
      own.
  """

  components: tuple[Component, ...]
  shared: str
  program: local_training.Program
  clustered: bool
  init_server: Callable[..., types.ServerState]
  init_client: Callable[[Array, Flat, Array], types.ClientState]
  messages: Callable[[types.ServerState], dict[str, Tree]]
  receive: Callable[..., types.ServerState]
  aggregate: Callable[..., tuple[types.ServerState, server_round.Log]]
  judge: Callable[..., dict[str, Any]] | None
  prepares: bool
  fold: fold_.Fold | None
  by_coordinate: bool


def load(
  names: Sequence[str],
  arguments: Mapping[str, Mapping[str, Any]],
  package: ModuleType,
) -> tuple[Component, ...]:
  """Imports components and calls their `make(Options(...))`.

  Args:
    names: names of modules of the package and of plug-ins (`core.plugins`).
    arguments: hyper-parameters by the name of a component's group.

  Raises:
    ConfigError: if a component is not found or is given twice, if its
      hyper-parameters do not exist or have invalid values, or for a word of its
      `conflicts` that is none.
  """
  built: list[Component] = []
  for name in names:
    if name in names[: len(built)]:
      raise errors.ConfigError(
        f'component {name!r} is given twice', 'components', 'give it once'
      )
    module = plugins.full_name(name, plugins.COMPONENT, package)
    own = arguments.get(plugins.group_of(name), {})
    built.append(plugins.call(module, plugins.COMPONENT, own))
  others = {
    *plugins.available(package),
    *plugins.entry_points(plugins.COMPONENT),
  }
  for component in built:
    _check_words(component, others | {other.name for other in built})
  return tuple(built)


def _check_words(component: Component, others: Collection[str]) -> None:
  """Refuses a word of `conflicts` that no component could ever match."""
  known = (
    *get_args(Property),
    *Component._fields,
    *(f'{hook}.{field}' for hook, of in FIELDS.items() for field in of._fields),
    *sorted(others),
  )
  for word in component.conflicts:
    if word in known:
      continue
    near = difflib.get_close_matches(word, known, 1)
    raise errors.ConfigError(
      f'{component.name!r} conflicts with {word!r}, which is no property, hook '
      'or component',
      'components',
      f'did you mean {near[0]}?' if near else 'see docs/algorithms.md',
    )


def owner(components: Sequence[Component], hook: str) -> Component | None:
  """Returns the component that fills a single-owner hook, or None.

  Raises:
    ConfigError: if two components fill it; the message names both.
  """
  owners = [c for c in components if getattr(c, hook) is not None]
  if len(owners) > 1:
    raise errors.ConfigError(
      f'{owners[0].name!r} and {owners[1].name!r} both fill {hook!r}',
      'components',
      'keep one of them',
    )
  return owners[0] if owners else None


def shared_leaves(components: Sequence[Component]) -> str:
  """Returns the regular expression of the shared parameters.

  Raises:
    ConfigError: unless exactly one component selects shared parameters.
  """
  chosen = owner(components, 'shared')
  if chosen is None or chosen.shared is None:
    raise errors.ConfigError(
      'no component selects shared parameters',
      'components',
      'add one that does, as that of FedPav or FedAvg',
    )
  return chosen.shared


def check(components: Sequence[Component]) -> None:
  """Checks ownership and conflicts of components.

  Raises:
    ConfigError: if a check fails; the message names the components.
  """
  for hook in SINGLE_OWNER:
    owner(components, hook)
  _check_gradient(components)
  _check_passes(components)
  for component in components:
    others = [c for c in components if c is not component]
    for name in component.conflicts:
      found = next((c for c in others if _is(c, name)), None)
      if found:
        raise errors.ConfigError(
          f'{component.name!r} cannot be composed with {found.name!r}',
          'components',
          'keep one of them',
        )
  adder = owner(components, 'summation')
  if adder is not None:
    gathering.check_sums(components, adder)
  sizes = [c for c in components if c.transport and c.transport.size]
  if len(sizes) > 1:
    raise errors.ConfigError(
      f'{sizes[0].name!r} and {sizes[1].name!r} both compress uploads',
      'components',
      'keep one of them',
    )
  _check_uploads(components)


def _check_passes(components: Sequence[Component]) -> None:
  """Refuses a data pass that would never run."""
  for component in components:
    own = component.client and component.client.data_pass
    if own and not own.every_round and not early(component):
      raise errors.ConfigError(
        f'the data pass of {component.name!r} runs before the first round '
        'only, for which it lacks a property',
        'components',
        "give it the property 'before_first_round'",
      )


def _check_uploads(components: Sequence[Component]) -> None:
  """Refuses components that change uploads after `rebased_uploads`."""
  moved = ''
  for component in components:
    transport = component.transport
    if transport and moved and transport.up:
      raise errors.ConfigError(
        f'{component.name!r} changes uploads after {moved!r}, which computes '
        'them from another model than the received one',
        'components',
        f'put {moved!r} after it',
      )
    if 'rebased_uploads' in component.properties:
      moved = component.name


def _check_gradient(components: Sequence[Component]) -> None:
  """Refuses a use of images that the owner of the gradient cannot bound."""
  found = [c for c in components if c.client and c.client.gradient]
  if len(found) > 1:
    raise errors.ConfigError(
      f"{found[0].name!r} and {found[1].name!r} both fill 'gradient'",
      'components',
      'keep one of them',
    )
  for component in components if found else ():
    hooks = component.client
    if component is found[0] or hooks is None:
      continue
    released = releases(component)
    # A data pass with noise has a guarantee of its own, which is added.
    passes = hooks.data_pass and not (released and released.mechanisms(1))
    other = hooks.pre_step or hooks.post_step or passes
    separable = 'separable' in component.properties
    if other or (hooks.loss and not separable):
      declared = component.released
      exposes = declared if isinstance(declared, str) else ''
      raise errors.ConfigError(
        f'the use of images of {component.name!r} cannot be bounded by the '
        f'gradient of {found[0].name!r}' + (exposes and f': {exposes}'),
        'components',
        f'remove {component.name!r} or {found[0].name!r}',
      )


def _is(component: Component, name: str) -> bool:
  """Returns whether a component has a property, a filled field or a name."""
  if name in component.properties or component.name == name:
    return True
  hook, _, field = name.partition('.')
  value = getattr(component, hook, None)
  # A field of a hook, such as 'server.receive'. A hook that is not filled is
  # None, which has no such field.
  if field:
    return bool(getattr(value, field, None))
  # An empty expression selects all parameters and fills `shared`.
  return value is not None if name in HOOKS else bool(value)


def compose(
  components: tuple[Component, ...],
  settings: Settings,
  *,
  batch_stats_rule: str,
  exact: bool,
  sizes: Sequence[float],
) -> Algorithm:
  """Composes components into an algorithm.

  Args:
    settings: settings of the local round; `settings.shared` must be
      `shared_leaves(components)`.
    exact: whether sums have the same bits on any number of devices
      (deterministic mode).
    sizes: numbers of images of the K largest clients.

  Raises:
    ConfigError: if the components cannot be composed.
  """
  check(components)
  clusterer = owner(components, 'clustering')
  aggregator = owner(components, 'aggregation')
  adder = owner(components, 'summation')
  arithmetic: Any = FixedPoint(tuple(map(float, sizes))) if exact else Float32()
  if adder and adder.summation:
    masked.check(components, adder)
    arithmetic = masked.Masked(adder.summation)
  gathers = bool(gathering.reason(components))
  gather = aggregator and isinstance(aggregator.aggregation, Gather)
  summing = None if gather else aggregator
  # A `Gather` has a fold too, for the sums of messages.
  fold = fold_.make(components, summing, batch_stats_rule, arithmetic)
  first = [c for c in components if early(c)]
  return Algorithm(
    components=components,
    shared=settings.shared,
    program=local_training.make(settings, components),
    clustered=clusterer is not None,
    init_server=functools.partial(
      initial_server, settings, components, clusterer is not None
    ),
    init_client=functools.partial(initial_client, settings, components),
    messages=functools.partial(server_round.messages, components),
    receive=functools.partial(
      server_round.prepare, first, fold, gathers or bool(adder)
    ),
    aggregate=functools.partial(
      server_round.run,
      server_round.Rules(
        components,
        settings,
        clusterer,
        aggregator,
        adder,
        gathers,
        fold,
      ),
    ),
    judge=functools.partial(server_round.judge, components)
    if any(map(judges, components))
    else None,
    prepares=bool(first),
    # The clients' loop adds uploads only if nothing else reads them. A
    # `Summation` adds stacked uploads, in the program of the server.
    fold=None if gathers or adder else fold,
    by_coordinate=gathering.is_by_coordinate(components),
  )


def initial_server(
  settings: Settings,
  components: Sequence[Component],
  clustered: bool,
  variables: Flat,
  sizes: Array,
  public: Array,
  seed: Array,
) -> types.ServerState:
  """Returns the state of the server.

  Args:
    clustered: whether the server has a model for every client, for clusters.
    sizes: number of images of each client, float32 `[N]`.
  """
  num_clients = sizes.shape[0]
  leaves, _ = trees.split(variables, settings.shared)
  # There are at most as many clusters as clients. With this number of models
  # clusters may change without a new program.
  num_groups = num_clients if clustered else 1
  shared = {
    n: jnp.broadcast_to(x, (num_groups, *x.shape)) for n, x in leaves.items()
  }
  base = prng.key(seed, Stream.SERVER_INIT)
  states = {
    c.name: c.server.init(
      contexts.ServerInitCtx(
        key=jax.random.fold_in(base, prng.component_uid(c.name)),
        num_clients=num_clients,
        sizes=sizes,
        outputs=settings.outputs,
        shared=leaves,
        public=public,
      )
    )
    for c in components
    if c.server
  }
  return types.ServerState(shared, jnp.zeros(num_clients, jnp.int32), states)


def initial_client(
  settings: Settings,
  components: Sequence[Component],
  uid: Array,
  pretrained: Flat,
  seed: Array,
) -> types.ClientState:
  """Returns the state of one client.

  Args:
    pretrained: variables that replace the random values of the client.
  """
  key = prng.client(seed, Stream.CLASSIFIER, 0, uid)
  variables = settings.model.init(key) | pretrained
  shared, personal = trees.split(variables, settings.shared)
  states = {
    c.name: c.client.init(
      jax.random.fold_in(key, prng.component_uid(c.name)), variables
    )
    for c in components
    if c.client
  }
  states |= {
    transport_state(c): kept
    for c in components
    if c.transport and jax.tree.leaves(kept := c.transport.init(shared))
  }
  params, _ = trees.trainable(variables)
  opt_state = settings.optimizer.init(params) if settings.persistent else ()
  return types.ClientState(personal, states, opt_state)


def notices(components: Sequence[Component]) -> list[str]:
  """Returns the texts that components want users to read when a run begins."""
  texts = [component.notice for component in components]
  return [text for text in texts if text]


def warnings(
  components: Sequence[Component], metrics: dict[str, float]
) -> list[str]:
  """Returns the components' warnings about the metrics of a round."""
  texts: list[str] = []
  for component in components:
    prefix = f'{component.name}_'
    own = {
      name.removeprefix(prefix): value
      for name, value in metrics.items()
      if name.startswith(prefix)
    }
    if component.warn and own:
      texts.append(component.warn(own))
  return [text for text in texts if text]


def models_to_evaluate(
  components: Sequence[Component], store: ClientStore
) -> Mapping[int, Flat]:
  """Returns the clients' own models that a component keeps for evaluation.

  Args:
    store: states of the clients; a client whose state was never written has no
      such model.

  Returns:
    Variables by canonical index of the client, read on demand.
  """
  keepers = [c.name for c in components if 'local_model' in c.properties]
  if not keepers:
    return {}

  def kept(client: int) -> Any:
    """`(variables, present)`; None at a real site, where the state stays."""
    return store.row(client).states.get(keepers[0])

  present = [k for k in store.written() if (state := kept(k)) and state[1]]
  return OnDemand(dict.fromkeys(present), lambda k: dict(kept(k)[0]))
