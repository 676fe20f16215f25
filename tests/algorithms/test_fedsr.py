import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax.algorithms import fedpav, fedsr
from fedreid_jax.core import trees
from fedreid_jax.models import networks, probabilistic
from fedreid_jax.models.probabilistic import GAUSSIANS, Gaussians

LABELS = jnp.array([2, 0, 2, 1])
VALID = jnp.array([True, True, True, False])


def gaussians(seed=0):
  rng = np.random.default_rng(seed)
  mean, own = rng.normal(size=(4, 5)), rng.normal(size=(3, 5))
  std, own_std = rng.uniform(0.2, 2, (4, 5)), rng.uniform(0.2, 2, (3, 5))
  arrays = (mean, std, own, own_std)
  return Gaussians(*(jnp.asarray(x, jnp.float32) for x in arrays))


def context(found, embedding, valid=VALID):
  extras = {} if found is None else {GAUSSIANS: found}
  return types.SimpleNamespace(
    outputs=types.SimpleNamespace(embedding=embedding, extras=extras),
    batch=types.SimpleNamespace(labels=LABELS, valid=valid),
  )


def loss(found, embedding, **options):
  made = fedsr.make(fedsr.Options(**options))
  return made.client.loss({}, (), context(found, embedding))


def test_a_worked_divergence():
  """N(1, 2^2) from N(0, 1): log(1 / 2) + (4 + 1) / 2 - 1 / 2."""
  one = jnp.ones((1, 1))
  found = fedsr.divergence(
    Gaussians(one, 2 * one, 0 * one, one), jnp.array([0])
  )
  np.testing.assert_allclose(found, [2.0 - np.log(2)], rtol=1e-6)


def test_divergence_equals_that_of_pytorch():
  torch = pytest.importorskip('torch', reason='pip install torch')
  given, labels = gaussians(), LABELS.tolist()
  mean, std, own, own_std = (torch.tensor(np.array(x)) for x in given)
  normal = torch.distributions.Normal
  wanted = torch.distributions.kl_divergence(
    normal(mean, std), normal(own[labels], own_std[labels])
  ).sum(1)
  np.testing.assert_allclose(fedsr.divergence(given, LABELS), wanted, rtol=1e-5)
  # The distribution of another identity has another divergence.
  other = fedsr.divergence(given, LABELS[::-1])
  assert abs(other - wanted.numpy()).max() > 0.1


@pytest.mark.parametrize('norm', ['squared', 'euclidean'])
def test_the_loss_is_the_weighted_sum_over_valid_images(norm):
  found = gaussians()
  z = jnp.asarray(np.random.default_rng(1).normal(size=(4, 5)), jnp.float32)
  total, metrics = loss(found, z, l2r=0.3, cmi=0.2, norm=norm)
  squares = (np.asarray(z[:3]) ** 2).sum(1)
  size = squares if norm == 'squared' else np.sqrt(squares)
  kl = np.asarray(fedsr.divergence(found, LABELS))[:3]
  np.testing.assert_allclose(metrics['l2r'], size.mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics['cmi'], kl.mean(), rtol=1e-5)
  wanted = 0.3 * size.mean() + 0.2 * kl.mean()
  np.testing.assert_allclose(total, wanted, rtol=1e-5)


@pytest.fixture(scope='module')
def model():
  config = toy.replaced(toy.toy_config(), {'model.neck': 'none'})
  changed = networks.build(config.model, 3, None, [fedsr.make().network])
  made = networks.wrap(changed, toy.IMAGE_SHAPE)
  plain = networks.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  return made, plain, jax.jit(made.init)(jax.random.key(0))


def images(num=6):
  values = np.random.default_rng(0).normal(size=(num, *toy.IMAGE_SHAPE))
  return jnp.asarray(values, jnp.float32)


def test_a_test_is_that_of_the_network_without_noise(model):
  made, plain, variables = model
  own = {n: x for n, x in variables.items() if 'gaussian' not in n}
  found, expected = jax.jit(
    lambda x: (
      made.apply(variables, x, train=False)[0],
      plain.apply(own, x, train=False)[0],
    )
  )(images())
  assert found.extras == {}
  for a, b in zip(found[:3], expected[:3], strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_embedding_of_training_is_a_sample(model):
  made, plain, variables = model

  @jax.jit
  def train(key):
    return made.apply(variables, images(), train=True, key=key)[0]

  outputs = jax.vmap(train)(jax.random.split(jax.random.key(1), 400))
  own = {n: x for n, x in variables.items() if 'gaussian' not in n}
  mean = plain.apply(own, images(), train=True)[0].embedding
  found = jax.tree.map(lambda x: x[0], outputs.extras[GAUSSIANS])
  np.testing.assert_allclose(found.mean, mean, atol=1e-5)
  # sigma = softplus(W mu + b), of the layer that is called spread.
  layer = {n.rsplit('/')[-1]: x for n, x in variables.items() if 'spread' in n}
  raw = np.asarray(mean) @ layer['kernel'] + layer['bias']
  np.testing.assert_allclose(found.std, np.log1p(np.exp(raw)), rtol=1e-5)
  z = np.asarray(outputs.embedding)
  tolerance = 4 * np.asarray(found.std).max() / 20
  np.testing.assert_allclose(z.mean(0), mean, atol=tolerance)
  np.testing.assert_allclose(z.std(0) / found.std, 1, atol=0.2)
  # Scores are those of the sample, not of the mean.
  scores = z[0] @ variables['params/classifier/kernel']
  np.testing.assert_allclose(outputs.logits[0], scores, atol=1e-5)
  # Without a key there is no noise.
  still, _ = made.apply(variables, images(), train=True)
  np.testing.assert_allclose(still.embedding, mean, atol=1e-5)


def test_distributions_of_identities_are_personal(model):
  made, _, variables = model
  shared, personal = trees.split(variables, fedpav.Options().shared)
  names = {f'params/gaussian/classifier/{n}' for n in ('mean', 'raw_std')}
  assert names <= personal.keys() and not names & shared.keys()
  assert 'params/gaussian/spread/kernel' in shared
  head = probabilistic.IdentityGaussians(3)
  mean, std = head.apply(head.init(jax.random.key(0), 4), 4)
  assert not mean.any()
  np.testing.assert_allclose(std, np.log1p(np.e), rtol=1e-6)
