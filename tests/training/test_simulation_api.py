"""The public simulation is the engine of the commands."""

from pathlib import Path

import jax
import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.algorithms import fedpav, fedprox
from fedreid_jax.method import optimizers
from fedreid_jax.models import convnet, reid

FIELDS = {
  'local.batch': 4,
  'local.data_pass_batch': 4,
  'augment.pad': 1,
  'augment.flip': 0.0,
}


def network(identities):
  return reid.ReIDNet(convnet.ConvNet((4, 8)), identities)


def simulation(clients, components=None, **options):
  options = {'fields': FIELDS, 'mean': (0.5,), 'std': (0.25,)} | options
  return fr.Simulation(
    network, components or [fedpav.make()], clients, **options
  )


@pytest.fixture(scope='module')
def made(clients):
  return simulation(clients[::-1])


def test_rounds_are_those_of_the_engine(made, config, clients):
  config = toy.replaced(config, {'augment.flip': 0.0})
  executor, variables, _ = toy.make_rounds(config, clients, (fedpav.make(),))
  expected, kept, _ = toy.run(executor, variables, 2)
  state = made.init(jax.random.key(config.seed))
  for _ in range(2):
    state, log = made.round(state)
  assert state.round == 2 and len(log['clients']) == len(clients)
  toy.assert_close_trees(
    jax.device_get(state.server.shared), expected.shared, 1e-6
  )
  toy.assert_close_trees(state.clients.stacked().personal, kept.personal, 1e-6)


def test_the_runner_of_the_page_runs_the_clients(made, clients):
  page = (Path(__file__).parents[2] / 'docs/extend.md').read_text()
  code = page.split('`mine/timed.py`')[1].split('```python\n')[1]
  names, runners = {}, []
  exec(code.partition('```')[0], names)

  def runner(inner):
    runners.append(names['Timed'](inner))
    return runners[0]

  timed = simulation(clients[::-1], runner=runner)
  found, expected = (
    one.round(one.init(jax.random.key(0)))[0] for one in (timed, made)
  )
  toy.assert_equal_trees(found.server.shared, expected.server.shared)
  assert len(runners[0].seconds) == 1 and runners[0].seconds[0] > 0


def test_a_state_of_the_clients_is_not_changed(made, clients):
  first = made.init(jax.random.key(0))
  before = jax.tree.map(np.copy, first.clients.stacked())
  second, _ = made.round(first)
  toy.assert_equal_trees(first.clients.stacked(), before)
  assert first.clients.written() == []
  assert second.clients.written() == [*range(len(clients))]


def test_clients_are_in_canonical_order_and_models_have_names(made, clients):
  assert made.names == tuple(c.name for c in clients)
  models = made.models(made.init(jax.random.key(0)))
  assert [*models] == ['global']
  images = np.zeros((2, *toy.IMAGE_SHAPE), np.float32)
  assert made.embed(models['global'], images).shape == (2, 8)


@pytest.mark.slow
def test_the_optimizer_replaces_that_of_the_fields(clients):
  still = optimizers.sgd(0.0, False, 0.0, (('params/', 0.0),))
  made = simulation(clients, optimizer=still)
  state = made.init(jax.random.key(0))
  start = jax.device_get(state.server.shared)
  state, _ = made.round(state)
  params = {n: x for n, x in start.items() if n.startswith('params/')}
  for name, leaf in params.items():
    np.testing.assert_allclose(state.server.shared[name], leaf, atol=1e-6)


def test_mistakes(clients):
  with pytest.raises(errors.DataError, match='2 clients with 1 name'):
    simulation((clients[0], clients[0]))
  large = fr.client_data('large', np.zeros((1, 9, 9, 1), np.uint8), [0])
  with pytest.raises(errors.DataError, match='images of shapes'):
    simulation((clients[0], large))
  with pytest.raises(errors.ConfigError, match='did you mean optim.lr'):
    simulation(clients, fields={'optim.learning_rate': 1.0})
  with pytest.raises(errors.ConfigError, match='no component selects'):
    simulation(clients, [fedprox.make()])
  images = np.zeros((3, 8, 8, 1), np.uint8)
  for wrong in (
    dict(images=images.astype(float), labels=[0, 1, 2]),
    dict(images=images, labels=[0, 1]),
    dict(images=images, labels=[0, 1, -1]),
    dict(images=images, labels=[0, 1, 2], cameras=[0]),
    dict(images=images[0], labels=[0]),
    dict(images=images, labels=[0, 1, 2], num_identities=2),
  ):
    with pytest.raises(errors.DataError, match='client a'):
      fr.client_data('a', **wrong)
