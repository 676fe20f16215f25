"""Forecast costs of a round against the round itself."""

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.method.component import Component
from fedreid_jax.models import flops
from fedreid_jax.round import ahead, compose

PARTS = 'start', 'training', 'moments', 'data pass', 'uploads'


@pytest.mark.slow
@pytest.mark.parametrize(
  'budget', [0, pytest.param(2000, marks=pytest.mark.slow)]
)
def test_a_round_costs_what_was_forecast(config, clients, budget):
  """Statistics of DFH go up and down beside the model."""
  config = toy.replaced(
    config,
    {
      'components': ('fedpav', 'dfh'),
      'execution.image_budget_mb': budget / 1e6,
    },
  )
  executor, variables, _ = toy.make_rounds(
    config, clients, compose.load(config.components, {}, algorithms)
  )
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  found = ahead.forecast(executor, server, states)
  _, log = executor.round(server, states, 0)
  assert found.sent == {'up': log['up'], 'down': log['down']}
  assert found.sent['up'].keys() == {'model', 'dfh'}
  assert found.images == log['images'] > found.steps > 3
  check_memory(found.memory, server, waves=bool(budget))


def nbytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_memory(memory, server, waves):
  """Compares programs of four clients on one device with what they hold."""
  model = nbytes(server.shared)
  # At least three of each client; a wave has one client.
  images = (1 if waves else 4) * 3 * np.prod(toy.IMAGE_SHAPE)
  added = {'sum of waves'} if waves else set()
  assert memory.keys() == {*PARTS, *added, 'aggregation'}
  if waves:
    # The sums of two waves are given, and those of both take the place of one.
    sums = memory['sum of waves']
    assert sums.arguments > 2 * model > 0
    assert sums.results < sums.arguments / 2
  assert memory['training'].arguments > model + images
  assert memory['training'].temporary > 1000
  # Sums of two integers a parameter reach the server, whose new state takes the
  # place of the old one.
  assert 2 * model < memory['uploads'].results < 4 * model
  assert memory['aggregation'].arguments > 2 * model + nbytes(server)
  assert memory['aggregation'].results < model


@pytest.mark.slow
def test_xla_counts_one_step_whatever_their_number(config, clients):
  """A step has three passes of the network over a batch."""
  components = compose.load(('fedpav',), {}, algorithms)
  counted, expected = [], 0.0
  for steps, batch in ((2, 4), (5, 4), (2, 8)):
    config = toy.replaced(config, {'local.steps': steps, 'local.batch': batch})
    executor, variables, model = toy.make_rounds(config, clients, components)
    found = ahead.forecast(executor, *executor.init(variables))
    counted.append(found.flops)
    expected = 6 * flops.count(model, toy.IMAGE_SHAPE).multiply_adds * batch
  assert counted[0] == counted[1]
  assert 1.5 < counted[2] / counted[0] < 2.5
  assert 0.4 < counted[2] / expected < 2


@pytest.mark.slow
def test_an_empty_first_round_has_a_forecast(config, clients):
  """Poisson sampling may draw nobody, and images may not stay on a device."""
  config = toy.replaced(
    config,
    {
      'cohort': 'poisson',
      'fraction': 0.01,
      'execution.image_budget_mb': 700 / 2**20,
    },
  )
  executor, variables, _ = toy.make_rounds(
    config, clients, compose.load(('fedpav', 'dfh'), {}, algorithms)
  )
  server, store = executor.init(variables)
  assert not executor.cohorts.draw(0).clients.size
  assert not executor.simulated.resident
  assert executor.senders(server) == ['dfh']
  assert ahead.forecast(executor, server, store).images > 0


@pytest.mark.parametrize('gathers', [True, False])
def test_senders_have_messages_also_if_these_are_summed(
  config, clients, gathers
):
  """The server of a round of sums has the sum of SCAFFOLD's messages only."""
  config = toy.replaced(config, {'components': ('fedpav', 'scaffold', 'cdw')})
  made = compose.load(config.components, {}, algorithms)
  reader = Component('reader', properties=('needs_uploads',))
  executor, variables, _ = toy.make_rounds(
    config, clients, (*made, reader) if gathers else made
  )
  assert bool(executor.uploads.gathered) == gathers
  server, store = executor.init(variables)
  assert {*executor.senders(server)} == {'scaffold', 'cdw'}
