import jax.numpy as jnp
import numpy as np
import pytest
import toy
import toy_run

from fedreid_jax import errors
from fedreid_jax.apps.audit.inversion import attacks, goals
from fedreid_jax.apps.audit.inversion.inversion import Weights
from fedreid_jax.apps.audit.inversion.reconstruction import Reconstructed
from fedreid_jax.apps.audit.inversion.search import Search

ONCE = Weights(), Search((0, 1))


@pytest.fixture(scope='module')
def run():
  own = toy_run.toy_run()
  own.config.dfh.space = 'b'
  return own


@pytest.fixture
def asked(monkeypatch):
  """The arguments of the goals; nothing is optimised."""
  calls = []

  def recorded(make):
    def call(*args):
      calls.append((make.__name__, *args))
      return make(*args)

    return call

  for name in ('identities', 'features'):
    monkeypatch.setattr(goals, name, recorded(getattr(goals, name)))
  none = np.zeros((1, *toy.IMAGE_SHAPE), np.uint8)
  monkeypatch.setattr(
    attacks, 'reconstruct', lambda *_: Reconstructed(none, none, {})
  )
  return calls


def test_images_of_identities(run):
  found = attacks.identities(
    run, run.client('birch'), 2, Weights(), Search((0, 8))
  )
  images, clients, labels = found['identity means']
  np.testing.assert_array_equal(clients, [1, 1])  # ash, birch, ...
  assert images.photos.shape == (2, *toy.IMAGE_SHAPE)
  assert images.photos.dtype == np.uint8
  np.testing.assert_array_equal(labels, [0, 1])
  assert images.losses['after']['loss'] < images.losses['before']['loss']


def test_identities_a_client_does_not_have_are_left_out(run, asked):
  client = run.client('birch')
  client = client._replace(labels=client.labels + 2, num_identities=9)
  found = attacks.identities(run, client, 99, *ONCE)
  np.testing.assert_array_equal(found['identity means'].labels, [2, 3, 4])
  _, means, labels, space, _ = asked[0]
  assert means.shape == (3, 8) and list(labels) == [0, 1, 2]
  assert space == 'embedding'


def test_features_of_real_images_are_the_control_of_identities(run, asked):
  client = run.client('birch')
  client = client._replace(labels=client.labels + 2, num_identities=9)
  found = attacks.identities(run, client, 2, *ONCE)
  assert list(found) == ['identity means', 'real feature']
  control = found['real feature']
  np.testing.assert_array_equal(control.labels, [2, 3])
  np.testing.assert_array_equal(control.clients, [1, 1])
  name, wanted, space = asked[1]
  own = run.features(client.images()[[0, 1]], 'embedding')
  assert (name, space) == ('features', 'embedding')
  np.testing.assert_allclose(wanted, own, atol=1e-5)


def moved(run):
  """A run with another model."""
  variables = {n: np.asarray(x) * 2 for n, x in run.variables.items()}
  return run._replace(variables=variables)


def test_another_model_may_measure_the_means(run, asked):
  client, other = run.client('birch'), moved(run)
  attacks.identities(run, client, 3, *ONCE, measured_by=other)
  features = other.features(client.images(), 'embedding')
  means = [features[client.labels == k].mean(0) for k in range(3)]
  np.testing.assert_allclose(asked[0][1], means, atol=1e-5)
  own = run.moments(client, 'embedding').mean
  assert abs(np.asarray(own) - means).max() > 0.01


def test_means_of_another_size_are_refused(run):
  other = run._replace(extractor=lambda **_: lambda *_: np.zeros((14, 5)))
  with pytest.raises(errors.ConfigError, match='5 features.*has 8'):
    attacks.identities(run, run.client('birch'), 3, *ONCE, measured_by=other)


def test_statistics_and_their_controls(run, asked):
  kept = np.random.default_rng(0).uniform(1, 2, (4, 4, 8)).astype(np.float32)
  run = run._replace(states={'dfh': kept})
  found = attacks.statistics(run, 2, *ONCE)
  assert list(found) == ['DFS', 'permuted DFS', 'real feature']
  assert [a.labels is None for a in found.values()] == [True, True, False]
  sent, permuted, real = (call[1] for call in asked)
  assert all(call[2] == 'embedding' for call in asked)
  every = jnp.asarray(np.repeat(kept, 2, axis=0))
  np.testing.assert_array_equal(sent, attacks.sampled(every, 'clamp', 0))
  # The same values, but no sample or channel has its own.
  np.testing.assert_array_equal(np.sort(sent, None), np.sort(permuted, None))
  assert not {*map(tuple, np.sort(sent, 1))} & {
    *map(tuple, np.sort(permuted, 1))
  }
  for attempt in found.values():
    np.testing.assert_array_equal(attempt.clients, [0, 0, 1, 1, 2, 2, 3, 3])
  labels = found['real feature'].labels
  for k, (owner, label) in enumerate(zip(attempt.clients, labels, strict=True)):
    client = run.federation.clients[owner]
    row = np.flatnonzero(client.labels == label)[0]
    own = run.features(client.images()[[row]], 'embedding')[0]
    np.testing.assert_allclose(real[k], own, atol=1e-5)


def test_a_client_with_fewer_persons_than_samples(run, asked):
  found = attacks.statistics(run, 4, *ONCE)
  assert len(found['DFS'].clients) == 16 and len(asked[0][1]) == 16
  persons = [len(np.unique(c.labels)) for c in run.federation.clients]
  expected = np.repeat(np.arange(4), np.minimum(persons, 4))
  np.testing.assert_array_equal(found['real feature'].clients, expected)
  assert len(expected) < 16


def test_sampled_features_have_the_moments_of_both_gaussians():
  """Of M ~ N(3, 4), V ~ N(9, 0.01), f = M + sqrt(V) e: mean 3, variance 13."""
  dfs = np.zeros((20000, 4, 2), np.float32)
  dfs[:, :, 0] = 3, 4, 9, 0.01
  dfs[:, 0, 1] = 5  # nothing varies
  found = attacks.sampled(jnp.asarray(dfs), 'clamp', 0)
  np.testing.assert_allclose(found[:, 0].mean(), 3, atol=0.1)
  np.testing.assert_allclose(found[:, 0].var(), 13, rtol=0.04)
  np.testing.assert_allclose(found[:, 1], 5, atol=0.01)


@pytest.mark.slow
def test_the_features_of_reconstructed_images_come_closer(run):
  found = attacks.statistics(run, 2, Weights(), Search((0, 20)))
  for attempt in found.values():
    losses = attempt.images.losses
    assert len(attempt.images.photos) == 8
    assert losses['after']['feature'] < losses['before']['feature']


def test_pooling_of_one_resolution_is_refused(run):
  config = run.config.copy_and_resolve_references()
  config.model.pool = 'flatten'
  with pytest.raises(errors.ConfigError, match='one resolution'):
    attacks.identities(
      run._replace(config=config), run.client(''), 2, Weights(), Search((1, 1))
    )
