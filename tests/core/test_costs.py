"""Forecast costs of a round against the round itself."""

import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import compose
from fedreid_jax.models import flops


@pytest.mark.parametrize(
  'budget', [0, pytest.param(2000, marks=pytest.mark.slow)]
)
def test_a_round_costs_what_was_forecast(config, clients, budget):
  """Statistics of DFH go up and down beside the model."""
  config.components = ('fedpav', 'dfh')
  config.execution.image_budget_mb = budget / 1e6
  executor, variables, _ = toy.make_executor(
    config, clients, compose.load(config.components, {}, algorithms)
  )
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  found = executor.forecast(server, states)
  _, log = executor.round(server, states, 0)
  assert found.sent == {'up': log['up'], 'down': log['down']}
  assert found.sent['up'].keys() == {'model', 'dfh'}
  assert found.images == log['images'] > found.steps > 3
  assert found.temporary and found.arguments and found.temporary > 1000


@pytest.mark.slow
def test_xla_counts_one_step_whatever_their_number(config, clients):
  """A step has three passes of the network over a batch."""
  components = compose.load(('fedpav',), {}, algorithms)
  counted, expected = [], 0.0
  for steps, batch in ((2, 4), (5, 4), (2, 8)):
    config.local.steps, config.local.batch = steps, batch
    executor, variables, model = toy.make_executor(config, clients, components)
    found = executor.forecast(*executor.init(variables))
    counted.append(found.flops)
    expected = 6 * flops.count(model, toy.IMAGE_SHAPE).multiply_adds * batch
  assert counted[0] == counted[1]
  assert 1.5 < counted[2] / counted[0] < 2.5
  assert 0.4 < counted[2] / expected < 2
