import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.core import types
from fedreid_jax.losses import hallucination, metric
from fedreid_jax.round import compose


def components(**arguments):
  arguments = {'space': 'b'} | arguments  # the toy network has a neck
  return compose.load(('fedpav', 'dfh'), {'dfh': arguments}, algorithms)


def run(config, clients, rounds=2, **arguments):
  executor, variables, _ = toy.make_executor(
    config, clients, components(**arguments)
  )
  return toy.run(executor, variables, rounds)


@pytest.mark.slow
def test_without_weight_it_is_fedpav(config, clients):
  dfh, states, _ = run(config, clients, lam=0.0)
  executor, variables, _ = toy.make_executor(
    config, clients, compose.load(('fedpav',), {}, algorithms)
  )
  fedpav, plain, _ = toy.run(executor, variables, 2)
  toy.assert_close_trees(dfh.shared, fedpav.shared, 1e-6)
  toy.assert_close_trees(states.personal, plain.personal, 1e-6)


def test_every_client_prepares_and_the_server_keeps_all(config, clients):
  config.fraction = 0.5
  executor, variables, _ = toy.make_executor(config, clients, components())
  server, states = executor.init(variables)
  assert not np.asarray(server.states['dfh']).any()
  server, log = executor.prepare(server, states)
  assert log['up'] == {'dfh': 4 * server.states['dfh'][0].nbytes}
  model = sum(leaf.nbytes for leaf in server.shared.values())
  assert log['down'] == {'model': 4 * model}
  first = np.asarray(server.states['dfh']).copy()
  assert (np.abs(first).reshape(4, -1).max(axis=1) > 0).all()
  server, log = executor.round(server, states, 0)
  dfs = 4 * 8 * 4  # four vectors of eight float32
  assert (log['up']['dfh'], log['down']['dfh']) == (2 * dfs, 2 * 4 * dfs)
  now = np.asarray(server.states['dfh'])
  for k in range(4):
    assert (now[k] == first[k]).all() == (k not in log['clients'])


def test_statistics_are_those_of_the_clients_own_model(config, clients):
  """One client, no training: DFS of the initial model, recomputed in NumPy."""
  images = (clients[0].images().astype(np.float32) / 255 - 0.5) / 0.25
  config.local.data_pass_batch = 16  # all nine at once, as NumPy has them
  executor, variables, model = toy.make_executor(
    config, clients[:1], components()
  )
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  outputs, _ = model.measure(variables, images)
  features, labels = np.asarray(outputs.embedding), clients[0].labels
  groups = [features[labels == k] for k in range(3)]
  mu = np.array([g.mean(0) for g in groups])
  var = np.array([g.var(0) for g in groups])
  expected = [mu.mean(0), mu.var(0), var.mean(0), var.var(0)]
  np.testing.assert_allclose(
    server.states['dfh'][0], expected, rtol=1e-3, atol=1e-5
  )


@pytest.fixture(scope='module')
def plain(clients):
  """Parameters after a round of the default options."""
  return run(toy.toy_config(), clients, 1)[0].shared


@pytest.mark.parametrize(
  'arguments',
  [
    {'novel': 'none'},
    {'novel': 'dirichlet_mixup', 'mix_weights': 'sample'},
    {'novel': 'feature_mixup'},
    {'loss': 'identity'},
    {'resample': 'round'},
    {'negative_variance': 'resample'},
    {'novel': 'feature_mixup', 'mix_own': 'hallucinated'},
    {'alpha': (1.0, 2.0, 1.0, 1.0)},
  ],
  ids=str,
)
@pytest.mark.slow
def test_every_variant_trains_and_differs(config, clients, plain, arguments):
  server, _, logs = run(config, clients, 1, **arguments)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(server))
  assert ('dfh_novel' in logs[0]['metrics']) == (
    arguments.get('novel') != 'none'
  )
  if arguments != {'negative_variance': 'resample'}:
    name = 'params/backbone/conv1/kernel'
    assert (server.shared[name] != plain[name]).any()


@pytest.mark.parametrize('num', [2, 3])
@pytest.mark.parametrize('novel', ['dirichlet', 'none'])
@pytest.mark.parametrize('space', ['b', 'f'])
def test_the_loss_is_that_of_equation_3_6(num, novel, space):
  """lam [L_nov + mean of the other domains'], no gradient to statistics.

  Feature and embedding differ, and neither is normalised.
  """
  rng = np.random.default_rng(num)
  own, lam, margin = 1, 4.0, 0.3
  feature = jnp.asarray(3 + 2 * rng.normal(size=(6, 5)), jnp.float32)
  embedding = jnp.asarray(-1 + 5 * rng.normal(size=(6, 5)), jnp.float32)
  whole = np.asarray(embedding if space == 'b' else feature)
  features = (whole - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-5)
  dfs = jnp.asarray(rng.uniform(0.5, 1.0, (num, 4, 5)), jnp.float32)
  labels, valid = jnp.array([0, 0, 1, 1, 2, 2]), jnp.ones(6, bool)
  ctx = toy.step(
    batch=SimpleNamespace(labels=labels, valid=valid),
    outputs=types.Outputs(feature, embedding, None),
    task=SimpleNamespace(index=jnp.int32(own)),
    key=jax.random.key(7),
  )
  (made,) = compose.load(
    ('dfh',),
    {'dfh': dict(lam=lam, margin=margin, novel=novel, space=space)},
    algorithms,
  )

  def loss(dfs):
    return made.client.loss({}, (), dataclasses.replace(ctx, message=dfs))[0]

  draw_key, novel_key = jax.random.split(ctx.key)
  means, variances, *_ = hallucination.draw(draw_key, dfs, 'clamp')

  def triplet(mean, variance):
    return metric.hard_triplet(
      mean + jnp.sqrt(variance) * features, labels, valid, margin
    )

  expected = sum(
    triplet(means[k], variances[k]) for k in range(num) if k != own
  ) / (num - 1)
  if novel == 'dirichlet':
    w = jax.random.dirichlet(novel_key, jnp.ones(num))
    expected += triplet(w @ means, w @ variances)
  np.testing.assert_allclose(loss(dfs), lam * expected, rtol=1e-5)
  assert not np.any(jax.grad(loss)(dfs))


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'novel': 'dirichet'}, 'novel'),
    ({'loss': 'circle'}, 'loss'),
    ({'lam': -1.0}, 'lam'),
    ({'alpha': (0.0,)}, 'alpha'),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    components(**arguments)


@pytest.mark.slow
def test_a_client_of_one_identity_is_refused_unless_allowed(config):
  clients = (toy.toy_client('lone', 5, identities=1),)
  with pytest.raises(errors.DataError, match='client lone'):
    toy.make_executor(config, clients, components())
  server, _, logs = run(config, clients, 1, min_identities=1)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(server))
  assert logs[0]['metrics']['dfh_known'] == 0  # no other domain


def test_alpha_for_another_number_of_clients(config, clients):
  executor, variables, _ = toy.make_executor(
    config, clients, components(alpha=(1.0, 2.0))
  )
  with pytest.raises(errors.ConfigError, match='2 values of alpha for 4'):
    executor.init(variables)


@pytest.mark.slow
def test_statistics_after_training_are_not_larger_than_the_features(config):
  """Within identities of equal size the variance is at most that of all.

  With the running moments, which are delayed, it is not.
  """
  config.optim.lr, config.local.epochs = 0.2, 4
  config.local.data_pass_batch = 16
  clients = (toy.toy_client('elm', 15),)
  executor, variables, model = toy.make_executor(config, clients, components())
  server, states, _ = toy.run(executor, variables, 3)
  trained = {n: x[0] for n, x in (server.shared | states.personal).items()}
  images = (clients[0].images().astype(np.float32) / 255 - 0.5) / 0.25

  def within(features):
    groups = [features[clients[0].labels == k] for k in range(3)]
    return np.mean([g.var(0) for g in groups], axis=0)

  measured, _ = model.measure(trained, images)
  batch = np.asarray(measured.embedding)
  np.testing.assert_allclose(
    server.states['dfh'][0, 2], within(batch), rtol=1e-3, atol=1e-5
  )
  assert (server.states['dfh'][0, 2] <= batch.var(0) + 1e-6).all()
  delayed, _ = model.apply(trained, images, train=False)
  stale = within(np.asarray(delayed.embedding))
  assert (stale > batch.var(0)).any()


@pytest.mark.parametrize('space', ['b', 'f'])
def test_space_and_neck_go_together(config, space):
  from fedreid_jax.config import validation

  config.components = ('fedpav', 'dfh')
  config.dfh.space = space
  config.model.neck = 'none' if space == 'f' else 'bn'
  validation.validate(config)
  config.model.neck = 'bn' if space == 'f' else 'none'
  with pytest.raises(errors.ConfigError, match='dfh.space'):
    validation.validate(config)


def test_statistics_that_are_too_large_are_worth_a_warning():
  (made,) = compose.load(('dfh',), {}, algorithms)
  assert made.warn({'sigma_ratio': 0.99}) == ''
  assert 'dfh_sigma_ratio' in made.warn({'sigma_ratio': 1.01})
