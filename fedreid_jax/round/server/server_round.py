"""The server's part of a round: sums or gathered uploads, then updates."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.core import prng, trees, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Metrics, Tree
from fedreid_jax.method import aggregation, contexts
from fedreid_jax.method.component import Component
from fedreid_jax.method.sums import Gather, MessageSum
from fedreid_jax.round.server import masked
from fedreid_jax.round.server.fold import Fold, Folded, Mean
from fedreid_jax.round.settings import Settings

Log = dict[str, Any]
Received = types.Upload | Folded  # stacked uploads, or their sums


class Rules(NamedTuple):
  """The rules by which uploads become the models of the next round.

  Attributes:
    components: components of the method, in order.
    settings: settings of the local round.
    clusterer: the component that fills `clustering`, if any.
    aggregator: the component that fills `aggregation`, if any.
    adder: the component that fills `summation`, if any.
    gathers: whether the server needs all uploads at once.
    fold: sums of the method; with a `Gather` only its sums of messages are
      used.
  """

  components: Sequence[Component]
  settings: Settings
  clusterer: Component | None
  aggregator: Component | None
  adder: Component | None
  gathers: bool
  fold: Fold


class Groups(NamedTuple):
  """The groups of the uploads of a round, one for each server model.

  Attributes:
    of_uploads: group of each upload, int32 `[K]`.
    members: valid uploads of each group, bool `[G, K]`.
    sizes: weights by number of images, `[G, K]`.
    start: the model of each group before the aggregation, `[G, ...]`.
  """

  of_uploads: Array
  members: Array
  sizes: Array
  start: Flat


class ServerContexts:
  """Builds the contexts of the server hooks of all components."""

  def __init__(
    self,
    settings: Settings,
    server: types.ServerState,
    uploads: types.Upload,
    valid: Array,
    round_: Array,
    public: Array,
    seed: Array,
    summed: bool,
  ):
    """Collects the fields that the contexts of all components have.

    Args:
      uploads: uploads of the cohort, `[K, ...]`.
      valid: whether each upload is valid, bool `[K]`.
      summed: whether the server has sums and no uploads; then to read
        `ctx.uploaded` is an error.
    """
    self._summed = summed
    self._key = prng.key(seed, Stream.SERVER, round_)
    self._common: dict[str, Any] = {
      'index': uploads.index,
      'valid': valid,
      'uploaded': uploads.shared,
      'num_examples': uploads.num_examples,
      'num_steps': uploads.num_steps,
      'previous': server.shared,
      'public': public,
      'model': settings.model,
      'train_transform': settings.train_transform,
      'test_transform': settings.test_transform,
      'complete': functools.partial(_complete, settings),
      'round': round_,
    }

  def of_uploads(self, name: str) -> contexts.ServerCtx:
    """Returns the context of a component before clients have groups."""
    return contexts.ServerCtx(**self._fields(name))

  def of_groups(
    self, name: str, groups: Groups, valid: Array
  ) -> contexts.AggregationCtx:
    """Returns the context of a component after clients have groups.

    Args:
      valid: which uploads are used, bool `[K]`. A `Summation` may lose some of
        those that the constructor received as valid.
    """
    fields: dict[str, Any] = self._fields(name) | {'valid': valid}
    return contexts.AggregationCtx(
      **fields,
      members=groups.members,
      start=groups.start,
    )

  def _fields(self, name: str) -> dict[str, Any]:
    key = jax.random.fold_in(self._key, prng.component_uid(name))
    own: dict[str, Any] = {'key': key}
    if self._summed:
      own['uploaded'] = contexts.NoUploads(name)
    return self._common | own


class Reduced(NamedTuple):
  """The models of a round before the updates of the components.

  Attributes:
    mean: models of all groups, and how they were made.
    groups: groups of the uploads.
    valid: which uploads are used, bool `[K]`.
    states: states of the server, by name.
    added: sums of messages, by name.
    far: which finite uploads are not in the sums, because a value is out of
      range, bool `[K]`; None if values have no range.
  """

  mean: Mean
  groups: Groups
  valid: Array
  states: dict[str, Any]
  added: dict[str, Tree]
  far: Array | None = None


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
    uploads: uploads of a round or of the data pass before round 0, perhaps
      without shared parameters and summed messages, `[K, ...]`.
    added: sums of messages by component, for messages that are not in uploads.
    valid: whether each upload is valid, bool `[K]`.
  """
  states = dict(states)
  for component in components:
    server, name = component.server, component.name
    if not (server and server.receive):
      continue
    ctx = contexts.ReceiveCtx(uploads.index)
    if name in added and isinstance(server.receive, MessageSum):
      finish = server.receive.finish
      states[name] = finish(states[name], added[name], valid, ctx)
    else:
      sent = uploads.messages.get(name, ())
      states[name] = server.receive(states[name], sent, valid, ctx)
  return states


def judge(
  components: Sequence[Component],
  states: dict[str, Any],
  metrics: Metrics,
  done: Array,
) -> dict[str, Any]:
  """Returns the server states after an evaluation on held-out persons."""
  judged = {
    c.name: c.server.judge(states[c.name], metrics, done)
    for c in components
    if c.server and c.server.judge
  }
  return states | judged


def prepare(
  components: Sequence[Component],
  fold: Fold,
  gathers: bool,
  server: types.ServerState,
  received: Received,
) -> types.ServerState:
  """Returns the state after the data pass before round 0.

  Args:
    gathers: whether uploads are stacked for the components.
  """
  # A runner of clients may return stacked uploads, which are added here.
  if not gathers:
    received = _folded(fold.untrained(), server, received)
  added: dict[str, Tree] = {}
  if isinstance(received, Folded):
    added = fold.messages(fold.read(received.totals))
    received = received.uploads
  valid = aggregation.valid_uploads(received)
  states = receive(components, server.states, received, added, valid)
  return dataclasses.replace(server, states=states)


def run(
  rules: Rules,
  server: types.ServerState,
  received: Received,
  drawn: Array,
  round_: Array,
  public: Array,
  seed: Array,
) -> tuple[types.ServerState, Log]:
  """Runs the server's part of a round.

  Args:
    received: uploads of the cohort, `[K, ...]`, in canonical order.
    drawn: position of each client in the order of sampling, int32 `[K]`.
  """
  if isinstance(received, types.Upload):
    received = _changed(rules, received)
  if not (rules.gathers or rules.adder):
    received = _folded(rules.fold, server, received, drawn)
  uploads = received.uploads if isinstance(received, Folded) else received
  valid = aggregation.valid_uploads(uploads)
  context = ServerContexts(
    rules.settings,
    server,
    uploads,
    valid,
    round_,
    public,
    seed,
    not rules.gathers,
  )
  if isinstance(received, Folded):
    found = _added(rules, server, received, valid)
  elif rules.adder:
    found = _masked(rules, server, uploads, context)
  else:
    found = _gathered(rules, server, uploads, valid, drawn, context)
  states, models = found.states, found.mean.models
  states = receive(rules.components, states, uploads, found.added, found.valid)
  for component in rules.components:
    hooks, name = component.server, component.name
    if hooks and hooks.update:
      ctx = context.of_groups(name, found.groups, found.valid)
      states[name], models = hooks.update(states[name], models, ctx)
  of_uploads = found.groups.of_uploads
  # Uploads that are not used get a row out of range, which is dropped. The -1
  # of an empty lane would be the last client.
  rows = jnp.where(found.valid, uploads.index, server.groups.shape[0])
  new = types.ServerState(
    shared=models,
    groups=server.groups.at[rows].set(of_uploads, mode='drop'),
    states=states,
  )
  log: Log = {
    'valid': valid if found.far is None else valid & ~found.far,
    'kept': found.valid,
    'groups': of_uploads,
    'fell_back': found.mean.fell_back,
    'stayed': found.mean.stayed,
    'server': _metrics(rules.components, states),
  }
  if found.far is not None:
    log['out_of_range'] = found.far
  return new, log | aggregation.summarise(found.mean.weights)


def _changed(rules: Rules, uploads: types.Upload) -> types.Upload:
  """Returns stacked uploads as the server receives them."""
  for component in rules.components:
    transport = component.transport
    # Simulates clients that know each other's uploads.
    if transport and transport.collude:
      uploads = transport.collude(uploads)
  if rules.adder and rules.adder.summation:
    # The bound of a weight holds for at most `largest` images.
    largest = rules.adder.summation.largest
    images = jnp.minimum(uploads.num_examples, largest)
    uploads = dataclasses.replace(uploads, num_examples=images)
  return uploads


def _folded(
  fold: Fold,
  server: types.ServerState,
  received: Received,
  drawn: Array | None = None,
) -> Folded:
  """Returns the sums of uploads, which a runner may return stacked."""
  if isinstance(received, Folded):
    return received
  if drawn is None:
    drawn = jnp.zeros_like(received.index)
  start = trees.rows(server.shared, 0)
  return fold.over(start, fold.states(server), received, drawn)


def _one_group(
  server: types.ServerState, uploads: types.Upload, valid: Array
) -> Groups:
  """Returns the groups of a method that has one model."""
  members = valid[None]
  sizes = aggregation.normalise(uploads.num_examples, members)
  return Groups(jnp.zeros_like(uploads.index), members, sizes, server.shared)


def _added(
  rules: Rules, server: types.ServerState, folded: Folded, valid: Array
) -> Reduced:
  """Returns the models from sums that the clients' program has added."""
  fold, uploads, totals = rules.fold, folded.uploads, folded.totals
  sums = fold.read(totals)
  mean = fold.mean(
    server.shared, sums, totals.first, uploads, folded.raw, valid
  )
  return Reduced(
    mean,
    _one_group(server, uploads, valid),
    valid,
    dict(server.states),
    fold.messages(sums),
    folded.far,
  )


def _masked(
  rules: Rules,
  server: types.ServerState,
  uploads: types.Upload,
  context: ServerContexts,
) -> Reduced:
  """Returns the models from uploads that a `Summation` adds."""
  assert rules.adder
  fold, name = rules.fold, rules.adder.name
  start = trees.rows(server.shared, 0)
  ctx = context.of_uploads(name)
  state, sums, arrived, raw = masked.add(
    fold, server.states, start, uploads, ctx
  )
  mean = fold.mean(server.shared, sums, {}, uploads, raw, arrived)
  return Reduced(
    mean,
    _one_group(server, uploads, arrived),
    arrived,
    server.states | {name: state},
    fold.messages(sums),
  )


def _gathered(
  rules: Rules,
  server: types.ServerState,
  uploads: types.Upload,
  valid: Array,
  drawn: Array,
  context: ServerContexts,
) -> Reduced:
  """Returns the models from stacked uploads."""
  groups = _assign(rules, context, server, uploads, valid)
  aggregator = rules.aggregator
  rule = aggregator.aggregation if aggregator else None
  if not isinstance(rule, Gather):
    return _sums_of_groups(rules.fold, server, uploads, groups, drawn)
  assert aggregator
  ctx = context.of_groups(aggregator.name, groups, valid)
  sent = uploads.messages.get(aggregator.name, ())
  weights = rule.weights(sent, ctx) if rule.weights else groups.sizes
  weights, fell_back = aggregation.usable(weights, groups.members, groups.sizes)
  by_leaf = aggregation.leaf_weights(
    weights,
    groups.sizes,
    groups.start,
    _first(drawn, groups.members),
    rules.fold.batch_stats_rule,
  )
  models = aggregation.reduce(groups.start, uploads.shared, by_leaf)
  if rule.combine:
    combined = rule.combine(models, ctx)
    # With another rule the running statistics are those of `reduce`.
    if rules.fold.batch_stats_rule != 'average':
      combined, _ = trees.trainable(combined)
    models = models | combined
  mean = Mean(models, weights, fell_back, jnp.bool_(False))
  return Reduced(mean, groups, valid, dict(server.states), {})


def _sums_of_groups(
  fold: Fold,
  server: types.ServerState,
  uploads: types.Upload,
  groups: Groups,
  drawn: Array,
) -> Reduced:
  """Returns the models from stacked uploads, with a sum for each group."""
  # `receive` adds the stacked messages.
  fold = fold._replace(received={})

  def one(group: tuple[Flat, Array]) -> Any:
    start, members = group
    # Uploads that are not finite are not added. Members of other groups are
    # left out in the same way.
    own = dataclasses.replace(uploads, finite=uploads.finite & members)
    folded = fold.over(start, {}, own, drawn)
    valid = folded.uploads.finite
    mean = fold.mean(
      {n: x[None] for n, x in start.items()},
      fold.read(folded.totals),
      folded.totals.first,
      own,
      folded.raw,
      valid,
    )
    models, weights = trees.rows((mean.models, mean.weights), 0)
    return mean._replace(models=models, weights=weights), valid, folded.far

  mean, valid, far = jax.lax.map(one, (groups.start, groups.members))
  mean = mean._replace(fell_back=mean.fell_back.any(), stayed=mean.stayed.any())
  # A client whose update is out of range is no member of its group.
  used = groups._replace(
    members=valid, sizes=aggregation.normalise(uploads.num_examples, valid)
  )
  valid, far = valid.any(axis=0), far.any(axis=0)
  return Reduced(mean, used, valid, dict(server.states), {}, far)


def _metrics(
  components: Sequence[Component], states: dict[str, Any]
) -> dict[str, Array]:
  """Returns the metrics of the server, with the component as a prefix."""
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
  if not (rules.clusterer and rules.clusterer.clustering):
    return _one_group(server, uploads, valid)
  num_groups = server.groups.shape[0]
  # Any group for an empty lane, -1, which has no weight below.
  old = server.groups[jnp.maximum(uploads.index, 0)]
  ctx = context.of_uploads(rules.clusterer.name)
  groups = rules.clusterer.clustering(server.groups, ctx)
  members = (groups[None] == jnp.arange(num_groups)[:, None]) & valid[None]
  sizes = aggregation.normalise(uploads.num_examples, members)
  # Clustering may create groups in this round. A group starts from the mean
  # of the models that its members received.
  started = {n: x[old] for n, x in server.shared.items()}
  start = aggregation.reduce(
    server.shared, started, dict.fromkeys(server.shared, sizes)
  )
  return Groups(groups, members, sizes, start)


def _first(drawn: Array, members: Array) -> Array:
  """Returns each group's member sampled first, as one-hot rows `[G, K]`."""
  order = jnp.where(members, drawn[None], jnp.iinfo(jnp.int32).max)
  first = jnp.arange(drawn.shape[0])[None] == order.argmin(axis=1)[:, None]
  # The row of an empty group, whose argmin is 0, stays zero.
  return (first & members).astype(jnp.float32)


def _complete(settings: Settings, shared: Flat) -> Flat:
  # Only shapes are needed, so that the network is not initialised.
  shapes = jax.eval_shape(settings.model.init, jax.random.key(0))
  return trees.zeros(shapes) | shared
