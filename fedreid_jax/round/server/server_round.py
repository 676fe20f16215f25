"""The server's part of a round: clustering, aggregation and updates."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core import param_filter, types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import aggregation, contexts
from fedreid_jax.method.component import Component
from fedreid_jax.method.sums import Summed
from fedreid_jax.round.server import fold_result, raw_weights, summed_round
from fedreid_jax.round.server.fold import Fold
from fedreid_jax.round.server.server_contexts import Groups, ServerContexts
from fedreid_jax.round.server.summed_round import SummedRound
from fedreid_jax.round.server.totals import Streamed
from fedreid_jax.round.settings import Settings

Log = dict[str, Any]
Received = types.Upload | Streamed  # stacked, or added up


def messages(
  components: Sequence[Component], server: types.ServerState
) -> dict[str, Tree]:
  """Returns the messages that are broadcast to every client, by name."""
  return {
    c.name: c.server.message(server.states[c.name])
    for c in components
    if c.server and c.server.message
  }


def receive(
  components: Sequence[Component],
  states: dict[str, Any],
  uploads: types.Upload,
  added: dict[str, Tree],
  valid: Array,
) -> dict[str, Any]:
  """Returns the server states after the components received their messages.

  Args:
    components: components whose clients sent messages.
    states: states of the server, by name.
    uploads: what is known of the uploads of a round, or of the data pass before
      round 0, `[K, ...]`.
    added: sums of the messages of components of which the uploads have none.
    valid: whether each upload is valid, bool `[K]`.
  """
  states = dict(states)
  for component in components:
    server, name = component.server, component.name
    if not (server and server.receive):
      continue
    ctx = contexts.ReceiveCtx(uploads.index)
    if name in added and isinstance(server.receive, Summed):
      finish = server.receive.finish
      states[name] = finish(states[name], added[name], valid, ctx)
    else:
      messages = uploads.messages.get(name, ())
      states[name] = server.receive(states[name], messages, valid, ctx)
  return states


def _sums_of_messages(fold: Fold | None, received: Received) -> dict[str, Tree]:
  """Returns the sums of the messages of a streamed round, by component."""
  if not (fold and isinstance(received, Streamed)):
    return {}
  totals = received.totals
  return {n: fold_result.message(fold, totals, n) for n in totals.messages}


def _rows(received: Received) -> types.Upload:
  """Returns what is known of each upload, `[K, ...]`."""
  return received.uploads if isinstance(received, Streamed) else received


def prepare(
  components: Sequence[Component],
  fold: Fold | None,
  server: types.ServerState,
  received: Received,
) -> types.ServerState:
  """Returns the state after the data pass before round 0.

  Args:
    components: components with such a pass.
    fold: sums of the method if the uploads are streamed.
    server: state of the server.
    received: uploads of the pass.
  """
  uploads = _rows(received)
  valid = aggregation.valid_uploads(uploads)
  added = _sums_of_messages(fold, received)
  states = receive(components, server.states, uploads, added, valid)
  return dataclasses.replace(server, states=states)


def _complete(tree: Any) -> Any:
  """Returns a tree whose arrays are complete already."""
  return tree


class Rules(NamedTuple):
  """The rules by which uploads become the models of the next round.

  Attributes:
    components: components of the method, in order.
    settings: settings of the local round.
    clusterer: the component that fills `clustering`, if any.
    aggregator: the component that fills `aggregation`, if any.
    batch_stats_rule: rule for running statistics, `aggregation.BatchStatsRule`.
    ordered: whether uploads are reduced in canonical client order.
    fold: sums of the method if uploads are streamed.
    summed: sums of the method if the server sees no upload.
  """

  components: Sequence[Component]
  settings: Settings
  clusterer: Component | None
  aggregator: Component | None
  batch_stats_rule: str
  ordered: bool
  fold: Fold | None
  summed: SummedRound | None


def run(
  rules: Rules,
  server: types.ServerState,
  received: Received,
  drawn: Array,
  round_: Array,
  public: Array,
  seed: Array,
  gather: Callable[[Any], Any] = _complete,
) -> tuple[types.ServerState, Log]:
  """Runs the server's part of a round.

  Args:
    rules: rules of the method.
    server: state before the round.
    received: uploads of the cohort, `[K, ...]`.
    drawn: position of each client in the order of sampling, int32 `[K]`.
    round_: global round.
    public: images of the public set.
    seed: `prng.data` of the run's seed.
    gather: returns a tree of arrays complete on every device. A device may have
      a part of the coordinates of `received`, which suffices for their mean,
      but a norm would have other bits. Arrays that nobody reads are not copied.
  """
  received, fold = _colluded(rules, received), rules.fold
  if rules.summed and isinstance(received, types.Upload):
    received = rules.summed.capped(received)
  parts = _rows(received)
  finite = valid = aggregation.valid_uploads(parts)
  received = gather(received)
  uploads = _rows(received)
  unseen = bool(fold or rules.summed)
  context = ServerContexts(
    rules.settings, server, uploads, valid, round_, public, seed, unseen
  )
  states, added = server.states, _sums_of_messages(fold, received)
  found: summed_round.Added | None = None
  if rules.summed:
    name = rules.summed.name
    found = rules.summed.add(
      states, uploads, server.shared, context.of_uploads(name)
    )
    states, added = states | {name: found.state}, found.messages
    valid = found.arrived
    context = context.arrived(valid)
  groups = _assign(rules, context, server, uploads, valid)
  weights, fell_back = _weigh(rules, context, groups, received, valid)
  by_leaf = aggregation.leaf_weights(
    weights,
    groups.sizes,
    groups.start,
    _first(drawn, groups.members),
    rules.batch_stats_rule,
  )
  if found:
    models = found.models
  elif fold and isinstance(received, Streamed):
    models = fold_result.aggregate(
      fold, groups.start, received, valid, by_leaf, fell_back
    )
  else:
    models = aggregation.reduce(
      groups.start, parts.shared, by_leaf, rules.ordered
    )
    models = _combine(rules, context, groups, gather(models))
  states = receive(rules.components, states, uploads, added, valid)
  for component in rules.components:
    hooks, name = component.server, component.name
    if hooks and hooks.update:
      ctx = context.of_groups(name, groups)
      states[name], models = hooks.update(states[name], models, ctx)
  rows = jnp.where(valid, uploads.index, server.groups.shape[0])
  new = types.ServerState(
    shared=models,
    groups=server.groups.at[rows].set(groups.of_uploads, mode='drop'),
    states=states,
  )
  log: Log = {
    'valid': finite,
    'kept': valid,
    'groups': groups.of_uploads,
    'fell_back': fell_back,
    'server': _metrics(rules.components, states),
  }
  if isinstance(received, Streamed):
    log['out_of_range'] = received.far
  return new, log | aggregation.summarise(weights)


def _metrics(
  components: Sequence[Component], states: dict[str, Any]
) -> dict[str, Array]:
  """Returns the metrics of the server, with the names of their components."""
  return {
    f'{component.name}_{name}': value
    for component in components
    if component.server and component.server.metrics
    for name, value in component.server.metrics(states[component.name]).items()
  }


def _assign(
  rules: Rules,
  context: ServerContexts,
  server: types.ServerState,
  uploads: types.Upload,
  valid: Array,
) -> Groups:
  """Returns the groups of a round, which are new if the method clusters."""
  num_groups = server.groups.shape[0] if rules.clusterer else 1
  groups = old = server.groups[jnp.maximum(uploads.index, 0)]
  if rules.clusterer and rules.clusterer.clustering:
    ctx = context.of_uploads(rules.clusterer.name)
    groups = rules.clusterer.clustering(server.groups, ctx)
  members = (groups[None] == jnp.arange(num_groups)[:, None]) & valid[None]
  sizes = aggregation.normalise(uploads.num_examples, members)
  start = server.shared
  if rules.clusterer:
    # Clustering may create groups in this round. A group starts from the mean
    # of the models that its members received.
    started = {n: x[old] for n, x in start.items()}
    by_size = dict.fromkeys(start, sizes)
    start = aggregation.reduce(start, started, by_size, rules.ordered)
  return Groups(groups, members, sizes, start)


def _weigh(
  rules: Rules,
  context: ServerContexts,
  groups: Groups,
  received: Received,
  valid: Array,
) -> tuple[Array | dict[str, Array], Array]:
  """Returns (weights of the uploads, whether sizes replaced them)."""
  if not (rules.aggregator and rules.aggregator.aggregation):
    return groups.sizes, jnp.bool_(False)
  name, rule = rules.aggregator.name, rules.aggregator.aggregation
  messages = _rows(received).messages.get(name, ())
  if isinstance(received, Streamed):
    raw = received.raw
  else:
    raw = raw_weights.stacked(rule, messages, received, groups)
  ctx = context.of_groups(name, groups, raw)
  weights = raw_weights.weigh(rule, messages, ctx)
  if rules.fold:
    exceeds = fold_result.exceeds(rules.fold, raw, valid)

    def trusted(rows: Array) -> Array:
      return jnp.where(exceeds, jnp.nan, rows)

    weights = jax.tree.map(trusted, weights)
  if rules.summed:  # without weights the model stays
    return jax.tree.map(jnp.nan_to_num, weights), jnp.bool_(False)
  return aggregation.usable(weights, groups.members, groups.sizes)


def _colluded(rules: Rules, received: Received) -> Received:
  """Returns the uploads after the clients that know each other's uploads."""
  for component in rules.components:
    transport = component.transport
    if transport and transport.collude and isinstance(received, types.Upload):
      received = transport.collude(received)
  return received


def _combine(
  rules: Rules, context: ServerContexts, groups: Groups, models: Flat
) -> Flat:
  """Returns the models of a rule that is no weighted mean, else the given."""
  component = rules.aggregator
  rule = component.aggregation if component else None
  if component is None or rule is None or rule.combine is None:
    return models
  found = rule.combine(models, context.of_groups(component.name, groups))
  if rules.batch_stats_rule != 'average':
    found, _ = param_filter.trainable(found)
  return {**models, **found}


def _first(drawn: Array, members: Array) -> Array:
  """Returns the one-hot `[G, K]` of each group's member sampled first."""
  order = jnp.where(members, drawn[None], jnp.iinfo(jnp.int32).max)
  first = jnp.arange(drawn.shape[0])[None] == order.argmin(axis=1)[:, None]
  return (first & members).astype(jnp.float32)
