"""Steps of DP-SGD with canaries as the identities or images of a client.

Each canary has a coordinate of the model as its direction. A canary that takes
part has a gradient of a thousand times the clip in this direction. A canary
that does not has the gradient zero. The sampler of the run draws the canaries
of each step, and the gradient function of the component clips, sums and adds
the noise in every step of every round. The auditor sees all noisy sums. The
score of a canary is the sum over steps of the noisy gradient in its direction.

The canaries replace the units of the client with the fewest units, enlarged by
a whole factor (`enlarged`).
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedreid_jax.algorithms import dpsgd
from fedreid_jax.apps.audit.canary import canary_bound
from fedreid_jax.apps.audit.canary.canaries import Canaries
from fedreid_jax.core.types import Array, Batch, ClientData, Flat, Metrics
from fedreid_jax.data import sampling
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.contexts import GradientCtx

LEAF = 'params/canaries'
FACTOR = 1e3  # of the clip
SIZES = 1000, 2000, 4000, 8000, 16000  # numbers of canaries


class Enlarged(NamedTuple):
  """The client of the canaries.

  Attributes:
    number: of canaries, `m`.
    units: canaries of a step on average.
    rows: images of a canary in a step.
  """

  number: int
  units: int
  rows: int


def of(
  options: dpsgd.Options, participants: Participants, claimed: float
) -> Canaries:
  """Returns the canaries of a run.

  Args:
    options: of the component.
    participants: of the run.
    claimed: epsilon of the run, which determines the number of canaries.
  """
  client = enlarged(options, participants, claimed)
  # The component chooses the noise for the clients of the run.
  noise = dpsgd.noise_of(options, participants)
  own = dataclasses.replace(options, noise=noise, epsilon=0.0, trainable='')
  silent = dataclasses.replace(own, noise=0.0)
  everyone = client._replace(units=client.number)
  once = participants._replace(steps=1, rounds=1)
  return Canaries(
    client.number,
    guesses(client.number),
    options.delta,
    functools.partial(scores, own, participants, client),
    functools.partial(scores, silent, once, everyone),
  )


def guesses(number: int) -> int:
  """Returns the number of canaries that are guessed.

  It is the largest number r for which, with a probability of 0.9999, at least
  r / 2 canaries take part and at least r / 2 do not, so that all guesses can be
  right.

  Args:
    number: of canaries, `m`.
  """
  # The number that takes part has the standard deviation sqrt(m) / 2, of which
  # four are subtracted from the mean.
  return 2 * int(number / 2 - 2 * number**0.5)


def enlarged(
  options: dpsgd.Options, participants: Participants, claimed: float
) -> Enlarged:
  """Returns a client of enough canaries, with the sampling rate of the run.

  Args:
    options: of the component.
    participants: of the run.
    claimed: epsilon of the run. If even the largest number of canaries without
      noise cannot refute it, there are as few as possible.
  """
  # The claim of the run is the epsilon of the client with the fewest units.
  fewest = min(dpsgd.populations(options, participants))
  units = dpsgd.expected(options, participants)

  def refutes(number: int) -> bool:
    right = guesses(number)
    largest = canary_bound.lower_bound(options.delta, number, right, right)
    return largest > claimed

  sizes = (number for number in SIZES if refutes(number))
  # A whole factor for the population and the units of a step keeps the sampling
  # rate exactly.
  times = -(-next(sizes, SIZES[0]) // fewest)
  return Enlarged(fewest * times, units * times, participants.batch // units)


def scores(
  options: dpsgd.Options,
  participants: Participants,
  client: Enlarged,
  included: Bool[np.ndarray, ' m'],
  seed: int,
) -> Float[np.ndarray, ' m']:
  """Returns the score of each canary after all steps.

  Args:
    options: of the component, with its noise.
    participants: of the run; their sampler, steps and rounds are used.
    client: its canaries.
    included: whether each canary takes part.
    seed: of batches and noise.
  """
  named = _client(client.number)
  people = participants._replace(
    clients=(named,),
    batch=client.units * client.rows,
    identities=client.units,
  )
  bind = dpsgd.make(options).info.bind
  assert bind is not None
  # Participants have the fields of config.local that these samplers read.
  planner, _, _ = sampling.make(people, (named,), seed)
  run = jax.jit(functools.partial(_round, bind(people)))
  # The guarantee compares a unit with one whose gradient is zero, so absent
  # canaries are sampled, too.
  push = jnp.asarray(FACTOR * options.clip * included, jnp.float32)
  # Sums over rounds are in float64; the device has only float32.
  found = np.zeros(client.number)
  key = jax.random.key(seed)
  for round_ in range(people.rounds):
    own = jax.random.fold_in(key, round_)
    plan = planner(round_, 0)
    rows, valid = jnp.asarray(plan.rows), jnp.asarray(plan.valid)
    found += np.asarray(run(push, rows, valid, own), np.float64)
  return found


def _client(number: int) -> ClientData:
  """Returns a client with one image per identity, whose pixels are not used."""
  labels, zeros = np.arange(number, dtype=np.int32), np.zeros(number, np.int32)
  pixels = np.zeros((number, 1, 1, 1), np.uint8)
  return ClientData('canaries', lambda: pixels, labels, zeros, zeros, number)


def _round(
  component: Component, push: Array, plan: Array, real: Array, key: Array
) -> Array:
  """Returns the sum of the noisy gradients of the steps of a round.

  Args:
    component: bound to the client of the canaries.
    push: slope of the loss of each canary, `[m]`.
    plan: rows of the images of each step, int32 `[S, B]`.
    real: whether each row is real and not padding, bool `[S, B]`.
    key: of the noise of the round.

  Returns:
    Sum by canary, `[m]`.
  """
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
