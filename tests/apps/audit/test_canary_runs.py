"""Canaries in the steps of DP-SGD."""

import numpy as np
import pytest

from fedreid_jax.algorithms import dpsgd
from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.apps.audit import canary, canary_runs
from fedreid_jax.method import accounting, poisson
from fedreid_jax.method.component import Participants
from fedreid_jax.training import contract

NOISE = 2.0
CLAIMED = 3.08  # epsilon of `participants` at delta 1e-5


def participants(**fields):
  """Two clients of 40 and 20 identities, half of the latter in a step."""
  people = tuple(contract.toy_client(f'c{k}', 2 * k, k) for k in (40, 20))
  given = Participants(
    people, 0, 2, rounds=2, steps=8,
    sampler='poisson_pk', batch=10, identities=5,
  )  # fmt: skip
  return given._replace(**fields)


def attacked(people, **options):
  """The mechanism that `people` are promised."""
  made = dpsgd.make(dpsgd.Options(**options)).bind(people)
  return canary_runs.of_claim(made.name, made.claim(people))


def audit(claimed):
  people = participants()
  own = attacked(people, noise=NOISE, clip=0.5)
  canaries = canary_runs.of_steps(own, people, claimed)
  return canary.audit(canaries, claimed)


def test_the_component_keeps_its_claim():
  found = audit(CLAIMED)
  assert found.failed == () and found.refuted == ''
  assert 0 < found.bound.epsilon <= CLAIMED < found.largest
  assert found.positive.right == found.positive.guesses == 872
  assert found.positive.epsilon == found.largest and found.negative == 0


@pytest.mark.slow
def test_the_claim_of_these_tests_is_that_of_the_accounting():
  """More canaries at the same rate are more private, since few are left out."""
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')

  def epsilon(population, units):
    made = poisson.mechanisms(NOISE, population, units, 16)
    return accounting.epsilon(made, 1e-5)

  assert epsilon(20, 5) == pytest.approx(CLAIMED, abs=0.01)
  assert epsilon(1000, 250) < epsilon(20, 5)


def test_a_missing_noise_line_is_caught(monkeypatch):
  monkeypatch.setattr(privacy, 'gaussian', lambda key, total, scale: total)
  found = audit(CLAIMED)
  assert found.failed == () and 'the run claims 3.08' in found.refuted


def test_a_missing_clip_is_caught(monkeypatch):
  monkeypatch.setattr(privacy, 'clipped', lambda grads, bound: (grads, bound))
  found = audit(CLAIMED)
  assert found.failed == () and 'the run claims 3.08' in found.refuted


def test_a_sampler_that_draws_too_often_is_caught(monkeypatch):
  """All identities are in every step, under the claim of one of twenty."""
  people = participants(identities=1, batch=2, steps=4)
  monkeypatch.setattr(poisson, 'rate', lambda expected, population: 1.0)
  monkeypatch.setattr(poisson, 'places', lambda expected: 20 * expected)
  own = attacked(people, noise=1.5)
  canaries = canary_runs.of_steps(own, people, 1.0)
  assert 'the run claims 1' in canary.audit(canaries, 1.0).refuted


@pytest.mark.parametrize('unit', ['identity', 'image'])
def test_the_scores_are_those_of_the_mechanism(unit):
  """Over T steps with rate q an included canary moves by q T C / P."""
  people = participants(rounds=3, steps=2)
  if unit == 'image':
    people = people._replace(sampler='poisson')
  own = attacked(people, unit=unit, noise=NOISE, clip=0.5)
  client = canary_runs.enlarged(own, people, 1.0)
  assert client == ((1000, 250, 2) if unit == 'identity' else (1000, 250, 1))
  included = np.arange(1000) < 500
  found = client.units * canary_runs.scores_of_steps(
    own, people, True, client, included, 0
  )
  noise = NOISE * 0.5 * 6**0.5
  assert found[:500].mean() == pytest.approx(0.25 * 6 * 0.5, abs=0.4)
  assert found[500:].mean() == pytest.approx(0, abs=0.4)
  assert found[500:].std() == pytest.approx(noise, rel=0.15)
  times = (client.units / 0.5) * canary_runs.scores_of_steps(
    own, people, False, client, included, 0
  )
  np.testing.assert_allclose(times, np.round(times), atol=1e-3)
  assert times[:500].mean() == pytest.approx(1.5, abs=0.2)
  assert times[:500].max() > 2.9 and not times[500:].any()


def test_there_are_as_many_canaries_as_the_claim_needs():
  people = participants()
  own = attacked(people)
  numbers = [
    canary_runs.enlarged(own, people, claimed).number
    for claimed in (1.0, 6.0, 6.5, 7.999, 20.0, np.inf)
  ]
  assert numbers == [1000, 2000, 4000, 16000, 1000, 1000]
  few = people._replace(clients=(contract.toy_client('c', 42, 21),))
  assert canary_runs.enlarged(own, few, 1.0)[:2] == (1008, 240)
