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
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedreid_jax import errors
from fedreid_jax.apps.audit import canary, claimed
from fedreid_jax.apps.audit.canary import Audited, Canaries
from fedreid_jax.config.configuration import Config
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
from fedreid_jax.method import poisson
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.contexts import (
  AggregationCtx,
  GradientCtx,
  ReceiveCtx,
  ServerInitCtx,
)
from fedreid_jax.method.guarantee import Claim, Unit
from fedreid_jax.method.sums import MessageSum
from fedreid_jax.round import cohort
from fedreid_jax.round.server import fold
from fedreid_jax.round.server.arithmetic import Float32

LEAF = 'params/canaries'
FACTOR = 1e3  # of the clip
LARGEST = 2.0**31  # images of a client, whose weight is then the largest
FEWEST = 50  # clients as canaries
SIZES = 1000, 2000, 4000, 8000, 16000  # numbers of canaries in one client


def of_run(config: Config, federation: Federation, seed: int = 0) -> Audited:
  """Audits the guarantee of a run.

  Raises:
    ConfigError: for a run without a guarantee, whose component gives no
      `Draws.rebuild`, or with too few clients.
  """
  found = claimed.of_run(config, federation)
  epsilon = found.guarantee.epsilon(config.rounds)
  attacked = of_claim(found.owner, found.claim)
  if found.draws.hook == 'client.gradient':
    canaries = of_steps(attacked, found.participants, epsilon)
  else:
    canaries = of_rounds(attacked, found.participants)
  return canary.audit(canaries, epsilon, seed)


class Attacked(NamedTuple):
  """The mechanism of a claim, to which canaries contribute."""

  rebuild: Callable[[Participants, bool], Component]  # of `Draws`
  clip: float
  delta: float
  unit: Unit


def of_claim(owner: str, claim: Claim) -> Attacked:
  """Returns the mechanism of the claim of a component.

  Raises:
    ConfigError: if the component gives no `Draws.rebuild`.
  """
  draws = claim.draws
  if draws is None or draws.rebuild is None:
    raise errors.ConfigError(
      f'there are no canaries for the guarantee of {owner!r}',
      '--attack',
      'give a run of a component whose claim has `draws.rebuild`',
    )
  return Attacked(draws.rebuild, draws.clip, claim.delta, claim.unit)


def of_rounds(attacked: Attacked, participants: Participants) -> Canaries:
  """Replaces clients by canaries, or raises ConfigError for fewer than 50."""
  number = len(participants.clients)
  if number < FEWEST:
    raise errors.ConfigError(
      f'{errors.counted(number, "client")}, fewer than {FEWEST} canaries',
      'clients',
      'audit a run with more clients',
    )
  everyone = participants._replace(
    cohort=number, fraction=1.0, poisson=False, rounds=1
  )
  return Canaries(
    number,
    2 * (number // 4),
    attacked.delta,
    functools.partial(scores_of_rounds, attacked, participants, True),
    functools.partial(scores_of_rounds, attacked, everyone, False),
  )


def scores_of_rounds(
  attacked: Attacked,
  participants: Participants,
  noisy: bool,
  included: Bool[np.ndarray, ' m'],
  seed: int,
) -> Float[np.ndarray, ' m']:
  """Scores of clients after all rounds; the seed is of cohorts and noise."""
  component = attacked.rebuild(participants, noisy)
  server, number = component.server, len(included)
  assert server is not None and server.init is not None
  state = server.init(_context(ServerInitCtx, num_clients=number))
  model: Flat = {LEAF: jnp.zeros(number)}
  step = jax.jit(functools.partial(_round, component, attacked.clip))
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
  clip: float,
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
    push = FACTOR * clip * takes_part
    upload = Upload(
      index=index,
      shared={LEAF: model[LEAF].at[index].add(push)},
      num_examples=jnp.float32(LARGEST),
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
  attacked: Attacked, participants: Participants, epsilon: float
) -> Canaries:
  """The canaries of a run of DP-SGD, as many as `epsilon` requires."""
  client = enlarged(attacked, participants, epsilon)
  everyone = client._replace(units=client.number)
  once = participants._replace(steps=1, rounds=1)
  return Canaries(
    client.number,
    _guesses(client.number),
    attacked.delta,
    functools.partial(scores_of_steps, attacked, participants, True, client),
    functools.partial(scores_of_steps, attacked, once, False, everyone),
  )


def _guesses(number: int) -> int:
  """The largest r for which all guesses can be right."""
  # At least r / 2 canaries take part and at least r / 2 do not, with a
  # probability of 0.9999: the number that takes part has the standard deviation
  # sqrt(m) / 2, of which four are subtracted from the mean.
  return 2 * int(number / 2 - 2 * number**0.5)


def enlarged(
  attacked: Attacked, participants: Participants, epsilon: float
) -> Enlarged:
  """A client of enough canaries, with the sampling rate of the run.

  If even the largest number of canaries without noise cannot refute `epsilon`,
  there are as few as possible.
  """
  # The claim of the run is the epsilon of the client with the fewest units.
  fewest = min(poisson.populations(attacked.unit, participants))
  units = poisson.expected(attacked.unit, participants)

  def refutes(number: int) -> bool:
    right = _guesses(number)
    return canary.lower_bound(attacked.delta, number, right, right) > epsilon

  sizes = (number for number in SIZES if refutes(number))
  # A whole factor for the population and the units of a step keeps the sampling
  # rate exactly.
  times = -(-next(sizes, SIZES[0]) // fewest)
  return Enlarged(fewest * times, units * times, participants.batch // units)


def scores_of_steps(
  attacked: Attacked,
  participants: Participants,
  noisy: bool,
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
  local = replace(
    sampling.Local(),
    sampler=people.sampler,
    batch=people.batch,
    identities=people.identities,
    steps=people.steps,
  )
  planner, _, _ = sampling.make(local, (only,), seed)
  component = attacked.rebuild(people, noisy)
  run = jax.jit(functools.partial(_noisy_sum, component))
  # The guarantee compares a unit with one whose gradient is zero, so absent
  # canaries are sampled, too.
  push = jnp.asarray(FACTOR * attacked.clip * included, jnp.float32)
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
