import types

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from flax import linen as nn

from fedreid_jax import algorithms, errors
from fedreid_jax.losses import cross_modal
from fedreid_jax.method import contexts
from fedreid_jax.models import convnet, dns, networks, reid
from fedreid_jax.round import compose

VARIANTS = tuple(dns.DOMAINS)
B, D, C = 6, 4, 3
MODALITIES = np.array([0, 1, 1, 0, 0, 1])
VALID = np.array([True] * 5 + [False])
LABELS = np.array([0, 1, 2, 1, 0, 2])


def open_round(term, slot, variables):
  """The state of a round that starts from some variables."""
  return term.round_start(
    slot, handmade.context(contexts.RoundCtx, variables=variables)
  )


def component(variant, **arguments):
  (found,) = compose.load(
    ('dns',), {'dns': {'variant': variant} | arguments}, algorithms
  )
  return found


def array(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


def kernels(variant, seed):
  return {
    name: array(seed + i, D, C) for i, name in enumerate(dns.DOMAINS[variant])
  }


def variables(variant, seed=0):
  return {
    f'params/domain_{name}/kernel': jnp.asarray(kernel)
    for name, kernel in kernels(variant, seed).items()
  }


def ctx(variant, seed=0, modalities=MODALITIES, valid=VALID):
  """What a term sees: six images, the last of them padding."""
  extras = {
    'shifted': jnp.asarray(array(12, B, D)),
    'domains': {k: jnp.asarray(v) for k, v in kernels(variant, seed).items()},
  }
  return types.SimpleNamespace(
    outputs=types.SimpleNamespace(
      feature=jnp.asarray(array(10, B, D)),
      embedding=jnp.asarray(array(11, B, D)),
      extras=extras,
    ),
    batch=types.SimpleNamespace(
      labels=jnp.asarray(LABELS),
      modalities=jnp.asarray(modalities),
      valid=jnp.asarray(valid),
    ),
    task=types.SimpleNamespace(num_identities=C),
  )


def opened(term, variant, seed=0):
  slot = term.init(jax.random.key(0), variables(variant, 50))
  return open_round(term, slot, variables(variant, seed))


def evaluate(term, state, now):
  """The loss of a term, compiled whole: one by one its operations take long."""

  @jax.jit
  def loss(state, outputs, batch):
    seen = types.SimpleNamespace(
      outputs=types.SimpleNamespace(**outputs),
      batch=types.SimpleNamespace(**batch),
      task=now.task,
    )
    return term.loss({}, state, seen)

  return loss(state, vars(now.outputs), vars(now.batch))


def close(found, expected):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    found,
    expected,
  )


@pytest.mark.parametrize('variant', VARIANTS)
def test_averages_are_exact(variant):
  """W starts as the classifier first sent, and a round does not restart it."""
  term = component(variant, tau=0.25).client
  state = opened(term, variant, seed=0)
  assert state[1]
  expected = kernels(variant, 0)
  close(state[0], expected)
  for seed in (0, 20, 30):
    state = term.post_step(state, ctx(variant, seed))
    now = kernels(variant, seed)
    expected = {k: 0.75 * w + 0.25 * now[k] for k, w in expected.items()}
    close(state[0], expected)
  again = open_round(term, state, variables(variant, 40))
  close(again[0], expected)


def log_softmax(x):
  x = x - x.max(axis=1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def one_distillation(variant, x, by, classifiers, averages):
  """`mean KL + 0.25 sum_m CE_m` over the five real images, one at a time."""
  names, two = dns.DOMAINS[variant], variant == 'two_stream'
  divergences, entropies = [], {name: [] for name in names}
  for n in np.flatnonzero(VALID):
    own = names[MODALITIES[n] if two else 0]
    other = names[1 - MODALITIES[n] if two else 0]
    log_p = log_softmax(x[n : n + 1] @ classifiers[own])[0]
    log_a = log_softmax(by[n : n + 1] @ averages[other])[0]
    divergences.append((np.exp(log_p) * (log_p - log_a)).sum())
    entropies[own].append(-log_p[LABELS[n]])
  return np.mean(divergences) + 0.25 * sum(map(np.mean, entropies.values()))


@pytest.mark.parametrize('variant', VARIANTS)
def test_loss_is_its_definition(variant):
  """The classifiers have moved from what was first sent, and W with them."""
  term, now = component(variant, tau=0.25).client, ctx(variant, 20)
  found, metrics = evaluate(term, opened(term, variant, 0), now)
  first, classifiers = kernels(variant, 0), kernels(variant, 20)
  averages = {k: 0.75 * w + 0.25 * classifiers[k] for k, w in first.items()}
  z, shifted = array(11, B, D), array(12, B, D)
  pairs = ((z, z), (shifted, shifted))
  domain = MODALITIES
  if variant == 'one_stream':
    pairs, domain = ((z, shifted), (shifted, z)), 0 * MODALITIES
  dd = sum(
    one_distillation(variant, *pair, classifiers, averages) for pair in pairs
  )
  members = [(domain == m) & VALID for m in range(len(averages))]
  da = cross_modal.alignment(
    now.outputs.feature, now.outputs.extras['shifted'], jnp.asarray(members)
  )
  close(metrics, {'alignment': da, 'distillation': dd})
  close(found, 0.2 * da + dd)


@pytest.mark.parametrize('variant', VARIANTS)
def test_what_is_trained_and_what_is_not(variant):
  """Classifiers and features are, W is not; padding has no gradient."""
  term, now = component(variant).client, ctx(variant, 20)
  state = opened(term, variant, 0)

  def loss(averages, outputs):
    seen = types.SimpleNamespace(
      outputs=types.SimpleNamespace(**outputs), batch=now.batch, task=now.task
    )
    return evaluate(term, (averages, state[1]), seen)[0]

  of_w, of_outputs = jax.grad(loss, (0, 1))(state[0], vars(now.outputs))
  assert not any(np.any(g) for g in of_w.values())
  extras = of_outputs.pop('extras')
  assert all(np.any(g) for g in extras['domains'].values())
  for gradient in (*of_outputs.values(), extras['shifted']):
    assert np.isfinite(gradient).all() and np.any(gradient[:5])
    assert not np.any(gradient[5])


@pytest.mark.parametrize('modality', [0, 1])
def test_one_modality_in_a_batch_has_only_its_own_terms(modality):
  term = component('two_stream').client
  state, there = opened(term, 'two_stream'), MODALITIES == modality
  now = ctx('two_stream', valid=there)
  found, metrics = evaluate(term, state, now)
  assert np.isfinite(found)
  shifted = now.outputs.extras['shifted']
  own = cross_modal.mmd(
    now.outputs.feature / jnp.linalg.norm(now.outputs.feature, axis=1)[:, None],
    shifted / jnp.linalg.norm(shifted, axis=1)[:, None],
    jnp.asarray(there),
    jnp.asarray(there),
  )
  np.testing.assert_allclose(metrics['alignment'], 0.05 * own, rtol=1e-5)


@pytest.mark.parametrize('variant', VARIANTS)
def test_no_real_image_at_all_is_zero(variant):
  term = component(variant).client
  nobody = ctx(variant, valid=np.zeros(B, bool))
  found, _ = evaluate(term, opened(term, variant), nobody)
  assert found == 0


class Backbone(nn.Module):
  """Two convolutions and a shift."""

  @nn.compact
  def __call__(self, x, ctx):
    convolutions = convnet.ConvNet((4, 8), name='convolutions')
    x, _ = convolutions(x, ctx)
    shift = dns.HeterogeneousShift(name='hss_4')
    return shift(x, train=ctx.train, mask=ctx.mask)


@pytest.mark.slow
def test_it_trains_and_keeps_its_averages(config, clients, monkeypatch):
  def build(config, num_classes, changes):
    network = reid.ReIDNet(Backbone(), num_classes, 'gem', 'bnneck')
    return dns.DNS(network, num_classes)

  monkeypatch.setattr(networks, 'build', build)
  config = toy.replaced(config, {'fraction': 0.5})
  clients = [
    c._replace(modalities=(np.arange(c.num_images) % 2).astype(np.int32))
    for c in clients
  ]
  arguments = {'fedpav': {'shared': r'(?!params/(classifier|domain_))'}}
  components = compose.load(('fedpav', 'dns'), arguments, algorithms)
  executor, start, _ = toy.make_rounds(config, clients, components)
  server, states, logs = toy.run(executor, start, 1)
  assert all(
    np.isfinite(x).all() for x in jax.tree.leaves((server.shared, states))
  )
  assert logs[0]['metrics']['dns_alignment'] > 0
  averages, started = states.states['dns']
  drawn = np.isin(np.arange(len(clients)), logs[0]['clients'])
  np.testing.assert_array_equal(started, drawn)
  for name, average in averages.items():
    now = states.personal[f'params/domain_{name}/kernel']
    moved = np.abs(np.asarray(now) - average).max(axis=(1, 2)) > 0
    np.testing.assert_array_equal(moved, drawn)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'variant': 'three_stream'}, 'three_stream'),
    ({'variant': 'one_stream', 'tau': 1.5}, 'tau'),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    component(**arguments)
