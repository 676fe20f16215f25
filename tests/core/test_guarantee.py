"""What a run may claim about privacy."""

import math

import pytest

from fedreid_jax import errors
from fedreid_jax.core import guarantee
from fedreid_jax.core.accounting import Mechanism
from fedreid_jax.core.component import (
  Component,
  ComponentInfo,
  Participants,
  ServerHooks,
  Transport,
)

EVERYONE = Participants((), 0, 1, rounds=10)


def owner(noise=2.0, rate=0.2):
  def claim(participants):
    del participants

    def mechanisms(rounds):
      return [[Mechanism(noise, rate, rounds)]]

    return guarantee.Claim(mechanisms, 1e-5, 'Gaussian')

  return Component('owner', info=ComponentInfo(claim=claim))


def up(upload, received, key):
  del received, key
  return upload


def update(state, models, ctx):
  del ctx
  return state, models


def of(*components):
  return guarantee.Guarantee(components, EVERYONE)


def test_without_a_claim_there_is_none():
  found = of(Component('fedpav'))
  assert found.statement(3) == 'no differential privacy'
  assert math.isinf(found.epsilon(3)) and not found.claimed
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
    'epsilon = 4.983 at delta = 1e-05 per client (Gaussian, 20 rounds)'
  )
  assert 0 < found.epsilon(10) < found.epsilon(20)
  assert found.epsilon(0) == 0
  weak = of(owner(noise=0.25, rate=1.0)).statement(1)
  assert weak.endswith('epsilon above 20 gives no meaningful protection')
  attacked = of(
    owner(4.0, 1.0), Component('byzantine', transport=Transport(up=up))
  )
  assert 'per honest client' in attacked.statement(1)


def test_every_message_needs_a_claim():
  found = of(owner())
  found.check(['owner'])
  with pytest.raises(errors.ConfigError, match="'dfh' has no bound"):
    found.check(['owner', 'dfh'])


@pytest.mark.parametrize(
  'components, message',
  [
    ((owner(), owner()._replace(name='x')), "'owner' and 'x' both claim"),
    (
      (Component('a', server=ServerHooks(update=update)), owner()),
      "'a' changes the model before",
    ),
    (
      (owner(), Component('b', transport=Transport(up=up))),
      "'b' changes uploads after",
    ),
    (
      (
        owner(),
        Component('c', transport=Transport(up_with=lambda *x: x)),
      ),
      "'c' changes uploads after",
    ),
  ],
)
def test_hooks_that_break_a_claim(components, message):
  with pytest.raises(errors.ConfigError, match=message):
    of(*components)


def test_hooks_that_do_not():
  last = Component('b', server=ServerHooks(update=update))
  first = Component('a', transport=Transport(up=up))
  assert of(first, owner(), last).claimed
