"""Canaries in the rounds of DP-FedAvg and in the steps of DP-SGD.

Each canary has a coordinate of the model as its direction. In DP-FedAvg the
clients of the run are canaries. One that takes part sends an update of a
thousand times the clip in its direction, and any other sends its initial
parameters. The hooks of the component and the cohorts are those of the run. The
score of a canary is the change of the model in its direction over all rounds.

In DP-SGD the canaries are the identities or the images of one client, the one
with the fewest units, which is enlarged by a whole factor. One that takes part
has a gradient of a thousand times the clip in its direction, and any other has
the gradient zero. The sampler and the gradient function are those of the run.
The score is the sum over all steps of the noisy gradient in the direction.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg, dpsgd
from fedreid_jax.apps.audit import canary
from fedreid_jax.apps.audit.canary import Audited, Canaries
from fedreid_jax.core.types import (
  Array,
  Batch,
  Broadcast,
  ClientData,
  Flat,
  Metrics,
  Upload,
)
from fedreid_jax.data import sampling
from fedreid_jax.data.federation import Federation
from fedreid_jax.method import guarantee
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.contexts import (
  AggregationCtx,
  GradientCtx,
  ReceiveCtx,
  ServerInitCtx,
)
from fedreid_jax.method.sums import MessageSum
from fedreid_jax.round import cohort
from fedreid_jax.round.server import fold
from fedreid_jax.round.server.arithmetic import Float32
from fedreid_jax.training import build, engine

LEAF = 'params/canaries'
FACTOR = 1e3  # of the clip
FEWEST = 50  # clients as canaries
SIZES = 1000, 2000, 4000, 8000, 16000  # numbers of canaries in one client


def of_run(config: Any, federation: Federation, seed: int = 0) -> Audited:
  """Audits the guarantee of a run.

  Raises:
    ConfigError: for a run without a guarantee, or with too few clients.
  """
  people = engine.participants_of(config, federation)
  columns = max(client.num_identities for client in federation.clients)
  model = build.network(config, columns, federation.image_shape)
  unbound = build.load_components(config)
  # The noise that an epsilon chooses depends on all that a client sends.
  people = engine.completed(unbound, people, model)
  components = engine.bound(unbound, people)
  claim = guarantee.Guarantee(components, people)
  fix = 'give a run with the component dp_fedavg or dpsgd'
  if not claim.claimed:
    raise errors.ConfigError(f'{config.name} has no guarantee', '--attack', fix)
  claimed = claim.epsilon(config.rounds)
  if dpsgd.NAME in config.components:
    options = dpsgd.Options(**build.arguments(config, dpsgd.NAME))
    canaries = of_steps(options, people, claimed)
  elif dp_fedavg.NAME in config.components:
    options = dp_fedavg.Options(**build.arguments(config, dp_fedavg.NAME))
    canaries = of_rounds(options, people)
  else:
    raise errors.ConfigError(
      f'there are no canaries for the guarantee of {config.name}',
      '--attack',
      fix,
    )
  return canary.audit(canaries, claimed, seed)


def of_rounds(
  options: dp_fedavg.Options, participants: Participants
) -> Canaries:
  """Replaces clients by canaries, or raises ConfigError for fewer than 50."""
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
    functools.partial(scores_of_rounds, options, participants),
    functools.partial(scores_of_rounds, silent, everyone),
  )


def scores_of_rounds(
  options: dp_fedavg.Options,
  participants: Participants,
  included: Bool[np.ndarray, ' m'],
  seed: int,
) -> Float[np.ndarray, ' m']:
  """Scores of clients after all rounds; the seed is of cohorts and noise."""
  bind = dp_fedavg.make(options).bind
  assert bind is not None
  component, number = bind(participants), len(included)
  assert component is not None
  server = component.server
  assert server is not None and server.init is not None
  state = server.init(_context(ServerInitCtx, num_clients=number))
  model: Flat = {LEAF: jnp.zeros(number)}
  step = jax.jit(functools.partial(_round, component, options))
  key = jax.random.key(seed)
  fraction = participants.fraction
  for round_ in range(participants.rounds):
    # The cohorts are drawn as in the run.
    if participants.poisson:
      drawn = cohort.sample_poisson(
        seed, round_, number, fraction, participants.cohort
      )
    else:
      drawn = cohort.sample_cohort(seed, round_, number, fraction)
    present = np.zeros(number, bool)
    present[drawn] = True
    state, model = step(
      state, model, present, included, jax.random.fold_in(key, round_)
    )
  return np.asarray(model[LEAF], np.float64)


def _round(
  component: Component,
  options: dp_fedavg.Options,
  state: Any,
  model: Flat,
  present: Array,
  included: Array,
  key: Array,
) -> tuple[Any, Flat]:
  server, transport = component.server, component.transport
  assert server and server.update and transport and transport.up
  up = transport.up
  name, number = component.name, len(included)
  told = {name: server.message(state)} if server.message else {}
  received = _context(
    Broadcast, shared=model, messages=told, round=0, staleness=0
  )

  def sent(index: Array, takes_part: Array) -> Upload:
    # The guarantee compares a client with one whose update is zero, so absent
    # canaries send an update, too.
    push = FACTOR * options.clip * takes_part
    upload = Upload(
      index=index,
      shared={LEAF: model[LEAF].at[index].add(push)},
      # The largest weight of a client.
      num_examples=jnp.float32(max(options.n_max, 1)),
      num_steps=jnp.int32(1),
      finite=jnp.bool_(True),
      messages={},
    )
    return up((), upload, received, key)[1]

  order = jnp.arange(number)
  uploads = jax.vmap(sent)(order, included.astype(jnp.float32))
  uploads = dataclasses.replace(uploads, finite=present, lost=())
  # The sums of a run, in float32.
  sums = fold.make((component,), component, 'keep_server', Float32())
  folded = sums.over(model, {name: state}, uploads, order)
  added = sums.read(folded.totals)
  if isinstance(server.receive, MessageSum):
    total = sums.messages(added)[name]
    ctx = ReceiveCtx(uploads.index)
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
  state, models = server.update(state, mean.models, ctx)
  return state, {LEAF: models[LEAF][0]}


def _context(kind: Any, **fields: Any) -> Any:
  names = [field.name for field in dataclasses.fields(kind)]
  return kind(**(dict.fromkeys(names) | fields))


class Enlarged(NamedTuple):
  """The client of the canaries of DP-SGD."""

  number: int  # of canaries, `m`
  units: int  # canaries of a step on average
  rows: int  # images of a canary in a step


def of_steps(
  options: dpsgd.Options, participants: Participants, claimed: float
) -> Canaries:
  """The canaries of a run of DP-SGD, as many as `claimed` requires."""
  client = enlarged(options, participants, claimed)
  # The component chooses the noise for the clients of the run.
  noise = dpsgd.noise_of(options, participants)
  own = dataclasses.replace(options, noise=noise, epsilon=0.0, trainable='')
  silent = dataclasses.replace(own, noise=0.0)
  everyone = client._replace(units=client.number)
  once = participants._replace(steps=1, rounds=1)
  return Canaries(
    client.number,
    _guesses(client.number),
    options.delta,
    functools.partial(scores_of_steps, own, participants, client),
    functools.partial(scores_of_steps, silent, once, everyone),
  )


def _guesses(number: int) -> int:
  """The largest r for which all guesses can be right."""
  # At least r / 2 canaries take part and at least r / 2 do not, with a
  # probability of 0.9999: the number that takes part has the standard deviation
  # sqrt(m) / 2, of which four are subtracted from the mean.
  return 2 * int(number / 2 - 2 * number**0.5)


def enlarged(
  options: dpsgd.Options, participants: Participants, claimed: float
) -> Enlarged:
  """A client of enough canaries, with the sampling rate of the run.

  If even the largest number of canaries without noise cannot refute the epsilon
  `claimed`, there are as few as possible.
  """
  # The claim of the run is the epsilon of the client with the fewest units.
  fewest = min(dpsgd.populations(options, participants))
  units = dpsgd.expected(options, participants)

  def refutes(number: int) -> bool:
    right = _guesses(number)
    return canary.lower_bound(options.delta, number, right, right) > claimed

  sizes = (number for number in SIZES if refutes(number))
  # A whole factor for the population and the units of a step keeps the sampling
  # rate exactly.
  times = -(-next(sizes, SIZES[0]) // fewest)
  return Enlarged(fewest * times, units * times, participants.batch // units)


def scores_of_steps(
  options: dpsgd.Options,
  participants: Participants,
  client: Enlarged,
  included: Bool[np.ndarray, ' m'],
  seed: int,
) -> Float[np.ndarray, ' m']:
  """Scores of canaries after all steps; the seed is of batches and noise."""
  # One image per identity, whose pixels are not used.
  number = client.number
  labels, zeros = np.arange(number, dtype=np.int32), np.zeros(number, np.int32)
  pixels = np.zeros((number, 1, 1, 1), np.uint8)
  only = ClientData('canaries', lambda: pixels, labels, zeros, zeros, number)
  people = participants._replace(
    clients=(only,),
    batch=client.units * client.rows,
    identities=client.units,
  )
  bind = dpsgd.make(options).bind
  assert bind is not None
  # Participants have the fields of config.local that these samplers read.
  planner, _, _ = sampling.make(people, (only,), seed)
  component = bind(people)
  assert component is not None
  run = jax.jit(functools.partial(_noisy_sum, component))
  # The guarantee compares a unit with one whose gradient is zero, so absent
  # canaries are sampled, too.
  push = jnp.asarray(FACTOR * options.clip * included, jnp.float32)
  # Sums over rounds are in float64; the device has only float32.
  total = np.zeros(number)
  key = jax.random.key(seed)
  for round_ in range(people.rounds):
    own = jax.random.fold_in(key, round_)
    plan = planner(round_, 0)
    rows, valid = jnp.asarray(plan.rows), jnp.asarray(plan.valid)
    total += np.asarray(run(push, rows, valid, own), np.float64)
  return total


def _noisy_sum(
  component: Component, push: Array, plan: Array, real: Array, key: Array
) -> Array:
  """The sum by canary `[m]` of the noisy gradients of a round."""
  # `push` is the slope of the loss of each canary, `[m]`, and `plan` the rows
  # of the images of each step, `[S, B]`. Rows that are not `real` are padding.
  assert component.client and component.client.gradient
  gradient = component.client.gradient
  start: Flat = {LEAF: jnp.zeros(len(push))}

  def step(
    total: Array, given: tuple[Array, Array, Array]
  ) -> tuple[Array, None]:
    rows, valid, number = given

    def loss(params: Flat, first: Array, size: int) -> tuple[Array, Metrics]:
      # The gradient of the mean is `push` at the canary, whatever `size` is, as
      # all images of a unit are of one canary.
      own = jax.lax.dynamic_slice_in_dim(rows, first, size)
      return (push[own] * params[LEAF][own]).mean(), {}

    zeros = jnp.zeros_like(rows)
    pixels = jnp.zeros((len(rows), 1, 1, 1))
    batch = Batch(pixels, rows, zeros, zeros, valid)
    ctx = GradientCtx(batch, loss, jax.random.fold_in(key, number))
    noisy, _ = gradient(start, ctx)
    return total + noisy[LEAF], None

  numbers = jnp.arange(len(plan))
  total, _ = jax.lax.scan(step, jnp.zeros(len(push)), (plan, real, numbers))
  return total
