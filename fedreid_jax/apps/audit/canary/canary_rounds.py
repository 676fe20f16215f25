"""Rounds of DP-FedAvg with canaries as clients.

Each canary has a coordinate of the model as its direction. A canary that takes
part sends an update of a thousand times the clip in this direction. A canary
that does not sends its initial parameters, whose update is zero. The hooks of
the component clip, weight and sum the updates and add the noise in every round,
with the cohorts of the run, and the auditor sees the models. The score of a
canary is the change of the model in its direction over all rounds.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg
from fedreid_jax.apps.audit.canary.canaries import Canaries
from fedreid_jax.core.types import Array, Broadcast, Flat, Upload
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.contexts import (
  AggregationCtx,
  ReceiveCtx,
  ServerInitCtx,
)
from fedreid_jax.method.sums import MessageSum
from fedreid_jax.round.cohort import cohort
from fedreid_jax.round.server import fold
from fedreid_jax.round.server.arithmetic import Float32

LEAF = 'params/canaries'
FACTOR = 1e3  # of the clip
FEWEST = 50  # canaries


def of(options: dp_fedavg.Options, participants: Participants) -> Canaries:
  """Returns the canaries of a run, one instead of each client.

  Raises:
    ConfigError: with fewer than 50 clients.
  """
  number = len(participants.clients)
  if number < FEWEST:
    raise errors.ConfigError(
      f'{errors.counted(number, "client")}, fewer than {FEWEST} canaries',
      dp_fedavg.NAME,
      'audit a run with more clients',
    )
  # The noise that epsilon would choose is replaced, too.
  silent = dataclasses.replace(options, noise=0.0, epsilon=0.0)
  everyone = participants._replace(
    cohort=number, fraction=1.0, poisson=False, rounds=1
  )
  return Canaries(
    number,
    2 * (number // 4),
    options.delta,
    functools.partial(scores, options, participants),
    functools.partial(scores, silent, everyone),
  )


def scores(
  options: dp_fedavg.Options,
  participants: Participants,
  included: Bool[np.ndarray, ' m'],
  seed: int,
) -> Float[np.ndarray, ' m']:
  """Returns the score of each client after all rounds.

  Args:
    options: of the component.
    participants: of the run.
    included: whether each client takes part.
    seed: of cohorts and noise.
  """
  bind = dp_fedavg.make(options).info.bind
  assert bind is not None
  component, number = bind(participants), len(included)
  server = component.server
  assert server is not None and server.init is not None
  state = server.init(_context(ServerInitCtx, num_clients=number))
  model: Flat = {LEAF: jnp.zeros(number)}
  step = jax.jit(lambda *given: _round(component, options, *given))
  key = jax.random.key(seed)
  for round_ in range(participants.rounds):
    present = np.zeros(number, bool)
    present[_cohort(participants, number, seed, round_)] = True
    state, model = step(
      state, model, present, included, jax.random.fold_in(key, round_)
    )
  return np.asarray(model[LEAF], np.float64)


def _cohort(
  participants: Participants, number: int, seed: int, round_: int
) -> np.ndarray:
  """Returns the numbers of the clients in a round, drawn as in the run."""
  if participants.poisson:
    return cohort.sample_poisson(
      seed, round_, number, participants.fraction, participants.cohort
    )
  return cohort.sample_cohort(seed, round_, number, participants.fraction)


def _round(
  component: Component,
  options: dp_fedavg.Options,
  state: Any,
  model: Flat,
  present: Array,
  included: Array,
  key: Array,
) -> tuple[Any, Flat]:
  """Returns (state, model) after a round with the hooks of the component."""
  server, transport = component.server, component.transport
  assert server and transport and transport.up
  name, number = component.name, len(included)
  told = {name: server.message(state)} if server.message else {}
  received = _context(
    Broadcast, shared=model, messages=told, round=0, staleness=0
  )

  def up(index: Array, takes_part: Array) -> Upload:
    # The guarantee compares a client with one whose update is zero, so absent
    # canaries send an update, too.
    push = FACTOR * options.clip * takes_part
    trained = model[LEAF].at[index].add(push)
    sent = Upload(
      index=index,
      shared={LEAF: trained},
      # The largest weight of a client.
      num_examples=jnp.float32(max(options.n_max, 1)),
      num_steps=jnp.int32(1),
      finite=jnp.bool_(True),
      messages={},
    )
    assert transport.up
    return transport.up(sent, received, key)

  uploads = jax.vmap(up)(jnp.arange(number), included.astype(jnp.float32))
  uploads = dataclasses.replace(uploads, finite=present)
  # The sums of a run, in float32.
  sums = fold.make((component,), component, 'keep_server', Float32())
  order = jnp.arange(number)
  folded = sums.over(model, {name: state}, uploads, order)
  added = sums.read(folded.totals)
  if isinstance(server.receive, MessageSum):
    ctx = ReceiveCtx(uploads.index)
    total = sums.messages(added)[name]
    state = server.receive.finish(state, total, present, ctx)
  models = {LEAF: model[LEAF][None]}
  mean = sums.mean(models, added, {}, folded.uploads, folded.raw, present)
  ctx = _context(
    AggregationCtx,
    num_examples=uploads.num_examples,
    valid=present,
    members=present[None],
    previous=models,
    start=models,
    key=key,
  )
  assert server.update
  state, models = server.update(state, mean.models, ctx)
  return state, {LEAF: models[LEAF][0]}


def _context(kind: Any, **fields: Any) -> Any:
  """Returns a context with only the fields that DP-FedAvg reads."""
  names = [field.name for field in dataclasses.fields(kind)]
  return kind(**(dict.fromkeys(names) | fields))
