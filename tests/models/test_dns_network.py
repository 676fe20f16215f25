import math

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.models import dns, networks, reid, resnet

SHAPE, CLASSES = (32, 16, 3), 5
MODALITIES = jnp.array([0, 1, 1, 0])


def build(variant, dropout=0.01):
  private = dns.MODALITY_SPECIFIC_STAGES if variant == 'two_stream' else 0
  backbone = resnet.ResNet(
    'resnet18',
    1 / 16,
    False,
    1,
    modality_specific_stages=private,
    plugins=(dns.plugins(),),
  )
  network = reid.ReIDNet(backbone, CLASSES, 'gem', 'bnneck')
  return dns.DNS(network, CLASSES, dns.DOMAINS[variant], dropout)


def images(num=4):
  values = np.random.default_rng(0).normal(size=(num, *SHAPE))
  return np.float32(values)


@pytest.fixture(params=dns.DOMAINS, name='variant')
def _variant(request, monkeypatch):
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))
  return request.param


@pytest.fixture(name='network')
def _network(variant):
  """(variant, model, variables), drawn here: to compile `init` takes longer."""
  model = networks.wrap(build(variant), SHAPE)
  rng = np.random.default_rng(1)
  variables = {
    name: np.float32(
      0.2 * rng.normal(size=leaf.shape) + name.endswith(('scale', 'var'))
    )
    for name, leaf in jax.eval_shape(model.init, jax.random.key(0)).items()
  }
  return variant, model, variables


def test_names_of_leaves(network):
  variant, _, variables = network
  roots = {name.split('/')[1] for name in variables}
  domains = {f'domain_{name}' for name in dns.DOMAINS[variant]}
  assert roots == {'backbone', 'neck', 'classifier', 'css'} | domains
  own = {n for n in variables if '/infrared_' in n}
  private = ('conv1', 'bn1', 'layer1', 'layer2')
  assert bool(own) == (variant == 'two_stream')
  assert all(n.split('infrared_')[1].startswith(private) for n in own)
  shifts = [n for n in variables if n.endswith('reduce/kernel')]
  assert [variables[n].shape[2:] for n in sorted(shifts)] == [(16, 8), (32, 8)]


def test_shapes_in_training_and_test(network):
  variant, model, variables = network

  def run(train):
    return jax.eval_shape(
      lambda v, x: model.apply(
        v,
        x,
        train=train,
        key=jax.random.key(1),
        num_identities=3,
        modalities=MODALITIES,
        labels=MODALITIES,
      )[0],
      variables,
      images(),
    )

  for outputs in (run(True), run(False)):
    assert outputs.feature.shape == outputs.embedding.shape == (4, 32)
    assert outputs.logits.shape == (4, CLASSES)
  assert run(False).extras == {}
  extras = run(True).extras
  assert extras['shifted'].shape == (4, 32)
  assert {n: k.shape for n, k in extras['domains'].items()} == dict.fromkeys(
    dns.DOMAINS[variant], (32, CLASSES)
  )


@pytest.mark.slow
def test_gradients_are_finite_and_padded_rows_change_no_bit(network):
  """Rows that do not count may hold anything, other domains too."""
  variant, model, variables = network
  mask = jnp.arange(4) < 3

  @jax.jit
  def step(batch, modalities):
    def loss(params):
      outputs, batch_stats = model.apply(
        variables | params,
        batch,
        train=True,
        mask=mask,
        modalities=modalities,
      )
      scores = [outputs.logits]
      for x in (outputs.embedding, outputs.extras['shifted']):
        scores += [x @ k for k in outputs.extras['domains'].values()]
      real = jnp.where(mask[:, None], jnp.concatenate(scores, axis=1), 0.0)
      return jnp.square(real - 1).sum(), (real, batch_stats)

    params = {n: x for n, x in variables.items() if n.startswith('params/')}
    return jax.grad(loss, has_aux=True)(params)

  clean = jax.device_get(step(images(), MODALITIES))
  for name, gradient in clean[0].items():
    assert np.isfinite(gradient).all() and np.any(gradient), name
  other = images()
  other[3] = np.nan
  poisoned = step(other, MODALITIES.at[3].set(1))
  jax.tree.map(np.testing.assert_array_equal, clean, poisoned)


def test_without_a_key_training_has_no_dropout():
  shift = dns.CommonShift(0.5)
  x = images()[:, 0, 0]
  variables = compiled.init(shift, x, train=False)

  def run(train, rngs):
    arrays = {'rngs': rngs}
    return compiled.apply(shift, variables, x, arrays=arrays, train=train)

  plain = run(False, {})
  np.testing.assert_array_equal(run(True, {}), plain)
  assert (run(True, {'dropout': jax.random.key(1)}) != plain).any()


def softmax(x, axis):
  e = np.exp(x - x.max(axis, keepdims=True))
  return e / e.sum(axis, keepdims=True)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def test_heterogeneous_shift_is_its_definition():
  """The bias map is formed whole here, and the running statistics are 0, 1."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 3, 2, 4))
  module = dns.HeterogeneousShift()
  variables = compiled.init(module, x, seed=1, train=False)
  kernel = {
    n: np.asarray(variables['params'][n]['kernel'][0, 0], np.float64)
    for n in ('reduce', 'rows', 'columns')
  }
  assert kernel['reduce'].shape == (4, 8)
  over_rows = softmax(x.max(axis=2), axis=1)
  over_columns = softmax(x.max(axis=1), axis=1)
  shifted = x + over_rows[:, :, None] * over_columns[:, None]
  pooled = np.concatenate([shifted.mean(axis=2), shifted.mean(axis=1)], axis=1)
  y = pooled @ kernel['reduce'] / np.sqrt(1 + 1e-5)
  y = y * np.clip(y + 3, 0, 6) / 6
  rows = sigmoid(y[:, :3] @ kernel['rows'])
  columns = sigmoid(y[:, 3:] @ kernel['columns'])
  expected = x * rows[:, :, None] * columns[:, None]
  found, extras = compiled.apply(module, variables, x, train=False)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  np.testing.assert_allclose(
    extras['average'], expected.mean((1, 2)), atol=1e-5
  )


def test_common_shift_is_its_definition():
  x = np.random.default_rng(0).normal(size=(3, 6))
  module = dns.CommonShift(0.1)
  variables = compiled.init(module, x, seed=1, train=False)
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), variables)
  hidden, out = (params['params'][n]['kernel'] for n in ('hidden', 'shifted'))
  assert hidden.shape == (6, 24)
  y = x + softmax(x, axis=1)
  y = y - y.mean(axis=1, keepdims=True)
  y = y / np.sqrt((y * y).mean(axis=1, keepdims=True) + 1e-5) @ hidden
  y = y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2
  np.testing.assert_allclose(
    compiled.apply(module, variables, x, train=False), y @ out, atol=1e-5
  )
