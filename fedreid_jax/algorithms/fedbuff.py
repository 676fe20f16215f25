"""FedBuff: an asynchronous server that updates its model at every K-th upload.

Nguyen et al., Federated learning with buffered asynchronous aggregation,
AISTATS 2022, Algorithm 1. Client i started from the model of version v_i; with
the server at version v, its staleness is tau_i = v - v_i. When K uploads have
arrived,

  w <- w + (lr / K) sum_i s(tau_i) (w_i - w^{v_i}),
  s(tau) = (1 + tau)^-exponent.

A timetable of simulated time (`round.timetable`) determines when each
upload arrives. The server keeps the last `max_staleness` models.

Deviations from the paper: an upload that is staler than `max_staleness` is not
used, and K does not count it. A running statistic x moves by
min(lr, 1) / K sum_i s(tau_i) (x_i - x), from the present one: the change since
version v_i would add to a variance that has fallen since, and make it negative.
Private parameters of a client are those of its previous upload. Deviations from
released code: none is taken as the reference.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import jax.numpy as jnp

from fedreid_jax.core import trees, types
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import contexts, sums
from fedreid_jax.method.accounting import Released
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  ServerHooks,
  Transport,
)
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.method.sums import Divisor, Sum

NAME = 'fedbuff'


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedBuff."""

  lr: Annotated[float, Range(1e-9), 'learning rate of the server'] = 1.0
  exponent: Annotated[
    float,
    Range(0),
    'how fast the weight of an upload falls with its staleness; 0 gives equal '
    'weights',
  ] = 0.5
  max_staleness: Annotated[
    int,
    Range(1, 64),
    'largest staleness of an upload that is used; the server keeps as many '
    'models',
  ] = 8


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield (
    not given.config.availability.in_flight,
    'availability.in_flight',
    f'no client is in flight with {given.name}',
    'set it above 0',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def init(ctx: contexts.ServerInitCtx) -> Flat:
    number = options.max_staleness
    return {
      name: jnp.repeat(x[None], number, axis=0)
      for name, x in ctx.shared.items()
    }

  def update(
    state: Flat, models: Flat, ctx: contexts.AggregationCtx
  ) -> tuple[Flat, Flat]:
    # Newest first: the model of staleness s is at place s - 1.
    kept = {
      name: jnp.concatenate([ctx.previous[name], old[:-1]])
      for name, old in state.items()
    }
    return kept, models

  def message(state: Flat) -> dict[str, Flat]:
    return {'earlier': state}

  def down(broadcast: types.Broadcast, key: Array) -> types.Broadcast:
    del key
    earlier = broadcast.messages[NAME]['earlier']
    stale = broadcast.staleness
    shared = {
      name: jnp.where(stale > 0, earlier[name][jnp.maximum(stale, 1) - 1], now)
      for name, now in broadcast.shared.items()
    }
    # The server adds the change to its present model.
    messages = broadcast.messages | {NAME: {'present': broadcast.shared}}
    return dataclasses.replace(broadcast, shared=shared, messages=messages)

  def up(
    state: Any, upload: types.Upload, received: types.Broadcast, key: Array
  ) -> tuple[Any, types.Upload]:
    del key
    present = received.messages[NAME]['present']
    params, running = trees.trainable(upload.shared)
    shared = {
      name: present[name] + (x - received.shared[name])
      for name, x in params.items()
    }
    # The server multiplies by `lr`, which must not exceed 1 for a variance.
    share = min(1.0, 1.0 / options.lr)
    shared |= {
      # From the present value: the change since an earlier version would add
      # to a variance that has fallen since, and could make it negative.
      name: present[name] + share * (x - present[name])
      for name, x in running.items()
    }
    return state, dataclasses.replace(upload, shared=shared)

  def round_end(
    state: Any, ctx: contexts.RoundEndCtx
  ) -> tuple[Any, dict[str, Array]]:
    return state, {'staleness': ctx.task.staleness}

  def weight(message: dict[str, Array], ctx: contexts.UploadCtx) -> Array:
    del ctx
    return (1.0 + message['staleness']) ** -options.exponent

  def divided(found: dict[str, Array]) -> Array:
    return found['uploads'] / options.lr

  return Component(
    NAME,
    client=ClientHooks(round_end=round_end),
    server=ServerHooks(init=init, update=update, message=message),
    transport=Transport(up=up, down=down),
    aggregation=Sum(
      weight,
      sums.by_count,
      Divisor(_counted, {'uploads': 1.0}, divided),
    ),
    properties=('free_message', 'rebased_uploads', 'simulated'),
    conflicts=('clustering',),
    # Staleness depends on numbers of images and steps only. An update of the
    # server has at most one upload of a client, so that the number of rounds
    # bounds that of uploads in a guarantee.
    released=Released(),
    notice='clients start at different times; docs/realism.md',
    max_staleness=options.max_staleness,
  )


def _counted(
  message: dict[str, Array], ctx: contexts.UploadCtx
) -> dict[str, tuple[Array, Array | float]]:
  del message, ctx
  return {'uploads': (jnp.float32(1.0), 1.0)}
