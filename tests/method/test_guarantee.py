"""What a run may claim about privacy."""

import math

import pytest

from fedreid_jax import errors
from fedreid_jax.algorithms import dfh
from fedreid_jax.method import accounting, guarantee
from fedreid_jax.method.accounting import Mechanism, Released
from fedreid_jax.method.component import (
  Component,
  Participants,
  ServerHooks,
  Transport,
)

EVERYONE = Participants((), 0, 1, rounds=10)


def owner(noise=2.0, rate=0.2, unit='client', steps=1):
  def claim(participants):
    del participants

    def mechanisms(rounds):
      return [[Mechanism(noise, rate, steps * rounds)]]

    return guarantee.Claim(mechanisms, 1e-5, 'Gaussian', unit)

  return Component('owner', claim=claim)


def up(state, upload, received, key):
  del received, key
  return state, upload


def update(state, models, ctx):
  del ctx
  return state, models


def of(*components):
  return guarantee.Guarantee(components, EVERYONE)


def test_a_condition_is_said_beside_every_epsilon():
  found = guarantee.Guarantee([owner()], EVERYONE, condition='holds if so')
  assert all('; holds if so' in found.statement(n) for n in (0, 3))


def test_without_a_claim_there_is_none():
  found = of(Component('fedpav'))
  assert found.statement(3) == 'no differential privacy'
  assert found.lines(3) == ['privacy: no differential privacy']
  assert math.isinf(found.epsilon(3)) and found.claim is None
  found.check(['anything'])


@pytest.mark.parametrize('noise', [0.0, 0.001])
@pytest.mark.parametrize('rate', [0.2, 1.0])
def test_without_noise_worth_the_name_there_is_none(noise, rate):
  found = of(owner(noise, rate))
  assert found.statement(3) == 'no differential privacy'


def test_a_claim_is_of_the_rounds_that_are_done():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  found = of(owner(noise=4.0, rate=1.0))
  text = found.statement(20)
  assert text == (
    'epsilon = 4.984 at delta = 1e-05 per client (Gaussian, 20 rounds)'
  )
  assert found.lines(20) == [
    'privacy: epsilon = 4.984 at delta = 1e-05 per client, after 20 rounds',
    '  computed for: Gaussian',
  ]
  assert 0 < found.epsilon(10) < found.epsilon(20)
  assert found.epsilon(0) == 0
  weak = of(owner(noise=0.25, rate=1.0)).statement(1)
  assert weak.endswith('epsilon above 20 gives no meaningful protection')
  attacked = of(
    owner(4.0, 1.0),
    Component(
      'anything',
      transport=Transport(up=up),
      properties=('attacker',),
    ),
  )
  assert 'per honest client' in attacked.statement(1)


def test_every_message_needs_a_claim():
  found = of(owner())
  found.check(['owner'])
  with pytest.raises(errors.ConfigError, match="'dfh' has no bound"):
    found.check(['owner', 'dfh'])


def test_an_undeclared_message_is_refused_in_these_words():
  for unit in ('client', 'identity', 'image'):
    found = of(owner(unit=unit), Component('other'))
    with pytest.raises(errors.ConfigError) as caught:
      found.check(['owner', 'other'])
    assert str(caught.value).endswith(
      "the message of 'other' has no bound and no noise, so that 'owner' "
      "cannot claim a guarantee — components — remove 'other' or 'owner'"
    )


def test_results_on_persons_of_clients_have_no_guarantee():
  judge = ServerHooks(judge=lambda state, metrics, done: state)
  gate = Component('gate', server=judge)
  for parts in ((owner(), gate), (gate, owner())):
    with pytest.raises(errors.ConfigError, match="'gate' judges models"):
      of(*parts)
  assert of(gate).claim is None


def noisy(rounds):
  return [Mechanism(10.0, 1.0, rounds + 1)]


@pytest.mark.parametrize(
  'released, unit, problem',
  [
    (Released(), 'identity', ''),
    (Released(), 'image', ''),
    (Released(), 'client', "'other' has no bound"),
    ('it sends faces', 'image', "'other' has no bound.*: it sends faces"),
    (Released(noisy), 'identity', ''),
    (Released(noisy), 'image', "bound of the message of 'other' is for an ide"),
    (
      Released(noisy),
      'client',
      "bound of the message of 'other' is for an ide",
    ),
  ],
)
def test_messages_that_a_component_declares(released, unit, problem):
  found = of(owner(unit=unit), Component('other', released=released))
  if not problem:
    found.check(['owner', 'other'])
  else:
    with pytest.raises(errors.ConfigError, match=problem):
      found.check(['owner', 'other'])


def test_noise_on_a_message_alone_is_no_guarantee():
  with pytest.raises(
    errors.ConfigError, match="noise of 'other' gives no guar"
  ):
    of(Component('other', released=Released(noisy)))
  of(Component('other', released=Released()))


def test_releases_of_statistics_are_composed_with_the_models():
  """Twenty rounds of ten steps, and 21 releases."""
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  statistics = dfh.make(dfh.Options(clip=1.0, noise=10.0))
  persons = owner(2.0, 1 / 6, 'identity', steps=10)
  assert statistics.released
  alone = statistics.released.mechanisms(20)
  assert alone == [Mechanism(10.0, 1.0, 21)]
  assert accounting.epsilon(alone, 1e-5) == pytest.approx(1.81, abs=5e-3)
  assert of(persons).epsilon(20) == pytest.approx(5.980, abs=2e-3)
  both = of(persons, statistics)
  assert both.epsilon(20) == pytest.approx(6.385, abs=2e-3)
  assert 'per identity in one client' in both.statement(20)
  assert 'dfh: noise 10, before round 0 and every round' in both.statement(20)
  one = accounting.epsilon([Mechanism(10.0, 1.0, 1)], 1e-5)
  assert both.epsilon(0) == pytest.approx(one) and one > 0


@pytest.mark.parametrize(
  'components, message',
  [
    ((owner(), owner()._replace(name='x')), "'owner' and 'x' both claim"),
    (
      (Component('a', server=ServerHooks(update=update)), owner()),
      "'a' changes the model before",
    ),
    (
      (owner(), Component('d', properties=('needs_uploads',))),
      "'d' reads single uploads",
    ),
    (
      (owner(), Component('b', transport=Transport(up=up))),
      "'b' changes uploads after",
    ),
  ],
)
def test_hooks_that_break_a_claim(components, message):
  with pytest.raises(errors.ConfigError, match=message):
    of(*components)


def test_hooks_that_do_not():
  last = Component('b', server=ServerHooks(update=update))
  first = Component('a', transport=Transport(up=up))
  assert of(first, owner(), last).claim
