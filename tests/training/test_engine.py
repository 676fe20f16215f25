"""Timetables of the recipes that simulate time."""

from types import SimpleNamespace

import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.config import recipes, validation
from fedreid_jax.method.component import Component
from fedreid_jax.method.guarantee import Claim
from fedreid_jax.round import cohort, compose
from fedreid_jax.training import build, engine

DAY_S = 86400.0


def rounds_of(recipe, seed=0):
  """Returns the 20 rounds of 40 clients of one step and a model of 1 MB."""
  config = validation.validate(recipes.recipe(recipe, f'synthetic,seed={seed}'))
  clients = [SimpleNamespace(name=f'{k:02d}') for k in range(40)]
  planner = cohort.Planner(lambda *_: None, lambda _: 1)
  table = engine.make_timetable(config, clients, planner, 1_000_000, 0, None)
  return [table.round(number) for number in range(config.rounds)]


def test_clients_take_part_at_certain_hours():
  rounds = rounds_of('availability')
  assert rounds[-1].end > DAY_S  # so that each hour of the day occurs
  sizes = {len(found.clients) for found in rounds}
  assert max(sizes) <= 20 and len(sizes) > 3
  there = [{*map(int, found.clients)} for found in rounds]

  def together(hours):
    """Mean number of clients that two rounds so far apart have in common."""
    apart = int(hours // 2)
    pairs = zip(there, there[apart:], strict=False)
    return sum(len(a & b) for a, b in pairs) / (len(there) - apart)

  assert together(2) > 2 * together(12) < together(24)


def test_stragglers_are_late_and_rounds_end_at_the_deadline():
  rounds = rounds_of('stragglers')
  assert all(len(r.clients) + len(r.late) == 13 for r in rounds)
  lasted = [r.end - r.start for r in rounds]
  for found, seconds in zip(rounds, lasted, strict=True):
    whole = len(found.clients) == 10
    assert seconds <= 10 if whole else seconds == pytest.approx(10)
  assert 0 < sum(len(found.clients) == 10 for found in rounds) < len(rounds)


@pytest.mark.parametrize('recipe', ['availability', 'stragglers'])
def test_the_seed_decides(recipe):
  def cohorts(seed):
    return [found.clients.tolist() for found in rounds_of(recipe, seed)]

  assert cohorts(1) == cohorts(1) != cohorts(2)


def test_a_claim_is_of_the_participants_that_were_bound(
  config, clients, monkeypatch
):
  seen = []

  def claim(people):
    seen.append(people)
    return Claim(lambda rounds: [[]], 0.1, '')

  spy = Component('spy', bind=seen.append, claim=claim)
  parts = compose.load(('fedpav', 'secagg'), {}, algorithms)
  monkeypatch.setattr(build, 'load_components', lambda _: (*parts, spy))
  config = toy.replaced(config, {'privacy.secret': 'seed'})
  setup = build.assemble(config, toy.toy_federation(clients))
  assert len(seen) == 2 and seen[0] == seen[1] == setup.participants
  assert seen[0].rounding > 0 and seen[0].released == ()
