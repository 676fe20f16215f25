"""DFH's statistics with a bound and noise, and the loss beside DP-SGD."""

import dataclasses
import functools
from types import SimpleNamespace

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.core import types
from fedreid_jax.method.accounting import Mechanism
from fedreid_jax.method.contexts import RoundCtx, RoundEndCtx
from fedreid_jax.round import compose


def dfh(**arguments):
  (made,) = compose.load(('dfh',), {'dfh': arguments}, algorithms)
  return made


def outputs(features):
  """Outputs `[B, 5]` of three identities, the embedding and the feature."""
  features = jnp.asarray(features, jnp.float32)
  return types.Outputs(features, features, features[:, :3])


LABELS = jnp.array([0, 0, 1, 1, 2, 2])
TASK = SimpleNamespace(index=jnp.int32(1))


@functools.cache
def sender(made):
  """The message of client 1 of two, given the earlier ones."""
  hooks, found = made.client, outputs(FEATURES)
  batch = SimpleNamespace(labels=LABELS, valid=jnp.ones(6, bool))

  @functools.partial(jax.jit, static_argnums=2)
  def compute(message, round_, trained):
    start = handmade.context(RoundCtx, message=message, task=TASK)
    seen = hooks.data_pass.init(found, start)
    ctx = handmade.context(
      RoundEndCtx,
      message=message,
      task=TASK,
      data_pass=hooks.data_pass.update(seen, found, batch),
      trained=trained,
      round=round_,
      key=jax.random.fold_in(jax.random.key(0), round_),
    )
    return hooks.round_end((), ctx)[1]

  return compute


def sent(made, before, round_=0, trained=True):
  message = jnp.asarray(before, jnp.float32)
  return np.asarray(sender(made)(message, jnp.int32(round_), trained))


FEATURES = np.random.default_rng(0).normal(2, 1, (6, 5))
NOTHING = np.zeros((2, 4, 5))


def test_a_client_clips_around_the_mean_that_it_sent_before():
  plain = sent(dfh(), NOTHING)
  clip = 0.4 * float(np.linalg.norm(plain[0]))
  made, before, left = dfh(clip=clip), NOTHING.copy(), []
  for round_ in range(4):
    found = sent(made, before, round_)
    assert np.linalg.norm(found[0] - before[1, 0]) <= clip * (1 + 1e-5)
    before[1] = found
    before[0] = 100.0  # of another client
    left.append(np.linalg.norm(found[0] - plain[0]))
  assert left[0] > 0.5 * np.linalg.norm(plain[0])
  assert left[0] > left[1] > left[2] and left[3] < 0.3 * left[0]


BOUND = {'clip': 5.0, 'noise': 1.0}


@pytest.mark.parametrize(
  'every, new, bound',
  [
    (0, [0], {}),
    (2, [0, 2, 4], BOUND),
    (3, [0, 3], {}),
    (1, [0, 1, 2, 3, 4], BOUND),
  ],
)
def test_rounds_between_new_statistics(every, new, bound):
  """The place 0 is the pass before round 0."""
  made = dfh(every=every, **bound)
  before = np.stack([np.zeros((4, 5)), np.full((4, 5), 7.0)])
  calls = [(0, False), *((round_, True) for round_ in range(4))]
  changed = [
    place
    for place, (round_, trained) in enumerate(calls)
    if (sent(made, before, round_, trained) != 7).any()
  ]
  assert changed == new
  if bound:
    (mechanism,) = made.released.mechanisms(4)
    assert mechanism == Mechanism(1.0, 1.0, len(new))
  else:
    assert isinstance(made.released, str)


@pytest.mark.parametrize('clip', [0.0, 50.0])
def test_means_without_the_variances_between_identities(clip):
  whole = sent(dfh(clip=clip), NOTHING)
  found = sent(dfh(clip=clip, moments='means'), NOTHING)
  np.testing.assert_allclose(found[::2], whole[::2], rtol=1e-5)
  assert whole[1::2].any() and not found[1::2].any()


def test_noise_is_on_every_statistic_and_follows_the_round():
  made = dfh(clip=50.0, noise=0.01)
  exact = sent(dfh(clip=50.0), NOTHING)
  off = [sent(made, NOTHING, t) - exact for t in range(2)]
  assert (off[0] != off[1])[0].all() and (off[0] != off[1])[2].any()
  means = np.concatenate([x[0] for x in off])
  assert 0.5 < means.std() / (0.01 * 2**0.5 * 50 / 3) < 2


def context(features, rows=slice(None), statistics=None, weights=None):
  if statistics is None:
    statistics = np.random.default_rng(1).uniform(0.5, 1.0, (3, 4, 5))
  if weights is None:
    weights = np.random.default_rng(2).normal(size=(5, 3))
  labels = LABELS[rows]
  return toy.step(
    batch=SimpleNamespace(labels=labels, valid=jnp.ones(len(labels), bool)),
    outputs=outputs(jnp.asarray(features)[rows]),
    classify=lambda x: x @ jnp.asarray(weights, jnp.float32),
    task=TASK,
    message=jnp.asarray(statistics, jnp.float32),
    key=jax.random.key(3),
    round_key=jax.random.key(7),
  )


@pytest.mark.parametrize(
  'arguments, separable',
  [
    ({}, True),
    ({'novel': 'feature_mixup'}, True),
    pytest.param({'novel': 'none'}, True, marks=pytest.mark.slow),
    pytest.param({'novel': 'dirichlet_mixup'}, True, marks=pytest.mark.slow),
    pytest.param(
      {'novel': 'feature_mixup', 'mix_own': 'hallucinated'},
      True,
      marks=pytest.mark.slow,
    ),
    ({'normalise': 'batch'}, False),
    ({'loss': 'triplet'}, False),
  ],
  ids=str,
)
def test_a_separable_loss_is_the_mean_of_those_of_images(arguments, separable):
  """With the same samples, which are those of a round."""
  given = {'loss': 'identity', 'normalise': 'released', 'resample': 'round'}
  made = dfh(**given | arguments)
  assert ('separable' in made.properties) == separable

  @jax.jit
  def losses():
    def of(rows):
      return made.client.loss({}, (), context(FEATURES, rows))[0]

    return of(slice(None)), jax.lax.map(of, jnp.arange(6)[:, None])

  whole, each = losses()
  assert np.isclose(whole, np.mean(each), rtol=1e-5) == separable


def test_features_are_normalised_by_what_was_released():
  """b = (F - m) / sqrt(v + p + a tenth of the mean) of the own client."""
  statistics = np.zeros((2, 4, 5))  # of the other domain: F_k = sqrt(1e-6) b
  own = [[1, 2, 3, 0, 0], [1, 0, 4, 1, 1], [3, 4, 0, 0, 0], [9, 9, 9, 9, 9]]
  statistics[1] = own
  features = np.array([[2.0, 4.0, -1.0, 5.0, 0.0]])
  made = dfh(loss='identity', normalise='released', novel='none', lam=1.0)
  variance = np.array([4.0, 4.0, 4.0, 1.0, 1.0])
  b = np.array([1.0, 2.0, -4.0, 5.0, 0.0]) / np.sqrt(variance + 0.28)
  weights = 1e3 * np.eye(5)[:, :3]
  ctx = context(features, slice(1), statistics, weights)
  loss, metrics = made.client.loss({}, (), ctx)
  scores = b[:3]
  wanted = np.log(np.exp(scores).sum()) - scores[0]
  np.testing.assert_allclose(loss, wanted, rtol=1e-4)
  ratio = np.sqrt((7 / 5) / (14 / 5))
  np.testing.assert_allclose(metrics['sigma_ratio'], ratio, rtol=1e-5)

  def of(message):
    again = dataclasses.replace(ctx, message=message)
    return made.client.loss({}, (), again)[0]

  assert not np.any(jax.grad(of)(ctx.message))


def test_noise_needs_a_bound():
  with pytest.raises(errors.ConfigError, match='without a bound.*dfh.clip'):
    dfh(noise=1.0)


# In a run.


def executor_of(config, clients, **arguments):
  arguments = {'space': 'b'} | arguments
  components = compose.load(('fedpav', 'dfh'), {'dfh': arguments}, algorithms)
  return toy.make_rounds(config, clients, components)


@pytest.mark.slow
def test_statistics_of_a_network_without_batch_moments(config, clients):
  """They are those of the trained network in evaluation mode."""
  config = toy.replaced(config, {'model.norm': 'frozen', 'optim.lr': 0.05})
  executor, variables, model = executor_of(config, clients[:1])
  server, states, _ = toy.run(executor, variables, 1)
  trained = {n: x[0] for n, x in (server.shared | states.personal).items()}
  images = (clients[0].images().astype(np.float32) / 255 - 0.5) / 0.25
  test = jax.jit(functools.partial(model.apply, train=False))
  found, _ = test(trained, images)
  features, labels = np.asarray(found.embedding), clients[0].labels
  groups = [features[labels == k] for k in range(3)]
  mu = np.array([g.mean(0) for g in groups])
  var = np.array([g.var(0) for g in groups])
  expected = [mu.mean(0), mu.var(0), var.mean(0), var.var(0)]
  np.testing.assert_allclose(
    server.states['dfh'][0], expected, rtol=1e-3, atol=1e-5
  )
  before, _ = test(variables, images)
  assert not np.allclose(before.embedding, features, rtol=1e-2)


@pytest.mark.slow
def test_the_pass_before_round_0_has_noise_of_its_own(config, clients):
  """It has the same number as round 0, and equal noise would cancel."""
  config = toy.replaced(config, {'model.norm': 'group', 'optim.lr': 0.0})
  executor, variables, _ = executor_of(
    config, clients[:2], clip=50.0, noise=5.0
  )
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  found = [np.asarray(server.states['dfh'])[:, 0]]
  for round_ in range(2):
    server, _ = executor.round(server, states, round_)
    found.append(np.asarray(server.states['dfh'])[:, 0])
  pairs = [found[0] - found[1], found[1] - found[2], found[0] - found[2]]
  # z c sqrt(2) / J of three identities; a difference has sqrt(2) times as much.
  gaps = np.stack([*pairs]) / (5.0 * 50.0 * 2 / 3)
  assert (0.5 < gaps.std(axis=(1, 2))).all()
  assert (gaps.std(axis=(1, 2)) < 1.6).all()
  assert np.abs(found[0][0] - found[0][1]).min() > 1e-3
