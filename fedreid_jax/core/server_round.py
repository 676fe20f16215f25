"""The server's part of a round: clustering, aggregation and updates."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedreid_jax.core import aggregation, contexts, prng, trees, types
from fedreid_jax.core.component import Component
from fedreid_jax.core.local_step import Settings
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat

Log = dict[str, Array]


def receive(
  components: Sequence[Component],
  states: dict[str, Any],
  uploads: types.Upload,
  valid: Array,
) -> dict[str, Any]:
  """Returns the server states after the components received their messages.

  Args:
    components: components whose clients sent messages.
    states: states of the server, by name.
    uploads: uploads of a round, or of the data pass before round 0.
    valid: whether each upload is valid, bool `[K]`.
  """
  states = dict(states)
  for component in components:
    server, name = component.server, component.name
    if server and server.receive:
      ctx = contexts.ReceiveCtx(uploads.index)
      messages = uploads.messages.get(name, ())
      states[name] = server.receive(states[name], messages, valid, ctx)
  return states


def make(
  components: Sequence[Component],
  settings: Settings,
  clusterer: Component | None,
  aggregator: Component | None,
  batch_stats_rule: str,
  ordered: bool,
) -> Callable[..., tuple[types.ServerState, Log]]:
  """Returns `(ServerState, uploads, drawn, round, public) -> (state, log)`.

  Args:
    components: components of the method, in order.
    settings: settings of the local round.
    clusterer: the component that fills `clustering`, if any.
    aggregator: the component that fills `aggregation`, if any.
    batch_stats_rule: rule for running statistics, `aggregation.BatchStatsRule`.
    ordered: whether uploads are reduced in canonical client order.
  """

  def complete(shared: Flat) -> Flat:
    shapes = jax.eval_shape(settings.model.init, settings.seed)
    return trees.zeros(shapes) | shared

  def run(
    server: Any,
    uploads: types.Upload,
    drawn: Array,
    round_: Array,
    public: Array,
  ) -> tuple[types.ServerState, Log]:
    valid = aggregation.valid_uploads(uploads)
    base = prng.key(settings.seed, Stream.SERVER, round_)
    previous: Flat = server.shared

    def fields(name: str) -> dict[str, Any]:
      return {
        'index': uploads.index,
        'valid': valid,
        'uploaded': uploads.shared,
        'num_examples': uploads.num_examples,
        'num_steps': uploads.num_steps,
        'previous': previous,
        'public': public,
        'model': settings.model,
        'train_transform': settings.train_transform,
        'test_transform': settings.test_transform,
        'complete': complete,
        'round': round_,
        'key': jax.random.fold_in(base, prng.component_uid(name)),
      }

    num_clients = server.groups.shape[0]
    num_groups = num_clients if clusterer else 1
    groups = old = server.groups[jnp.maximum(uploads.index, 0)]
    if clusterer and clusterer.clustering:
      ctx = contexts.ServerCtx(**fields(clusterer.name))
      groups = clusterer.clustering(server.groups, ctx)
    members = (groups[None] == jnp.arange(num_groups)[:, None]) & valid[None]
    sizes = aggregation.normalise(uploads.num_examples, members)
    start = previous
    if clusterer:
      # Groups are new, so each starts from the mean of its members' models.
      started = {n: x[old] for n, x in previous.items()}
      by_size = dict.fromkeys(previous, sizes)
      start = aggregation.reduce(previous, started, by_size, ordered)

    def ctx_of(name: str) -> contexts.AggregationCtx:
      return contexts.AggregationCtx(
        **fields(name), members=members, start=start
      )

    weights, fell_back = sizes, jnp.bool_(False)
    if aggregator and aggregator.aggregation:
      name = aggregator.name
      messages = uploads.messages.get(name, ())
      weights = aggregator.aggregation.weights(messages, ctx_of(name))
      weights, fell_back = aggregation.usable(weights, members, sizes)
    by_leaf = aggregation.leaf_weights(
      weights, sizes, start, _first(drawn, members), batch_stats_rule
    )
    shared = aggregation.reduce(start, uploads.shared, by_leaf, ordered)
    states = receive(components, server.states, uploads, valid)
    for component in components:
      hooks, name = component.server, component.name
      if hooks and hooks.update:
        states[name], shared = hooks.update(states[name], shared, ctx_of(name))
    rows = jnp.where(valid, uploads.index, num_clients)
    server = dataclasses.replace(
      server,
      shared=shared,
      groups=server.groups.at[rows].set(groups, mode='drop'),
      states=states,
    )
    log = {'valid': valid, 'groups': groups, 'fell_back': fell_back}
    return server, log | aggregation.summarise(weights)

  return run


def _first(drawn: Array, members: Array) -> Array:
  """Returns the one-hot `[G, K]` of each group's member sampled first."""
  order = jnp.where(members, drawn[None], jnp.iinfo(jnp.int32).max)
  first = jnp.arange(drawn.shape[0])[None] == order.argmin(axis=1)[:, None]
  return (first & members).astype(jnp.float32)
