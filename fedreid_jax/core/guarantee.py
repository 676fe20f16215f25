"""The guarantee of differential privacy of a run, or that there is none.

A component may claim that all that clients send is bounded and has noise. The
claim covers the shared parameters and the messages of that component. The
message of any other component would leave without noise, so that a run with
one is refused. Numbers of clients, images and steps are public. What the
experimenter of a simulation sees beside that (metrics of clients, evaluations,
states in checkpoints) is no release.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import accounting
from fedreid_jax.core.accounting import Mechanism
from fedreid_jax.core.component import Component, Participants

SMALLEST = 0.1  # noise of one step below which there is no guarantee
SECRET = (
  'the noise of the simulation follows from the seed; anyone who knows the '
  'seed can remove it'
)
NO_EFFECT = ('byzantine',)  # attackers do not weaken that of honest clients


class Claim(NamedTuple):
  """What a component claims for a run.

  Attributes:
    mechanisms: `(rounds) -> mechanisms` that each kind of unit takes part in;
      the guarantee is that of the kind with the largest epsilon.
    delta: of the guarantee.
    details: of the mechanism, for users.
    unit: what the guarantee protects.
  """

  mechanisms: Callable[[int], Sequence[Sequence[Mechanism]]]
  delta: float
  details: str
  unit: str = 'client'


class Guarantee:
  """The guarantee of the rounds of a method, per client."""

  def __init__(
    self, components: Sequence[Component], participants: Participants
  ):
    """Checks the composition and the participants.

    Raises:
      ConfigError: if two components claim a guarantee, if a hook of another one
        breaks it, or if it cannot hold for these participants.
    """
    owners = [c for c in components if c.info.claim]
    if len(owners) > 1:
      raise errors.ConfigError(
        f'{owners[0].name!r} and {owners[1].name!r} both claim privacy',
        'components',
        'keep one of them',
      )
    self._owner, self._claim = '', None
    self._honest = any(c.name in NO_EFFECT for c in components)
    if owners and owners[0].info.claim:
      if not (owners[0].client and owners[0].client.gradient):
        _check_order(owners[0], components)
      self._owner = owners[0].name
      self._claim = owners[0].info.claim(participants)

  @property
  def claimed(self) -> bool:
    """Whether a component claims a guarantee."""
    return self._claim is not None

  def check(self, senders: Iterable[str]) -> None:
    """Checks that nothing leaves a client without a bound and noise.

    Args:
      senders: names of the components whose clients send messages.

    Raises:
      ConfigError: for a message of another component than the owner.
    """
    for name in senders:
      if self.claimed and name != self._owner:
        raise errors.ConfigError(
          f'the message of {name!r} has no bound and no noise, so that '
          f'{self._owner!r} cannot claim a guarantee',
          'components',
          f'remove {name!r} or {self._owner!r}',
        )

  @functools.cache  # noqa: B019 - a run has one guarantee
  def epsilon(self, rounds: int) -> float:
    """Returns epsilon after some rounds, infinite without a guarantee."""
    if self._claim is None:
      return math.inf
    if rounds == 0:
      return 0.0
    kinds = self._claim.mechanisms(rounds)
    if any(_is_negligible(one) for kind in kinds for one in kind):
      return math.inf
    return max(accounting.epsilon(kind, self._claim.delta) for kind in kinds)

  def statement(self, rounds: int) -> str:
    """Returns the sentence for users after some rounds."""
    found = self.epsilon(rounds)
    if self._claim is None or math.isinf(found):
      return accounting.NONE
    honest = 'honest ' if self._honest else ''
    text = (
      f'epsilon = {found:.4g} at delta = {self._claim.delta:g} per '
      f'{honest}{self._claim.unit} ({self._claim.details}, {rounds} rounds)'
    )
    if found > accounting.WEAK:
      text += f'; {accounting.TOO_WEAK}'
    return text


def _is_negligible(mechanism: Mechanism) -> bool:
  """Returns whether epsilon is far above any protection.

  Its distribution of losses would not fit into memory.
  """
  repeated = mechanism.steps if mechanism.rate == 1 else 1
  return mechanism.noise < SMALLEST * math.sqrt(repeated)


def _check_order(owner: Component, components: Sequence[Component]) -> None:
  """Refuses hooks that would see or change what the owner has not bounded."""
  place = [c.name for c in components].index(owner.name)
  for component in components[:place]:
    if component.server and component.server.update:
      raise errors.ConfigError(
        f'{component.name!r} changes the model before {owner.name!r} has added '
        'its noise',
        'components',
        f'put {owner.name!r} before it',
      )
  for component in components[place + 1 :]:
    transport = component.transport
    if component.name in NO_EFFECT or transport is None:
      continue
    if transport.up or transport.up_with:
      raise errors.ConfigError(
        f'{component.name!r} changes uploads after {owner.name!r} has bounded '
        'them',
        'components',
        f'put {owner.name!r} after it',
      )
