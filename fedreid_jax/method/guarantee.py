"""The guarantee of differential privacy of a run, if there is one.

A component may claim that everything that clients send is bounded and has
noise. The claim covers the shared parameters and the messages of that
component. A claim for identities or images also covers functions of the trained
models, and it is composed with the guarantees of other sums with noise; a
component declares both (`Component.released`). A run with any other message
is refused. Numbers of clients, images and steps are public. Metrics of clients,
evaluations and states in checkpoints, which the experimenter of a simulation
sees, are not releases. Epsilon is computed for noise on real numbers: attacks
on the rounding of float32 noise are not covered (docs/privacy.md).
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import secret
from fedreid_jax.core.options import Mark, Range
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import accounting
from fedreid_jax.method.accounting import Mechanism, Released
from fedreid_jax.method.component import (
  Component,
  Participants,
  judges,
  releases,
)

SMALLEST = 0.1  # multiplier of one step below which there is no guarantee
Unit = Literal['client', 'identity', 'image']

# Types of the options that every component with a claim has.
Noise = Annotated[
  float, Range(0), 'standard deviation of the noise over the clip'
]
Epsilon = Annotated[
  float,
  Range(0),
  Mark.PER_RUN,
  'above 0: epsilon after all rounds, which chooses the noise instead',
]
Delta = Annotated[float, Range(1e-300, 0.5), 'delta of the guarantee']


class Draws(NamedTuple):
  """The noise of a claim, for audits that repeat its draws.

  Attributes:
    hook: the hook that draws the noise, with the key of its context:
      'server.update' in every round, or 'client.gradient' in every step of
      every client.
    noise: `(key, parameters) -> noise` of the parameters that have noise, by
      name and in the same shapes. Its scale may be any that is the same in all
      rounds. The parameters are those of the hook. An audit gives the first
      values of each array, `[n]`, whose draws must not depend on `n`.
    clip: largest norm of the contribution of a unit, at first if it adapts.
    rebuild: `(participants, noisy) -> component`, bound to other participants,
      which treats every parameter as one with noise. It has the noise of the
      run, or none. None: no audit replaces units of the run by canaries.
  """

  hook: Literal['server.update', 'client.gradient']
  noise: Callable[[Array, Flat], Flat]
  clip: float = 0.0
  rebuild: Callable[[Participants, bool], Component] | None = None


class Claim(NamedTuple):
  """The guarantee that a component claims for a run.

  Attributes:
    mechanisms: `(rounds) -> mechanisms` to which each kind of unit contributes;
      the kind with the largest epsilon determines the guarantee.
    delta: delta of the guarantee.
    details: description of the mechanism for users.
    unit: what the guarantee protects; an identity or an image is protected
      within one client.
    draws: the noise on parameters, for audits; None if they cannot repeat it,
      as with the discrete noise of a `Summation`.
  """

  mechanisms: Callable[[int], Sequence[Sequence[Mechanism]]]
  delta: float
  details: str
  unit: Unit = 'client'
  draws: Draws | None = None


class Guarantee:
  """The guarantee of the rounds of a method."""

  def __init__(
    self,
    components: Sequence[Component],
    participants: Participants,
    study: bool = False,
    condition: str = '',
  ):
    """Checks the composition and the participants.

    Args:
      study: whether the noise follows from the seed.
      condition: a clause that is said beside every epsilon.

    Raises:
      ConfigError: if two components claim a guarantee, if a hook of another
        component breaks it, or if it cannot hold for these participants.
    """
    owners = [c for c in components if c.claim]
    if len(owners) > 1:
      raise errors.ConfigError(
        f'{owners[0].name!r} and {owners[1].name!r} both claim privacy',
        'components',
        'keep one of them',
      )
    self._owner, self._claim, self._study = '', None, study
    self._condition = condition
    self._honest = any(map(_attacks, components))
    if owners and owners[0].claim:
      # An owner of the gradient adds noise at the clients, before any of the
      # hooks that the check is about. `compose` checks the losses of others.
      if not (owners[0].client and owners[0].client.gradient):
        _check_order(owners[0], components)
      _check_judges(owners[0], components)
      self._owner = owners[0].name
      self._claim = owners[0].claim(participants)
    self._epsilons = functools.cache(self._epsilon)
    self._declared = {c.name: c.released for c in components}
    self._released = _released(components)
    if self._released and self._claim is None:
      name = next(iter(self._released))
      raise errors.ConfigError(
        f'the noise of {name!r} gives no guarantee, because the model that '
        'clients send has none',
        'components',
        f'add noise to gradients (DP-SGD), or set {name}.noise to 0',
      )

  @property
  def claim(self) -> Claim | None:
    """The claim of a component, None without one."""
    return self._claim

  @property
  def owner(self) -> str:
    """The name of the component with the claim, '' without one."""
    return self._owner

  def check(self, senders: Iterable[str]) -> None:
    """Checks that every message of a client has a bound and noise.

    Args:
      senders: names of the components whose clients send messages.

    Raises:
      ConfigError: if a message of another component than the owner is not
        declared for the unit of the claim.
    """
    for name in senders:
      if self._claim is None or name == self._owner:
        continue
      declared = self._declared.get(name, '')
      problem = f'the message of {name!r} has no bound and no noise'
      if name in self._released:
        if self._claim.unit == 'identity':
          continue
        problem = f'the bound of the message of {name!r} is for an identity'
      elif isinstance(declared, Released) and self._claim.unit != 'client':
        continue
      reason = ''
      if declared and isinstance(declared, str):
        reason = f': {declared}'
      raise errors.ConfigError(
        f'{problem}, so that {self._owner!r} cannot claim a guarantee{reason}',
        'components',
        f'remove {name!r} or {self._owner!r}',
      )

  def epsilon(self, rounds: int) -> float:
    """Returns epsilon after some rounds, infinity without a guarantee."""
    return self._epsilons(rounds)

  def _epsilon(self, rounds: int) -> float:
    if self._claim is None:
      return math.inf
    none: list[Sequence[Mechanism]] = [()]
    others = [
      one
      for released in self._released.values()
      for one in released.mechanisms(rounds)
    ]
    kinds = [
      [*kind, *others]
      for kind in (self._claim.mechanisms(rounds) if rounds else none)
    ]
    # The distribution of losses of such noise would not fit into memory.
    if any(_is_negligible(one) for kind in kinds for one in kind):
      return math.inf
    delta = self._claim.delta
    return max(accounting.epsilon(k, delta) if k else 0.0 for k in kinds)

  def statement(self, rounds: int) -> str:
    """Returns the guarantee after some rounds as a sentence for users."""
    text, details, limits = self._parts(rounds)
    if details:
      text += f' ({"; ".join(details)}, {errors.counted(rounds, "round")})'
    return '; '.join((text, *limits))

  def lines(self, rounds: int) -> list[str]:
    """Returns the guarantee after some rounds as lines of a console."""
    text, details, limits = self._parts(rounds)
    if not details:
      return [f'privacy: {text}']
    after = errors.counted(rounds, 'round')
    mechanism, *released = details
    return [
      '; '.join((f'privacy: {text}, after {after}', *limits)),
      f'  computed for: {mechanism}',
      *([f'  {"; ".join(released)}'] if released else []),
    ]

  def _parts(self, rounds: int) -> tuple[str, list[str], list[str]]:
    """Returns the guarantee, its details and what limits it."""
    found = self.epsilon(rounds)
    if self._claim is None or math.isinf(found):
      return accounting.NONE, [], []
    unit = self._claim.unit
    honest = 'honest ' if self._honest else ''
    within = '' if unit == 'client' else ' in one client'
    others = [x.details for x in self._released.values() if x.details]
    return (
      f'{accounting.text(found, self._claim.delta)} per {honest}{unit}{within}',
      [
        part
        for text in (self._claim.details, *others)
        for part in text.split('; ')
      ],
      [
        *([self._condition] if self._condition else []),
        *([accounting.TOO_WEAK] if found > accounting.WEAK else []),
        *([secret.STUDY] if self._study else []),
      ],
    )


def is_protected(components: Iterable[Component]) -> bool:
  """Returns whether nobody may be able to guess the draws of a method.

  This is so if a component claims a guarantee or adds uploads that the server
  does not see.
  """
  return any(c.claim or c.summation for c in components)


def refuse_at_sites(components: Sequence[Component]) -> None:
  """Refuses components that add noise for a guarantee, at real sites.

  Raises:
    ConfigError: if there is such a component; the message names the first.
  """
  released = _released(components)
  for name in (*(c.name for c in components if c.claim), *released):
    other = f', or set {name}.noise to 0' if name in released else ''
    raise errors.ConfigError(
      f'no guarantee of {name!r} at real sites: its noise follows from the '
      'seed, which every site has, so that each could remove it',
      'components',
      f'remove {name!r}{other}',
    )


def _released(components: Sequence[Component]) -> dict[str, Released]:
  """Returns the messages that are released with noise, by component."""
  # Noise of 0 gives no mechanism, for any number of rounds.
  declared = {c.name: releases(c) for c in components}
  return {n: x for n, x in declared.items() if x and x.mechanisms(1)}


def _attacks(component: Component) -> bool:
  # Attackers do not weaken the guarantee of honest clients.
  return 'attacker' in component.properties


def _is_negligible(mechanism: Mechanism) -> bool:
  """Returns whether the epsilon of a mechanism gives no protection at all."""
  # n sums to which a unit always contributes are as private as one sum with
  # the multiplier z / sqrt(n).
  repeated = mechanism.steps if mechanism.rate == 1 else 1
  return mechanism.noise < SMALLEST * math.sqrt(repeated)


def _check_judges(owner: Component, components: Sequence[Component]) -> None:
  """Refuses results on persons of the clients that change the model."""
  for component in filter(judges, components):
    raise errors.ConfigError(
      f'{component.name!r} judges models on held-out persons without noise, so '
      f'that {owner.name!r} cannot claim a guarantee',
      'components',
      f'remove {component.name!r} or {owner.name!r}',
    )


def _check_order(owner: Component, components: Sequence[Component]) -> None:
  """Refuses hooks that read or change values without the owner's noise."""
  place = [c.name for c in components].index(owner.name)
  for component in components:
    if 'needs_uploads' in component.properties and not _attacks(component):
      raise errors.ConfigError(
        f'{component.name!r} reads single uploads, but {owner.name!r} adds its '
        'noise to their sum',
        'components',
        f'remove {component.name!r} or {owner.name!r}',
      )
  for component in components[:place]:
    if component.server and component.server.update:
      raise errors.ConfigError(
        f'{component.name!r} changes the model before {owner.name!r} has added '
        'its noise',
        'components',
        f'put {owner.name!r} before it',
      )
  # Attackers may change uploads, because the guarantee covers honest clients.
  for component in components[place + 1 :]:
    transport = component.transport
    if _attacks(component) or transport is None:
      continue
    if transport.up:
      raise errors.ConfigError(
        f'{component.name!r} changes uploads after {owner.name!r} has bounded '
        'them',
        'components',
        f'put {owner.name!r} after it',
      )
