import dataclasses
import functools
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


@pytest.mark.slow
def test_every_client_prepares_and_the_server_keeps_all(config, clients):
  config = toy.replaced(config, {'fraction': 0.5})
  executor, variables, _ = toy.make_rounds(config, clients, components())
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
  config = toy.replaced(config, {'local.data_pass_batch': 16})
  executor, variables, model = toy.make_rounds(
    config, clients[:1], components()
  )
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  outputs, _ = jax.jit(model.measure)(variables, images)
  features, labels = np.asarray(outputs.embedding), clients[0].labels
  groups = [features[labels == k] for k in range(3)]
  mu = np.array([g.mean(0) for g in groups])
  var = np.array([g.var(0) for g in groups])
  expected = [mu.mean(0), mu.var(0), var.mean(0), var.var(0)]
  np.testing.assert_allclose(
    server.states['dfh'][0], expected, rtol=1e-3, atol=1e-5
  )


def step(num, own, labels):
  """(context without statistics, statistics of the domains) of six images.

  Feature and embedding differ, and neither is normalised.
  """
  rng = np.random.default_rng(num)
  feature = jnp.asarray(3 + 2 * rng.normal(size=(6, 5)), jnp.float32)
  embedding = jnp.asarray(-1 + 5 * rng.normal(size=(6, 5)), jnp.float32)
  weights = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
  ctx = toy.step(
    batch=SimpleNamespace(labels=labels, valid=jnp.ones(6, bool)),
    outputs=types.Outputs(feature, embedding, None),
    classify=lambda x: x @ weights,
    task=SimpleNamespace(index=jnp.int32(own)),
    key=jax.random.key(12),  # Feature-MixUp draws the own domain
    round_key=jax.random.key(8),
  )
  return ctx, jnp.asarray(rng.uniform(0.5, 1.0, (num, 4, 5)), jnp.float32)


LABELS = jnp.array([0, 0, 1, 1, 2, 2])
CHOICES = (
  {'novel': 'none'},
  {'novel': 'dirichlet_mixup', 'mix_weights': 'sample'},
  {'novel': 'feature_mixup'},
  {'novel': 'feature_mixup', 'mix_own': 'hallucinated'},
  {'loss': 'identity'},
  {'resample': 'round'},
  {'negative_variance': 'resample'},
  {'alpha': (1.0, 2.0, 1.0)},
)


def test_every_choice_gives_another_loss():
  ctx, dfs = step(3, 1, LABELS)
  dfs = dfs.at[:, 3].set(9.0)  # some variances are drawn negative

  @jax.jit
  def losses(dfs):
    given = dataclasses.replace(ctx, message=dfs)
    return [
      components(**choice)[-1].client.loss({}, (), given)
      for choice in ({}, *CHOICES)
    ]

  values, metrics = zip(*losses(dfs), strict=True)
  assert np.isfinite(values).all()
  assert len({float(value) for value in values}) == len(values)
  assert [i for i, found in enumerate(metrics) if 'novel' not in found] == [1]


@pytest.mark.slow
def test_a_client_without_other_domains_has_a_finite_loss():
  ctx, dfs = step(1, 0, 0 * LABELS)
  loss, metrics = components()[-1].client.loss(
    {}, (), dataclasses.replace(ctx, message=dfs)
  )
  assert np.isfinite(loss) and metrics['known'] == 0


@pytest.mark.parametrize(
  'num, novel, space',
  [(2, 'dirichlet', 'b'), (3, 'dirichlet', 'f'), (3, 'none', 'b')],
)
def test_the_loss_is_that_of_equation_3_6(num, novel, space):
  """lam [L_nov + mean of the other domains'], no gradient to statistics."""
  own, lam, margin = 1, 4.0, 0.3
  ctx, dfs = step(num, own, LABELS)
  whole = np.asarray(
    ctx.outputs.embedding if space == 'b' else ctx.outputs.feature
  )
  features = (whole - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-5)
  (made,) = compose.load(
    ('dfh',),
    {'dfh': dict(lam=lam, margin=margin, novel=novel, space=space)},
    algorithms,
  )

  def loss(dfs):
    return made.client.loss({}, (), dataclasses.replace(ctx, message=dfs))[0]

  @jax.jit
  def by_hand(dfs):
    draw_key, novel_key = jax.random.split(ctx.key)
    means, variances, *_ = hallucination.draw(draw_key, dfs, 'clamp')

    def triplet(mean, variance):
      return metric.hard_triplet(
        mean + jnp.sqrt(variance) * features, LABELS, jnp.ones(6, bool), margin
      )

    expected = sum(
      triplet(means[k], variances[k]) for k in range(num) if k != own
    ) / (num - 1)
    if novel == 'dirichlet':
      w = jax.random.dirichlet(novel_key, jnp.ones(num))
      expected += triplet(w @ means, w @ variances)
    return lam * expected

  found, gradient = jax.jit(jax.value_and_grad(loss))(dfs)
  np.testing.assert_allclose(found, by_hand(dfs), rtol=1e-5)
  assert not np.any(gradient)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'novel': 'dirichet'}, 'novel'),
    ({'loss': 'circle'}, 'loss'),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    components(**arguments)


def test_a_client_of_one_identity_is_refused_unless_allowed(config):
  clients = (toy.toy_client('lone', 5, identities=1),)
  with pytest.raises(errors.DataError, match='client lone'):
    toy.make_rounds(config, clients, components())
  toy.make_rounds(config, clients, components(min_identities=1))


def test_alpha_for_another_number_of_clients(config, clients):
  executor, variables, _ = toy.make_rounds(
    config, clients, components(alpha=(1.0, 2.0))
  )
  with pytest.raises(errors.ConfigError, match='2 values of alpha for 4'):
    executor.init(variables)


@pytest.mark.slow
def test_statistics_after_training_are_not_larger_than_the_features(config):
  """Within identities of equal size the variance is at most that of all.

  With the running moments, which are delayed, it is not.
  """
  config = toy.replaced(
    config, {'optim.lr': 0.2, 'local.epochs': 4, 'local.data_pass_batch': 16}
  )
  clients = (toy.toy_client('elm', 15),)
  executor, variables, model = toy.make_rounds(config, clients, components())
  server, states, _ = toy.run(executor, variables, 3)
  trained = {n: x[0] for n, x in (server.shared | states.personal).items()}
  images = (clients[0].images().astype(np.float32) / 255 - 0.5) / 0.25

  def within(features):
    groups = [features[clients[0].labels == k] for k in range(3)]
    return np.mean([g.var(0) for g in groups], axis=0)

  measured, _ = jax.jit(model.measure)(trained, images)
  batch = np.asarray(measured.embedding)
  np.testing.assert_allclose(
    server.states['dfh'][0, 2], within(batch), rtol=1e-3, atol=1e-5
  )
  assert (server.states['dfh'][0, 2] <= batch.var(0) + 1e-6).all()
  delayed, _ = jax.jit(functools.partial(model.apply, train=False))(
    trained, images
  )
  stale = within(np.asarray(delayed.embedding))
  assert (stale > batch.var(0)).any()


@pytest.mark.parametrize('space', ['b', 'f'])
def test_space_and_neck_go_together(config, space):
  from fedreid_jax.config import validation

  config = toy.replaced(
    config,
    {
      'components': ('fedpav', 'dfh'),
      'dfh.space': space,
      'model.neck': 'none' if space == 'f' else 'bn',
    },
  )
  validation.validate(config)
  config = toy.replaced(
    config, {'model.neck': 'bn' if space == 'f' else 'none'}
  )
  with pytest.raises(errors.ConfigError, match='dfh.space'):
    validation.validate(config)


def test_statistics_that_are_too_large_are_worth_a_warning():
  (made,) = compose.load(('dfh',), {}, algorithms)
  assert made.warn({'sigma_ratio': 0.99}) == ''
  assert 'dfh_sigma_ratio' in made.warn({'sigma_ratio': 1.01})
