import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import dppt
from fedreid_jax.data import sampling
from fedreid_jax.method.contexts import ReceiveCtx
from fedreid_jax.round import compose


def people():
  """Three clients in one label space of five; the last lacks two of them."""
  full = [toy.toy_client(name, 12, 3) for name in ('ash', 'birch')]
  last = toy.toy_client('cedar', 12, 2)
  last = last._replace(labels=last.labels + 3)
  return tuple(c._replace(num_identities=5) for c in (*full, last))


@pytest.fixture
def clients():
  return people()


def components(**arguments):
  return compose.load(('fedavg', 'dppt'), {'dppt': arguments}, algorithms)


def still(config):
  """Nothing is learnt and images are as they are: features can be told."""
  config = toy.replaced(
    config, {'optim.lr': 0.0, 'augment.pad': 0, 'augment.flip': 0.0}
  )
  return config


def features(config, clients, model, variables):
  """Lists of the features of every client's round, by identity."""
  planner, _, _ = sampling.make(config.local, clients, config.seed)
  kept = []
  train = jax.jit(functools.partial(model.apply, train=True))
  for k, client in enumerate(clients):
    images = (client.images().astype(np.float32) / 255 - 0.5) / 0.25
    own: dict[int, list] = {}
    for rows in planner(0, k).rows:
      outputs, _ = train(variables, images[rows])
      for z, label in zip(outputs.embedding, client.labels[rows], strict=True):
        own.setdefault(int(label), []).append(np.asarray(z))
    kept.append(own)
  return kept


@pytest.mark.slow
@pytest.mark.parametrize(
  'norm, k, absent',
  [(True, 2, 'skip'), (False, 100, 'zeros')],
)
def test_the_server_has_the_mean_of_clients_centres(
  config, clients, norm, k, absent
):
  """The released idea with lists: mean, K nearest, mean over clients.

  No identity is at all three clients.
  """
  executor, variables, model = toy.make_rounds(
    still(config), clients, components(norm=norm, k=k, absent=absent)
  )
  server, _, (log,) = toy.run(executor, variables, 1)
  traffic = 5 * 8 * 4 + 5  # five vectors of eight float32, five flags
  assert log['up']['dppt'] == log['down']['dppt'] == 3 * traffic
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


@pytest.fixture(scope='module')
def fedavg():
  """Shared parameters after one round and after two without DPPT."""
  executor, variables, _ = toy.make_rounds(
    toy.toy_config(), people(), compose.load(('fedavg',), {}, algorithms)
  )
  return [toy.run(executor, variables, num)[0].shared for num in (1, 2)]


@pytest.mark.slow  # equal bits, see conftest.py
def test_only_later_rounds_pull_features_to_the_centres(
  config, clients, fedavg
):
  executor, variables, _ = toy.make_rounds(
    config, clients, components(loss='edu', norm=False)
  )
  server, _, logs = toy.run(executor, variables, 1)
  toy.assert_equal_trees(server.shared, fedavg[0])
  assert logs[0]['metrics']['dppt_rectification'] == 0
  assert logs[0]['metrics']['dppt_known'] == 0
  server, _, logs = toy.run(executor, variables, 2)
  assert logs[1]['metrics']['dppt_rectification'] > 0
  assert logs[1]['metrics']['dppt_known'] == 1
  name = 'params/backbone/conv1/kernel'
  assert (server.shared[name] != fedavg[1][name]).any()
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(server.shared))


@pytest.mark.slow
def test_an_identity_nobody_brings_keeps_its_centre(config, clients):
  config = toy.replaced(config, {'fraction': 0.3})
  executor, variables, _ = toy.make_rounds(config, clients, components())
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
def test_centres_of_zeros(config, clients, fedavg):
  """The angle is then a constant 1: nothing but the metric differs."""
  executor, variables, _ = toy.make_rounds(
    config, clients, components(target='zeros')
  )
  server, _, logs = toy.run(executor, variables, 2)
  assert not server.states['dppt'].features.any()
  assert logs[1]['metrics']['dppt_rectification'] == 1
  toy.assert_close_trees(server.shared, fedavg[1], 1e-6)


def test_clients_of_different_label_spaces_are_refused(config, clients):
  other = clients[1]._replace(num_identities=6)
  with pytest.raises(errors.DataError, match='client birch'):
    toy.make_rounds(
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
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    components(**arguments)


CLASSES = 6


def batches(seed=0, steps=5, size=8, features=3):
  """Batches of identities 0 to 4, the fifth with a single image."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, 4, (steps, size))
  labels[2, 3] = 4
  valid = rng.random((steps, size)) < 0.8
  valid[2, 3] = True
  return rng.standard_normal((steps, size, features)), labels, valid


def lists(steps):
  """A list of features for each identity, in order."""
  kept: dict[int, list] = {}
  for features, labels, valid in zip(*steps, strict=True):
    for z, label, real in zip(features, labels, valid, strict=True):
      if real:
        kept.setdefault(int(label), []).append(z)
  return kept


def nearest_mean(members, k):
  members = np.array(members)
  mean = members.mean(axis=0)
  if len(members) < k:
    return mean
  away = np.linalg.norm(members - mean, axis=1)
  return members[np.argsort(away, kind='stable')[:k]].mean(axis=0)


@functools.partial(jax.jit, static_argnames='capacity')
def remember(steps, capacity=64):
  """Inserts batch after batch inside a compiled loop."""

  def step(held, batch):
    return dppt.insert(held, *batch), None

  held = dppt.empty_bank(capacity, steps[0].shape[-1])
  return jax.lax.scan(step, held, steps)[0]


centres_of = jax.jit(dppt.nearest_means, static_argnums=1)


@pytest.mark.parametrize('k', [1, 2, 4, 1000])
def test_centres_are_those_of_lists_by_identity(k):
  steps = batches()
  found = centres_of(remember(steps), CLASSES, k)
  kept = lists(steps)
  assert found.present.tolist() == [c in kept for c in range(CLASSES)]
  for label in range(CLASSES):
    expected = nearest_mean(kept[label], k) if label in kept else np.zeros(3)
    np.testing.assert_allclose(
      found.features[label], expected, rtol=1e-5, atol=1e-6
    )


def test_a_large_k_gives_the_plain_centre():
  steps = batches(1)
  found = centres_of(remember(steps), CLASSES, 10**6)
  for label, members in lists(steps).items():
    np.testing.assert_allclose(
      found.features[label], np.mean(members, axis=0), rtol=1e-5, atol=1e-6
    )


def test_worked_number():
  """Of 0, 1, 2 and 9 with mean 3 the two nearest are 2 and 1."""
  line = jnp.array([[0.0], [1.0], [2.0], [9.0]])
  held = dppt.insert(
    dppt.empty_bank(4, 1), line, jnp.zeros(4, jnp.int32), jnp.ones(4, bool)
  )
  assert centres_of(held, 1, 2).features == 1.5


def test_padded_rows_take_no_room():
  features, labels, valid = batches(steps=3, size=4)
  valid[:] = [True, False, True, False]
  valid[2] = False
  labels[:] = 1
  held = remember((features, labels, valid), capacity=4)
  assert held.num == 4 and held.labels.tolist() == [1] * 4
  np.testing.assert_allclose(
    held.features, features[:2, ::2].reshape(4, 3), rtol=1e-6
  )


def test_what_finds_no_room_is_not_kept():
  features, labels, valid = batches(steps=3, size=4)
  valid[:] = True
  held = remember((features, labels, valid), capacity=6)
  np.testing.assert_allclose(
    held.features, features.reshape(12, 3)[:6], rtol=1e-6
  )
  assert held.num == 12 and held.labels.tolist() == labels.ravel()[:6].tolist()


def test_an_empty_memory_has_no_prototypes():
  found = centres_of(dppt.empty_bank(5, 2), CLASSES, 4)
  assert not found.present.any() and not found.features.any()


def centres(*rows):
  """Centres of one feature; None where there is none."""
  present = jnp.array([x is not None for x in rows])
  return dppt.Prototypes(jnp.array([[x or 0.0] for x in rows]), present)


def stacked(*clients):
  return jax.tree.map(lambda *x: jnp.stack(x), *clients)


def merge(old, uploads, arrived, absent='skip'):
  """The server's centres after stacked uploads, of which some arrived."""
  receive = dppt.make(dppt.Options(absent=absent)).server.receive
  return receive(old, uploads, arrived, ReceiveCtx(jnp.arange(len(arrived))))


def test_the_server_averages_over_clients_that_have_an_identity():
  uploads = stacked(centres(1.0, 2.0, None), centres(3.0, None, None))
  found = merge(dppt.no_prototypes(3, 1), uploads, jnp.array([True] * 2))
  assert found.features.ravel().tolist() == [2.0, 2.0, 0.0]
  assert found.present.tolist() == [True, True, False]


def test_absent_identities_may_count_as_zeros():
  """Of three uploads two arrived: a sum is halved, whoever lacks a centre."""
  uploads = stacked(
    centres(1.0, 2.0, None), centres(3.0, None, None), centres(9.0, 9.0, 9.0)
  )
  arrived = jnp.array([True, True, False])
  found = merge(centres(7.0, None, 8.0), uploads, arrived, 'zeros')
  assert found.features.ravel().tolist() == [2.0, 1.0, 8.0]
  assert found.present.tolist() == [True, True, True]


def test_only_uploads_that_arrived_count_and_old_centres_stay():
  uploads = stacked(
    centres(1.0, 2.0, None, None), centres(jnp.nan, 5.0, 6.0, None)
  )
  old = centres(7.0, 8.0, 9.0, None)
  found = merge(old, uploads, jnp.array([True, False]))
  assert found.features.ravel().tolist() == [1.0, 2.0, 9.0, 0.0]
  assert found.present.tolist() == [True, True, True, False]
