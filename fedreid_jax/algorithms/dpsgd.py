"""DP-SGD: differential privacy of every identity in a client.

Abadi et al., Deep learning with differential privacy, CCS 2016, with an
identity in place of an example. In every step each of the J identities of a
client is in S with probability q = P / J, independently. With l_j, the mean
loss of K images of identity j, and g_j, its gradient with respect to all
trained parameters together, including the private classifier,

  g = (sum_{j in S} g_j min(1, C / |g_j|) + N(0, (z C)^2 I)) / P.

Steps without identities add noise as well. A g_j that is not finite is zero.
Weight decay, momentum and Adam come after the noise. At most 2 P identities
take part in a step, a random subset of those drawn, which the guarantee
accounts for.

The guarantee covers the models and messages that a client sends, and
everything computed from them; docs/privacy.md lists the exceptions. Epsilon
holds for noise on real numbers: the noise is float32 on float32 sums, to which
attacks on floating-point numbers apply. The guarantee needs losses of one
identity each (no triplets) and a normalisation that does not mix images
(`model.norm`). Neighbouring data sets differ in whether the contribution of one
identity in one client is zero; splits that give the images of a person to
several clients are refused (`data.client_split`). With `unit=image` the unit is
one image, which does not protect a person with several images. `epsilon`
chooses z for all rounds of the run and the client with the fewest units.

Deviations from the paper: an identity, not an example, is the unit; steps have
a limited number of places (arXiv:2508.15089); the accounting is by privacy loss
distributions. Deviations from released code: none.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NoReturn, cast

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.core import patterns, trees
from fedreid_jax.core.options import Checked, Mark, Range, Regex
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.method import accounting, poisson
from fedreid_jax.method.accounting import Mechanism
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  Participants,
)
from fedreid_jax.method.contexts import Gradient, GradientCtx
from fedreid_jax.method.guarantee import Claim, Delta, Draws, Epsilon, Noise
from fedreid_jax.method.poisson import Unit
from fedreid_jax.method.rules import DIVIDE_PERSONS, Given, Rule, is_private

NAME = 'dpsgd'
SAMPLERS = {'identity': 'poisson_pk', 'image': 'poisson'}


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DP-SGD."""

  unit: Annotated[
    Unit,
    'what is protected: all images of an identity in a client, or one image',
  ] = 'identity'
  noise: Noise = 1.0
  epsilon: Epsilon = 0.0
  delta: Delta = 1e-5
  clip: Annotated[
    float, Range(1e-9), 'largest norm of the gradient of a unit'
  ] = 1.0
  microbatch: Annotated[
    int, Range(1), 'units whose gradients are computed at a time, for memory'
  ] = 1
  trainable: Annotated[
    str,
    Regex(),
    Mark.PRETRAINED,
    'regular expression of the trained parameters; empty for all',
  ] = ''


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  c, identity = given.config, given.options.unit == 'identity'
  yield (
    identity and c.data.client_split in DIVIDE_PERSONS,
    'data.client_split',
    f'with {c.data.client_split!r} a person is at several clients, but epsilon '
    'is that of a person in one client',
    "set it to 'by_identity', 'by_dataset' or 'centralised'",
  )
  yield (
    identity and bool(c.data.poison),
    'data.poison',
    'labels of poisoned images are not those of persons, but epsilon is that '
    'of a person',
    "set it to ''",
  )
  yield (
    c.model.norm == 'batch',
    'model.norm',
    'batch normalisation mixes the images of several persons',
    "set it to 'frozen' with model.pretrained, or to 'group'",
  )
  for field in ('triplet', 'circle', 'weighted_triplet'):
    yield (
      getattr(c.loss, field) > 0,
      f'loss.{field}',
      f'{given.name} cannot bound a loss of pairs, no function of one person',
      'set it to 0.0',
    )
  yield (
    c.local.accumulate,
    'local.accumulate',
    f'{given.name} adds noise to every step',
    'set it to False',
  )
  yield from is_private(given)


def make(options: Options = Options()) -> Component:
  """Builds the component; the clients of a run determine its noise."""
  return Component(
    NAME,
    client=ClientHooks(gradient=_unbound),
    conflicts=('unaccounted_noise',),
    bind=functools.partial(_bound, options),
    claim=_unbound,
  )


def _bound(options: Options, participants: Participants) -> Component:
  _check(options, participants)
  noise = noise_of(options, participants)
  return make(options)._replace(
    client=ClientHooks(gradient=_gradient(options, participants, noise)),
    bind=None,
    claim=functools.partial(_claim, options, noise),
    notice=_notice(options, participants),
  )


def _notice(options: Options, participants: Participants) -> str:
  fewest = min(poisson.populations(options.unit, participants))
  drawn = poisson.expected(options.unit, participants)
  return '; '.join(poisson.hidden_by_few(fewest, drawn, options.unit))


def _unbound(*arguments: Any) -> NoReturn:
  del arguments
  raise errors.InternalError(
    'dpsgd has no noise before it knows the clients', NAME, errors.REPORT
  )


def noise_of(options: Options, participants: Participants) -> float:
  """Returns z, the largest noise that a client of the run needs."""
  if not options.epsilon:
    return options.noise
  units = poisson.expected(options.unit, participants)
  steps = participants.steps * participants.rounds
  # The guarantee with z includes the messages of other components.
  others = _others(options, participants)
  found = 0.0
  # Small clients first: they need the most noise, and a search is expensive, so
  # others are only checked against the noise found so far.
  for population in sorted({*poisson.populations(options.unit, participants)}):

    def released(z: float, population: int = population) -> list[Mechanism]:
      return [*poisson.mechanisms(z, population, units, steps), *others]

    if found:
      reached = accounting.epsilon(released(found), options.delta)
      if reached <= options.epsilon:
        continue
    found = accounting.multiplier(released, options.epsilon, options.delta)
  return found


def _others(options: Options, participants: Participants) -> list[Mechanism]:
  """The noisy sums of other components, which must leave some epsilon."""
  found = [
    one
    for released in participants.released
    for one in released.mechanisms(participants.rounds)
  ]
  spent = accounting.epsilon(found, options.delta) if found else 0.0
  if spent >= options.epsilon:
    raise errors.ConfigError(
      f'messages with noise take epsilon {accounting.above(spent)} alone, but '
      f'all is {accounting.exact(options.epsilon)}',
      f'{NAME}.epsilon',
      'raise it, or the noise of the messages (dfh.noise)',
    )
  return found


def _gradient(
  options: Options, participants: Participants, noise: float
) -> Gradient:
  units = poisson.expected(options.unit, participants)
  rows = participants.batch // units

  def gradient(params: Flat, ctx: GradientCtx) -> tuple[Flat, Metrics]:
    trained = {name: params[name] for name in names_of_trained(params, options)}

    def of_unit(place: Array) -> tuple[Flat, Metrics]:
      def loss(own: Flat) -> tuple[Array, Metrics]:
        return ctx.loss(params | own, place * rows, rows)

      grads, metrics = jax.grad(loss, has_aux=True)(trained)
      bounded, _ = privacy.clipped(cast(Flat, grads), jnp.float32(options.clip))
      return bounded, metrics

    # The rows of one unit are together in a batch.
    used = ctx.batch.valid.reshape(-1, rows).any(axis=1)
    total, metrics = summed(of_unit, used, options.microbatch)
    # Also in a step without units, which would otherwise be recognised.
    noisy = privacy.gaussian(ctx.key, total, noise * options.clip)
    count = jnp.maximum(used.sum(), 1)
    means = {name: x / count for name, x in metrics.items()}
    # A fixed divisor, because the number of units in a step is private.
    return {name: x / units for name, x in noisy.items()}, means

  return gradient


def names_of_trained(params: Iterable[str], options: Options) -> list[str]:
  """The sorted names of the parameters that are trained.

  Raises:
    ConfigError: if there are none.
  """
  names = sorted(params)
  field = f'{NAME}.trainable'
  matches = patterns.Pattern(options.trainable or '.*', field).match
  if trained := [name for name in names if matches(name)]:
    return trained
  raise errors.ConfigError(
    f'no parameter has a name like {options.trainable!r}',
    field,
    f'names are {", ".join(names[:3])}, ...',
  )


def summed(
  of_unit: Callable[[Array], Any], used: Array, microbatch: int
) -> Any:
  """The sum of the trees `of_unit(place)` over the used places.

  `microbatch` is the number of places whose trees are in memory at a time.
  """
  last = used.shape[0] - 1
  shapes = jax.eval_shape(of_unit, jnp.int32(0))

  def zero(like: jax.ShapeDtypeStruct) -> Array:
    return jnp.zeros(like.shape, like.dtype)

  def group(i: Array, total: Any) -> Any:
    # The last group may be beyond the places; its excess repeats the last place
    # and is masked.
    places = i * microbatch + jnp.arange(microbatch, dtype=jnp.int32)
    inside = jnp.minimum(places, last)
    real = used[inside] & (places <= last)
    if microbatch == 1:  # without the grouped convolutions of a vmap
      each = trees.rows(of_unit(inside[0]), None)
    else:
      each = jax.vmap(of_unit)(inside)

    def add(old: Array, new: Array) -> Array:
      mask = real.reshape(-1, *(1,) * (new.ndim - 1))
      # An empty place may have values that are not finite, and 0 * nan is nan.
      return old + jnp.where(mask, new, 0).sum(axis=0)

    return jax.tree.map(add, total, each)

  # Places are filled from the front, so empty groups at the end are skipped.
  ends = jnp.where(used, jnp.arange(used.shape[0]) + 1, 0).max()
  groups = (ends + microbatch - 1) // microbatch
  return jax.lax.fori_loop(0, groups, group, jax.tree.map(zero, shapes))


def _check(options: Options, participants: Participants) -> None:
  """Refuses a run whose units are not sampled independently."""
  sampler = SAMPLERS[options.unit]
  if participants.sampler != sampler:
    raise errors.ConfigError(
      f'{participants.sampler!r} does not sample each {options.unit} '
      'independently',
      'local.sampler',
      f'set it to {sampler!r}',
    )
  if not participants.steps:
    raise errors.ConfigError(
      'the number of steps depends on the images of a client',
      'local.steps',
      'set it above 0',
    )
  units = poisson.expected(options.unit, participants)
  fewest = min(poisson.populations(options.unit, participants))
  if fewest < units:
    field = 'identities' if options.unit == 'identity' else 'batch'
    raise errors.ConfigError(
      f'{errors.counted(units, "unit")} in a step on average, but a client has '
      f'{fewest}',
      f'local.{field}',
      f'give at most {fewest}',
    )


def _claim(options: Options, noise: float, participants: Participants) -> Claim:
  units = poisson.expected(options.unit, participants)
  numbers = poisson.populations(options.unit, participants)
  largest = 1 / (10 * sum(numbers))
  if options.delta > largest:
    raise errors.ConfigError(
      f'{accounting.exact(options.delta)} is above 1 / (10 x '
      f'{errors.counted(sum(numbers), "unit")})',
      f'{NAME}.delta',
      f'give at most {accounting.below(largest)}',
    )

  def released(rounds: int) -> list[list[Mechanism]]:
    steps = participants.steps * rounds
    kinds = [
      poisson.mechanisms(noise, n, units, steps) for n in sorted({*numbers})
    ]
    # Without a limit of places, epsilon grows with the sampling rate, so that
    # the smallest of these clients stands for all of them.
    free = [kind for kind in kinds if not kind[0].places]
    return free[:1] + [kind for kind in kinds if kind[0].places]

  return Claim(
    released,
    options.delta,
    'the largest of all clients, zero-out, PLD, noise '
    f'{accounting.exact(noise)}, sampling rate at most '
    f'{accounting.above(units / min(numbers))}, '
    f'{errors.counted(participants.steps, "step")} a round, at most '
    f'{poisson.places(units)} in a step; released: every model; '
    'public: numbers of images, identities and steps',
    options.unit,
    _draws(options, noise),
  )


def _draws(options: Options, noise: float) -> Draws:
  def drawn(key: Array, params: Flat) -> Flat:
    trained = names_of_trained(params, options)
    return privacy.normals(key, {name: params[name] for name in trained})

  def rebuild(participants: Participants, noisy: bool) -> Component:
    everywhere = dataclasses.replace(
      options, noise=noise if noisy else 0.0, epsilon=0.0, trainable=''
    )
    return _bound(everywhere, participants)

  return Draws('client.gradient', drawn, options.clip, rebuild)
