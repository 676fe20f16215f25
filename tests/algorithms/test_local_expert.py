import dataclasses
from types import SimpleNamespace

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.config import recipes
from fedreid_jax.core import types
from fedreid_jax.losses import identity
from fedreid_jax.method import optimizers
from fedreid_jax.method.contexts import AggregationCtx, RoundCtx
from fedreid_jax.round import compose

SHARED = recipes.recipe('fedreid').fedpav.shared
VALID = jnp.array([True, True, False])


def logits(seed, padded=True):
  values = np.random.default_rng(seed).standard_normal((3, 5)).astype('f4')
  if padded:
    values[:, 4] = -1e9
  return jnp.asarray(values)


def components(**arguments):
  given = {'fedpav': {'shared': SHARED}, 'local_expert': arguments}
  return compose.load(('fedpav', 'uniform', 'local_expert'), given, algorithms)


def run(config, clients, rounds, **arguments):
  config = toy.replaced(
    config, {'model.neck': 'mapping', 'model.bottleneck': 6}
  )
  executor, variables, _ = toy.make_rounds(
    config, clients, components(**arguments)
  )
  return toy.run(executor, variables, rounds)


def test_divergence_by_hand():
  s, t, temperature = logits(0), logits(1), 3.0
  p = np.exp(np.asarray(s[:2, :4], 'f8') / temperature)
  q = np.exp(np.asarray(t[:2, :4], 'f8') / temperature)
  p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
  expected = temperature**2 * (q * np.log(q / p)).sum(axis=1).mean()
  found = identity.divergence(s, t, VALID, temperature)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_divergence_of_equal_scores_is_zero():
  found = identity.divergence(logits(0), logits(0), VALID, 3.0)
  np.testing.assert_allclose(found, 0.0, atol=1e-6)


def test_divergence_has_no_gradient_with_respect_to_the_expert():
  gradient = jax.grad(identity.divergence, argnums=1)(
    logits(0), logits(1), VALID, 3.0
  )
  assert not np.any(gradient)


def test_temperature_keeps_the_order_of_the_gradient():
  """Hinton et al.: times T^2, gradients are of one size for any large T."""
  sizes = [
    np.linalg.norm(
      jax.grad(identity.divergence)(
        logits(0, False), logits(1, False), VALID, temperature
      )
    )
    for temperature in (10.0, 100.0)
  ]
  assert 0.8 < sizes[1] / sizes[0] < 1.25


def test_expert_starts_from_the_last_result_of_the_client():
  term = components()[-1].client
  old, new = {'params/w': jnp.zeros(2)}, {'params/w': jnp.ones(2)}
  optimizer = SimpleNamespace(init=lambda params: params)
  ctx = handmade.context(RoundCtx, variables=new, optimizer=optimizer)
  for seen, expected in ((False, 1.0), (True, 0.0)):
    expert, _ = term.round_start((old, jnp.bool_(seen)), ctx)
    np.testing.assert_array_equal(expert['params/w'], expected)


def test_the_expert_learns_from_an_augmentation_of_its_own():
  """One step of the client's optimiser on cross-entropy of the second view."""
  rng = np.random.default_rng(0)
  images, other = (
    jnp.asarray(rng.normal(size=(3, 4)), jnp.float32) for _ in '12'
  )
  labels = jnp.array([0, 1, 0])
  seen = []

  def transform(key):
    seen.append(key)
    return other

  def apply(variables, x, **_):
    scores = x @ variables['params/w']
    return types.Outputs(x, x, scores), {'batch_stats/n': jnp.float32(1.0)}

  def objective(outputs, batch):
    return identity.cross_entropy(outputs.logits, batch.labels, batch.valid), {}

  rule = optimizers.make(toy.toy_config().optim)
  weights = {'params/w': jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)}
  expert = {**weights, 'batch_stats/n': jnp.float32(0.0)}
  ctx = toy.step(
    batch=types.Batch(images, labels, labels, 0 * labels, VALID),
    task=SimpleNamespace(num_identities=2),
    model=SimpleNamespace(apply=apply),
    objective=objective,
    transform=transform,
    optimizer=rule,
    lr=0.1,
    key=jax.random.key(3),
  )
  term = components()[-1].client
  state = rule.init(weights)
  (trained, _), scores = term.pre_step((expert, state), ctx)

  def entropy(weights):
    scores = other @ weights['params/w']
    return identity.cross_entropy(scores, labels, VALID), None

  grads, _ = rule.grad(entropy)(weights)
  wanted, _ = rule.update(grads, state, weights, 0.1)
  np.testing.assert_allclose(trained['params/w'], wanted['params/w'], rtol=1e-6)
  np.testing.assert_allclose(scores, other @ weights['params/w'], rtol=1e-6)
  assert trained['batch_stats/n'] == 1.0 and len(seen) == 1


def test_the_published_setting():
  c = recipes.recipe('fedreid', 'paper')
  assert c.components == ('fedpav', 'uniform', 'local_expert')
  assert (c.rounds, c.local.batch, c.local.epochs) == (100, 32, 1)
  assert (c.local_expert.temperature, c.model.bottleneck) == (3.0, 512)
  assert (c.model.name, c.model.last_stride) == ('resnet50', 2)
  assert (c.optim.lr, c.optim.nesterov) == (0.1, True)
  assert c.optim.lr_multipliers == (('params/backbone/', 0.1),)
  assert (c.optim.milestones, c.optim.gamma) == ((40, 80), 0.1)
  assert (c.evaluation.feature, c.evaluation.flip) == ('feature', True)
  assert c.evaluation.metric == 'euclidean'


@pytest.mark.slow
def test_what_stays_is_the_model_of_the_client_not_the_expert(config, clients):
  server, states, logs = run(config, clients[:1], 2)
  kept, seen = states.states['local_expert']
  assert seen.all()
  # Alone, the client's model is the server's, and its head is its own.
  for name, leaf in server.shared.items():
    np.testing.assert_allclose(kept[name], leaf, rtol=1e-5, atol=1e-7)
  for name, leaf in states.personal.items():
    np.testing.assert_array_equal(kept[name], leaf)
  assert logs[1]['metrics']['local_expert_divergence'] > 0


@pytest.mark.slow
def test_heads_of_the_others_do_not_change(config, clients):
  config = toy.replaced(
    config, {'fraction': 0.5, 'model.neck': 'mapping', 'model.bottleneck': 6}
  )
  executor, variables, _ = toy.make_rounds(config, clients, components())
  server, states = executor.init(variables)
  before = states.stacked().personal
  _, log = executor.round(server, states, 0)
  away = np.setdiff1d(np.arange(len(clients)), log['clients'])
  assert len(away) == 2
  for name, leaf in states.stacked().personal.items():
    np.testing.assert_array_equal(leaf[away], before[name][away])
  assert any('classifier' in name for name in before)
  assert any('neck' in name for name in before)
  assert not any('backbone' in name for name in before)


def test_frozen_teacher_is_what_the_client_first_started_from():
  term = components(frozen=True)[-1].client
  first = {'params/w': jnp.zeros(2)}
  ctx = handmade.context(RoundCtx, variables=first)
  state = term.round_start(({'params/w': jnp.ones(2)}, jnp.bool_(False)), ctx)
  (kept, seen), _ = term.round_end(state, None)
  assert seen
  np.testing.assert_array_equal(kept['params/w'], 0.0)
  later = dataclasses.replace(ctx, variables={'params/w': jnp.full(2, 5.0)})
  teacher, _ = term.round_start((kept, seen), later)
  np.testing.assert_array_equal(teacher['params/w'], 0.0)


@pytest.mark.slow
def test_noise_is_a_function_of_seed_and_round(config, clients):
  """The second round again, from the states after the first."""

  def build():
    parts = compose.load(
      ('fedpav', 'noise'),
      {'noise': {'beta': 0.1, 'double': True}},
      algorithms,
    )
    return toy.make_rounds(config, clients[:2], parts)

  executor, variables, _ = build()
  server, states = executor.init(variables)
  server, _ = executor.round(server, states, 0)
  saved = jax.device_get(server), states.copy()
  first, _ = executor.round(server, states, 1)
  other, _, _ = build()
  again, _ = other.round(other.put_server(saved[0]), saved[1], 1)
  toy.assert_equal_trees(jax.device_get(first), jax.device_get(again))


def test_noise_is_on_parameters_only_and_says_what_it_is_not():
  (part,) = compose.load(('noise',), {'noise': {'beta': 0.1}}, algorithms)
  assert 'no (epsilon, delta) guarantee' in part.notice
  assert part.transport is None
  leaves = {
    'params/w': jnp.zeros((2, 200, 50)),
    'batch_stats/bn/var': jnp.ones((2, 3)),
  }
  ctx = handmade.context(
    AggregationCtx,
    key=jax.random.key(0),
    members=jnp.array([[True, False], [False, False]]),
  )
  _, noisy = part.server.update((), leaves, ctx)
  assert 0.098 < np.std(noisy['params/w'][0]) < 0.102
  # Nobody's upload went into the second model.
  np.testing.assert_array_equal(noisy['params/w'][1], 0.0)
  np.testing.assert_array_equal(noisy['batch_stats/bn/var'], 1.0)


def test_frozen_teacher_equal_to_the_student_teaches_nothing():
  """Of a client with fewer identities than the largest, too."""
  term = components(frozen=True)[-1].client

  def apply(variables, images, **given):
    real = jnp.arange(5) < given['num_identities']
    return types.Outputs(None, None, jnp.where(real, 0.5 * images, -1e9)), {}

  images = logits(0, padded=False)
  ctx = SimpleNamespace(
    model=types.Model(None, None, apply, None),
    transform=lambda key: images,
    key=jax.random.key(0),
    task=SimpleNamespace(num_identities=3),
    batch=SimpleNamespace(valid=VALID, modalities=None, cameras=None),
    outputs=apply({}, images, num_identities=3)[0],
  )
  _, ctx.aux = term.pre_step(({}, ()), ctx)
  value, _ = term.loss({}, None, ctx)
  np.testing.assert_allclose(value, 0.0, atol=1e-6)


def test_double_noise_is_on_every_download_too():
  options = {'noise': {'beta': 0.1, 'double': True}}
  (part,) = compose.load(('noise',), options, algorithms)
  leaves = {'params/w': jnp.zeros((200, 50)), 'batch_stats/bn/var': jnp.ones(3)}
  sent = handmade.context(types.Broadcast, shared=leaves, messages={})
  noisy = part.transport.down(sent, jax.random.key(0)).shared
  assert 0.098 < np.std(noisy['params/w']) < 0.102
  np.testing.assert_array_equal(noisy['batch_stats/bn/var'], 1.0)
