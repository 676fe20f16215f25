"""DP-FedAvg: differential privacy for every client.

McMahan et al., Learning differentially private recurrent language models, ICLR
2018. With D_k = w_k - w^t of the trainable shared parameters, one norm over all
of them, each of N clients in the round with probability q,

  D'_k = D_k min(1, C / |D_k|),
  w^{t+1} = w^t + (sum_{k in S} a_k D'_k + N(0, (z C)^2 I)) / (q A)

with A = sum_{k=1}^N a_k and a_k = 1, or a_k = min(n_k / n_max, 1) if `n_max` is
given. q A is the expected sum of the weights in a round. A client sends
w^t + D'_k, rounded towards w^t, so that its change is within C for weights of
every size. Every round has noise, also one without clients. A D_k that is not
finite is sent as zero; the client keeps the state from before the round.

With `adaptive`, C follows the norms (Andrew et al., Differentially private
learning with adaptive clipping, NeurIPS 2021): clients also send
b_k - 1/2, b_k = 1 if |D_k| <= C, and

  b = 1/2 + (sum_k (b_k - 1/2) + N(0, s^2)) / (q N),  s = q N / 20,
  C <- C exp(-rate (b - quantile)).

Both sums together have the privacy loss of the noise z if the noise on the
parameters is (z^-2 - (2 s)^-2)^(-1/2) C.

The unit is one client, and neighbouring federations differ in whether its
contribution is zero. `epsilon` chooses z for all rounds of the run. Cohorts of
a fixed size K have q = K / N and a weaker guarantee than those of Poisson
sampling (`cohort=poisson`): the epsilon of replacing a client by another, which
moves a sum by up to 2C, or, if it is smaller, the epsilon of all clients in
every round.

Running statistics and the moments of `evaluation.batch_stats` would leave the
clients without noise, so that batch normalisation is refused (`model.norm`).

With secure aggregation (`secagg`) the noise covers C plus the norm of the
rounding to integers, and sampling does not lower epsilon: the clients of a
round know each other, and an aborted round reveals their number. The noise is
then a discrete Gaussian on the integer sum (Canonne, Kamath and Steinke, The
discrete Gaussian for differential privacy, NeurIPS 2020), accounted by its
Renyi divergence, which is at most that of the Gaussian one. Without `secagg` it
is float32 noise on float32 sums, to which attacks on floating-point numbers
apply (Mironov, On significance of the least significant bits for differential
privacy, CCS 2012).

Deviations from the papers: none. Deviations from released code: TensorFlow
Federated divides by the number of clients that took part if it is asked to.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Range, is_default
from fedreid_jax.core.types import Array, Broadcast, Flat, Upload
from fedreid_jax.method import accounting
from fedreid_jax.method.accounting import Mechanism
from fedreid_jax.method.component import (
  Component,
  Participants,
  ServerHooks,
  Transport,
)
from fedreid_jax.method.contexts import (
  AggregationCtx,
  ReceiveCtx,
  ServerInitCtx,
  UploadCtx,
)
from fedreid_jax.method.guarantee import Claim, Delta, Draws, Epsilon, Noise
from fedreid_jax.method.rules import Given, Rule, is_private
from fedreid_jax.method.sums import (
  HEADROOM,
  Divisor,
  MessageSum,
  Sum,
  by_count,
)

NAME = 'dp_fedavg'
# Above the relative error of a norm in float32: the exact noise on integers has
# to cover an update whose norm was rounded down before it was clipped.
SLACK = 1e-3
EVERYONE = (
  'every client takes part in every round (sampling rate 1), so that sampling '
  'does not lower epsilon'
)
# Above it a change may be out of the range of the fixed-point sums
# (`HEADROOM`), and a client that is left out would be seen.
LARGEST = 2.0**HEADROOM
BITS = 20.0  # expected clients of a round over the noise on the sum of bits
# Numbers of the uses of the key of a round.
PARAMETERS, NORMS = 0, 1


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DP-FedAvg."""

  noise: Noise = 1.0
  epsilon: Epsilon = 0.0
  delta: Delta = 1e-5
  clip: Annotated[
    float, Range(1e-9), 'largest norm of an update, at first if adaptive'
  ] = 0.1
  adaptive: Annotated[
    bool, 'let the clip follow a quantile of the norms of the updates'
  ] = False
  quantile: Annotated[
    float, Range(0.001, 0.999), 'adaptive: fraction of updates below the clip'
  ] = 0.5
  rate: Annotated[
    float, Range(0), 'adaptive: learning rate of the logarithm of the clip'
  ] = 0.2
  n_max: Annotated[
    int,
    Range(0),
    'images at which the weight of a client is full; 0 gives equal weights',
  ] = 0
  min_clients: Annotated[
    int, Range(1), 'fewest clients of a run with a guarantee'
  ] = 100


class Scale(NamedTuple):
  """The quantities that depend on the clients of a run.

  `rounding` is the largest norm of the difference between an update and its
  integers in secure aggregation; None without it.
  """

  noise: float  # z
  weight: float  # expected sum of a_k in a round
  clients: float  # expected number in a round
  rounding: float | None = None

  @property
  def bits(self) -> float:
    """The standard deviation of the noise on the sum of bits."""
    return self.clients / BITS

  def on_update(self, adaptive: bool) -> float:
    """The noise on the sum of updates, over the clip.

    Raises:
      ConfigError: for too few clients to measure norms with this noise.
    """
    if not (adaptive and self.noise):
      return self.noise
    # Inverse squares of noise over sensitivity add up. A bit b - 1/2 has the
    # sensitivity 1/2, so its noise counts as 2 s.
    rest = self.noise**-2 - (2 * self.bits) ** -2
    if rest <= 0:
      raise errors.ConfigError(
        f'a round has {self.clients:g} clients on average, too few to measure '
        f'their norms with a noise of {self.noise:g}',
        'dp_fedavg.adaptive',
        'set it to False',
      )
    return rest**-0.5


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  c = given.config
  yield (
    c.evaluation.batch_stats in ('source', 'modality'),
    'evaluation.batch_stats',
    "moments of the clients' images would leave them without noise",
    "set it to 'running', and model.norm to 'group' or 'frozen'",
  )
  yield (
    c.model.norm == 'batch',
    'model.norm',
    'running statistics would leave the clients without noise, and without '
    'them the tested model has none',
    "set it to 'frozen' with model.pretrained, or to 'group'",
  )
  yield (
    c.batch_stats_rule != 'keep_server',
    'batch_stats_rule',
    'running statistics would leave the clients without noise',
    "set it to 'keep_server'",
  )
  yield (
    c.execution.deterministic and given.options.clip > LARGEST,
    f'{given.name}.clip',
    f'sums in fixed point have a range of {LARGEST:g}',
    'lower it, or set execution.deterministic to False',
  )
  sums = [other for other in given.others if other.summation]
  yield (
    c.fraction < 1
    and not sums  # clients who know each other: sampling does not count
    and not is_default(c.availability),
    'availability',
    'who is available breaks the random sampling of a guarantee',
    'keep its defaults, or set fraction to 1.0',
  )
  full = given.options.n_max
  for other in sums:
    counted = other.summation.largest if other.summation else full
    yield (
      counted < full,
      f'{other.name}.n_max',
      f'{given.name} gives a full weight to {full} images only, and '
      f'{other.name} counts at most {counted:g}',
      f'set it to 0 or to {given.name}.n_max',
    )
  yield from is_private(given)


def make(options: Options = Options()) -> Component:
  """Builds the component; the clients of a run determine its scale."""

  unbound = _component(options, Scale(0.0, 1.0, 1.0))
  return unbound._replace(bind=functools.partial(_bound, options))


def _bound(options: Options, participants: Participants) -> Component:
  made = _component(options, scale_of(options, participants))
  if participants.rounding is not None or _rate(participants) < 1:
    return made
  return made._replace(notice=EVERYONE)


def scale_of(options: Options, participants: Participants) -> Scale:
  """The scale for the clients and the rounds of a run."""
  shares = [
    min(client.num_images / options.n_max, 1.0) if options.n_max else 1.0
    for client in participants.clients
  ]
  noise = options.noise
  if options.epsilon:
    noise = accounting.multiplier(
      lambda z: mechanisms(z, participants, participants.rounds),
      options.epsilon,
      options.delta,
    )
  rate = _rate(participants)
  return Scale(
    noise, rate * sum(shares), rate * len(shares), participants.rounding
  )


def _rate(participants: Participants) -> float:
  """The expected share of the clients in a round."""
  if participants.poisson:
    return participants.fraction
  return participants.cohort / len(participants.clients)


def mechanisms(
  noise: float, participants: Participants, rounds: int
) -> list[Mechanism]:
  """The noisy sums to which a client contributes."""
  number, places = len(participants.clients), participants.cohort
  rate = _rate(participants)
  if participants.rounding is not None:
    # Without the sampling rate: the clients of a round know each other.
    return [Mechanism(noise, 1.0, rounds, discrete=True)]
  if rate < 1 and places < number:
    fixed = not participants.poisson
    return [Mechanism(noise, rate, rounds, number, places, fixed)]
  return [Mechanism(noise, rate, rounds)]


def _component(options: Options, scale: Scale) -> Component:
  adaptive, noise = options.adaptive, scale.on_update(options.adaptive)

  def up(
    state: Any, upload: Upload, received: Broadcast, key: Array
  ) -> tuple[Any, Upload]:
    del key
    bound = received.messages[NAME] if adaptive else jnp.float32(options.clip)
    return state, _bounded(upload, received, bound, adaptive)

  def share(num_examples: Array) -> Array:
    if not options.n_max:
      return jnp.ones_like(num_examples)
    return jnp.minimum(num_examples / options.n_max, 1.0)

  def weight(message: Any, ctx: UploadCtx) -> Array:
    del message
    return share(ctx.num_examples)

  def expected(found: dict[str, Array]) -> float:
    del found
    # The number of clients in a round is private.
    return scale.weight

  def init(ctx: ServerInitCtx) -> tuple[Array, Array]:
    del ctx
    return jnp.float32(options.clip), jnp.float32(0.0)

  def update(
    state: tuple[Array, Array], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[Array, Array], Flat]:
    clip, bits = state
    in_sums = scale.rounding is not None  # a `Summation` added the noise
    if not in_sums:
      key = jax.random.fold_in(ctx.key, PARAMETERS)
      models = privacy.gaussian(key, models, noise * clip / scale.weight)
    if adaptive:
      if scale.noise and not in_sums:
        bits += scale.bits * jax.random.normal(
          jax.random.fold_in(ctx.key, NORMS)
        )
      below = 0.5 + bits / scale.clients
      moved = clip * jnp.exp(-options.rate * (below - options.quantile))
      moved = jnp.minimum(moved, max(options.clip, LARGEST))
      # An aborted round has no bits. Without a `Summation` the clip moves also
      # in a round without clients, because their number is private.
      clip = jnp.where(ctx.members.any(), moved, clip) if in_sums else moved
    return (clip, jnp.float32(0.0)), models

  def noise_of_sum(state: tuple[Array, Array]) -> Array:
    return noise * (state[0] * (1 + SLACK) + (scale.rounding or 0.0))

  def noise_of_bits(state: tuple[Array, Array]) -> Array:
    del state
    return jnp.float32(scale.bits)

  def claim(participants: Participants) -> Claim:
    return _claim(options, scale, participants)

  bit = MessageSum(
    _bit, _receive, by_count, 0.5, noise_of_bits if scale.noise else None
  )
  return Component(
    NAME,
    transport=Transport(up=up),
    aggregation=Sum(
      weight,
      by_count,
      # The sum of the weights of a round is private.
      Divisor(_no_numbers, {}, expected),
      noise=noise_of_sum if scale.noise else None,
    ),
    server=ServerHooks(
      init=init,
      receive=bit if adaptive else None,
      update=update,
      message=_own_clip if adaptive else None,
    ),
    conflicts=('clustering', 'unaccounted_noise'),
    claim=claim,
  )


def _bounded(
  upload: Upload, received: Broadcast, bound: Array, adaptive: bool
) -> Upload:
  """The upload with a clipped update and without running statistics."""
  start = received.shared
  params, _ = trees.trainable(upload.shared)
  changes = {n: x - start[n] for n, x in params.items()}
  # Changes that are not finite become zero and count as an upload, because a
  # lost one would reveal who took part.
  lost = ~(upload.finite & privacy.usable(changes))
  changes, below = privacy.clipped(changes, bound)
  sent = privacy.moved(start, changes)
  own = {NAME: below.astype(jnp.float32) - 0.5} if adaptive else {}
  return dataclasses.replace(
    upload,
    shared={**start, **sent},
    finite=jnp.ones_like(upload.finite),
    messages={**upload.messages, **own},
    lost=lost,
  )


def _no_numbers(message: Any, ctx: UploadCtx) -> dict[str, Any]:
  del message, ctx
  return {}


def _bit(
  state: tuple[Array, Array], message: Array, ctx: ReceiveCtx
) -> tuple[Array, Array]:
  del state, ctx
  return jnp.float32(1.0), message


def _receive(
  state: tuple[Array, Array], total: Array, valid: Array, ctx: ReceiveCtx
) -> tuple[Array, Array]:
  del valid, ctx
  return state[0], total


def _own_clip(state: tuple[Array, Array]) -> Array:
  return state[0]


def _claim(options: Options, scale: Scale, participants: Participants) -> Claim:
  number = len(participants.clients)
  if number < options.min_clients:
    raise errors.ConfigError(
      f'{errors.counted(number, "client")} {"is" if number == 1 else "are"} '
      f'too few to hide one among them, dp_fedavg needs {options.min_clients}',
      'dp_fedavg.min_clients',
      "use more clients, or 'dpsgd', which hides a person of a client; with "
      'fewer clients the noise is larger than their updates',
    )
  largest = 1 / (10 * number)
  if options.delta > largest:
    raise errors.ConfigError(
      f'{accounting.exact(options.delta)} is above 1 / (10 x '
      f'{errors.counted(number, "client")})',
      'dp_fedavg.delta',
      f'give at most {accounting.below(largest)}',
    )

  def released(rounds: int) -> list[list[Mechanism]]:
    return [mechanisms(scale.noise, participants, rounds)]

  return Claim(
    released,
    options.delta,
    _details(scale, participants),
    # A `Summation` adds discrete noise, by a generator of its own.
    draws=_draws(options, scale) if scale.rounding is None else None,
  )


def _draws(options: Options, scale: Scale) -> Draws:
  def drawn(key: Array, params: Flat) -> Flat:
    return privacy.normals(jax.random.fold_in(key, PARAMETERS), params)

  def rebuild(participants: Participants, noisy: bool) -> Component:
    noise = scale.noise if noisy else 0.0
    chosen = dataclasses.replace(options, noise=noise, epsilon=0.0)
    return _bound(chosen, participants)

  return Draws('server.update', drawn, options.clip, rebuild)


def _details(scale: Scale, participants: Participants) -> str:
  number, places = len(participants.clients), participants.cohort
  (one,) = mechanisms(scale.noise, participants, 1)
  kind = 'zero-out, PLD'
  if one.discrete:
    kind = 'zero-out, RDP of discrete Gaussian noise'
  if one.fixed:
    kind = 'zero-out, the smaller of RDP and of PLD with all clients'
  if scale.rounding is not None:
    sampled = (
      f'sensitivity clip + {accounting.above(scale.rounding)} by the rounding '
      'of integers, sampling not counted because the clients of a round know '
      'each other'
    )
  elif one.fixed:
    sampled = f'{places} of {number} clients in every round'
  else:
    sampled = f'sampling rate {accounting.exact(one.rate)}'
    if places < number:
      sampled += f', at most {places} clients in a round'
  return (
    f'{kind}, noise {accounting.exact(scale.noise)}, {sampled}; released: '
    'every model; public: numbers of clients, images, identities and steps'
  )
