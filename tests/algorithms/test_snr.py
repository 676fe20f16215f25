import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.losses import identity, style
from fedreid_jax.models.layers import inserted as style_model
from fedreid_jax.round import compose

LABELS = np.array([0, 1, 0, 1, 2, 2])
VALID = np.array([True] * 5 + [False])
# Nor may the classifiers after the stages travel: identities differ.
SHARED = r'(?!params/(backbone/snr_\d/)?classifier/)'


def components(**arguments):
  return compose.load(
    ('fedpav', 'snr'),
    {'fedpav': {'shared': SHARED}, 'snr': arguments},
    algorithms,
  )


def features(stage, classes=None):
  rng = np.random.default_rng(stage)
  averages = jnp.asarray(rng.normal(size=(3, 6, 4)), jnp.float32)
  logits = None
  if classes:
    logits = jnp.asarray(rng.normal(size=(3, 6, classes)), jnp.float32)
  return style_model.StyleFeatures(*averages, logits)


def context(stages, num_identities=3):
  return types.SimpleNamespace(
    outputs=types.SimpleNamespace(
      extras={f'snr_{i + 1}': stage for i, stage in enumerate(stages)}
      | {'else': 0}
    ),
    batch=types.SimpleNamespace(
      labels=jnp.asarray(LABELS), valid=jnp.asarray(VALID)
    ),
    task=types.SimpleNamespace(num_identities=num_identities),
    key=jax.random.key(7),
  )


def loss(stages, **arguments):
  term = components(**arguments)[-1].client
  return jax.jit(lambda: term.loss({}, (), context(stages)))()


@pytest.mark.parametrize(
  'arguments, num, weights, scale',
  [
    ({}, 4, (0.1, 0.1, 0.5, 0.5), 0.5),
    ({}, 2, (0.5, 0.5), 0.5),
    ({'weights': (1.0, 0.0, 3.0), 'dist_scale': 1.0}, 3, (1.0, 0.0, 3.0), 1.0),
  ],
)
def test_distance_form_is_the_weighted_sum(arguments, num, weights, scale):
  stages = [features(i) for i in range(num)]
  total, metrics = loss(stages, **arguments)
  expected = 0.0
  for i, (stage, weight) in enumerate(zip(stages, weights, strict=True)):
    value = style.distance(
      jax.random.fold_in(jax.random.key(7), i),
      *stage[:3],
      jnp.asarray(LABELS),
      jnp.asarray(VALID),
      scale,
    )
    np.testing.assert_allclose(metrics[f'stage{i + 1}'], value, rtol=1e-5)
    expected += weight * value
  assert len(metrics) == num
  np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_entropy_form_leaves_out_padded_identities():
  stages = [features(i, classes=5) for i in range(4)]
  total, _ = loss(stages, loss='entropy')
  expected = 0.0
  for i, weight in enumerate((0.01, 0.01, 0.01, 0.0)):
    own = stages[i].logits[..., :3]
    expected += weight * style.entropy(own, jnp.asarray(VALID))
    if i == 2:
      expected += 0.01 * identity.cross_entropy(
        own[1], jnp.asarray(LABELS), jnp.asarray(VALID)
      )
  np.testing.assert_allclose(total, expected, rtol=1e-5)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'loss': 'cosine'}, 'distance'),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    components(**arguments)


@pytest.mark.parametrize(
  'num, arguments, message',
  [
    (2, {'weights': (0.1,)}, '1 weights for 2 stages'),
    (5, {}, '4 weights for 5 stages'),
  ],
)
def test_a_network_that_does_not_fit_is_refused(num, arguments, message):
  with pytest.raises(errors.ConfigError, match=message):
    loss([features(i) for i in range(num)], **arguments)


def run(config, clients, chosen):
  """One round; returns (variables before it, server, states, metrics)."""
  config = toy.replaced(config, {'local.sampler': 'pk'})
  executor, variables, _ = toy.make_rounds(config, clients[:2], chosen)
  server, states, logs = toy.run(executor, variables, 1)
  for tree in (server, states):
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))
  return variables, server, states, logs[0]['metrics']


@pytest.mark.slow
def test_modules_are_trained_and_travel(config, clients):
  variables, server, _, metrics = run(config, clients, components())
  names = [name for name in variables if '/snr_' in name]
  assert len(names) == 12
  for name in names:
    assert (np.asarray(server.shared[name][0]) != variables[name]).any(), name
  assert 0 < metrics['snr_stage1'] != metrics['snr_stage2']


@pytest.mark.slow
def test_classifiers_are_trained_and_stay(config, clients):
  chosen = components(
    loss='entropy', weights=(1.0, 1.0), identity_weights=(1.0, 1.0)
  )
  variables, server, states, metrics = run(config, clients, chosen)
  names = [n for n in variables if '/snr_' in n and '/classifier/' in n]
  assert len(names) == 4
  assert not set(names) & set(server.shared)
  for name in names:
    own = states.personal[name]
    assert (np.asarray(own[0]) != np.asarray(own[1])).any(), name
  # Twice log 2 is the loss where all entropies are equal.
  assert metrics['snr_stage2'] == pytest.approx(2 * np.log(2), rel=0.2)
