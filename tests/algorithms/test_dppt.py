import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.data import sampling
from fedreid_jax.round import compose


@pytest.fixture
def clients():
  """Three clients in one label space of five; the last lacks two of them."""
  full = [toy.toy_client(name, 12, 3) for name in ('ash', 'birch')]
  last = toy.toy_client('cedar', 12, 2)
  last = last._replace(labels=last.labels + 3)
  return tuple(c._replace(num_identities=5) for c in (*full, last))


def components(**arguments):
  return compose.load(('fedavg', 'dppt'), {'dppt': arguments}, algorithms)


def run(config, clients, rounds=1, **arguments):
  executor, variables, _ = toy.make_executor(
    config, clients, components(**arguments)
  )
  return toy.run(executor, variables, rounds)


def fedavg(config, clients, rounds):
  executor, variables, _ = toy.make_executor(
    config, clients, compose.load(('fedavg',), {}, algorithms)
  )
  return toy.run(executor, variables, rounds)[0]


def still(config):
  """Nothing is learnt and images are as they are: features can be told."""
  config.optim.lr = 0.0
  config.augment.pad, config.augment.flip = 0, 0.0
  return config


def features(config, clients, model, variables):
  """Lists of the features of every client's round, by identity."""
  planner, _, _ = sampling.make(config.local, clients, config.seed)
  kept = []
  for k, client in enumerate(clients):
    images = (client.images().astype(np.float32) / 255 - 0.5) / 0.25
    own: dict[int, list] = {}
    for rows in planner(0, k).rows:
      outputs, _ = model.apply(variables, images[rows], train=True)
      for z, label in zip(outputs.embedding, client.labels[rows], strict=True):
        own.setdefault(int(label), []).append(np.asarray(z))
    kept.append(own)
  return kept


@pytest.mark.parametrize(
  'norm, k, absent',
  [(True, 2, 'skip'), (False, 100, 'skip'), (False, 5, 'zeros')],
)
def test_the_server_has_the_mean_of_clients_centres(
  config, clients, norm, k, absent
):
  """The released idea with lists: mean, K nearest, mean over clients.

  No identity is at all three clients.
  """
  executor, variables, model = toy.make_executor(
    still(config), clients, components(norm=norm, k=k, absent=absent)
  )
  server, _, _ = toy.run(executor, variables, 1)
  centres: dict[int, list] = {}
  for own in features(config, clients, model, variables):
    for label, members in own.items():
      z = np.array(members)
      if norm:
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
      away = np.linalg.norm(z - z.mean(axis=0), axis=1)
      centres.setdefault(label, []).append(z[np.argsort(away)[:k]].mean(axis=0))
  found = server.states['dppt']
  assert found.present.all()
  for label in range(5):
    assert len(centres[label]) < 3
    num = 3 if absent == 'zeros' else len(centres[label])
    np.testing.assert_allclose(
      found.features[label], np.sum(centres[label], axis=0) / num, atol=1e-4
    )


@pytest.mark.slow  # equal bits, see conftest.py
def test_the_first_round_is_that_of_fedavg(config, clients):
  server, _, logs = run(config, clients)
  toy.assert_equal_trees(server.shared, fedavg(config, clients, 1).shared)
  assert logs[0]['metrics']['dppt_rectification'] == 0
  assert logs[0]['metrics']['dppt_known'] == 0


@pytest.mark.slow
def test_later_rounds_pull_features_to_the_centres(config, clients):
  server, _, logs = run(config, clients, 2, loss='edu', norm=False)
  assert logs[1]['metrics']['dppt_rectification'] > 0
  assert logs[1]['metrics']['dppt_known'] == 1
  name = 'params/backbone/conv1/kernel'
  assert (server.shared[name] != fedavg(config, clients, 2).shared[name]).any()
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(server.shared))


def test_an_identity_nobody_brings_keeps_its_centre(config, clients):
  config.fraction = 0.3
  executor, variables, _ = toy.make_executor(config, clients, components())
  server, states = executor.init(variables)
  known = np.zeros(5, bool)
  for round_ in range(4):
    before = jax.device_get(server.states['dppt'])
    server, log = executor.round(server, states, round_)
    after = jax.device_get(server.states['dppt'])
    brought = np.zeros(5, bool)
    for k in log['clients']:
      brought[clients[k].labels] = True
    known |= brought
    assert (after.present == known).all()
    changed = (after.features != before.features).any(axis=1)
    assert (changed == brought).all()


@pytest.mark.slow
def test_centres_of_zeros(config, clients):
  """The angle is then a constant 1: nothing but the metric differs."""
  server, _, logs = run(config, clients, 2, target='zeros')
  assert not server.states['dppt'].features.any()
  assert logs[1]['metrics']['dppt_rectification'] == 1
  toy.assert_close_trees(server.shared, fedavg(config, clients, 2).shared, 1e-6)


def test_centres_are_counted_as_traffic(config, clients):
  _, _, logs = run(config, clients)
  centres = 5 * 8 * 4 + 5  # five vectors of eight float32, five flags
  assert logs[0]['up']['dppt'] == logs[0]['down']['dppt'] == 3 * centres


def test_clients_of_different_label_spaces_are_refused(config, clients):
  other = clients[1]._replace(num_identities=6)
  with pytest.raises(errors.DataError, match='client birch'):
    toy.make_executor(
      config,
      (clients[0], other),
      compose.load(('fedpav', 'dppt'), {}, algorithms),
    )


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'loss': 'cosine'}, 'loss'),
    ({'target': 'local'}, 'target'),
    ({'absent': 'mean'}, 'absent'),
    ({'lam': -1.0}, 'lam'),
    ({'k': 0}, 'out of range.*dppt.k'),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    components(**arguments)
