import math

import jax.numpy as jnp
import numpy as np
import pytest
import toy
import toy_run

from fedreid_jax import errors
from fedreid_jax.apps.audit import attacks, inversion
from fedreid_jax.apps.audit.attacks import Asked
from fedreid_jax.apps.audit.inversion import Reconstructed, Search, Weights

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
    monkeypatch.setattr(inversion, name, recorded(getattr(inversion, name)))
  none = np.zeros((1, *toy.IMAGE_SHAPE), np.uint8)
  monkeypatch.setattr(
    inversion, 'reconstruct', lambda *_: Reconstructed(none, none, {})
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


PERSONS = np.arange(6)
RIGHT = Asked(PERSONS, PERSONS)
WRONG = Asked(PERSONS, np.roll(PERSONS, 1))
CONTROLS = {'real': RIGHT, 'noise': WRONG}


def test_shares_and_intervals():
  half = Asked(np.arange(4), np.asarray([0, 1, 3, 2]))
  assert half.rank1() == 50
  # Clopper-Pearson for 2 of 4.
  np.testing.assert_allclose(half.interval(), (6.76, 93.24), atol=0.01)
  assert RIGHT.interval()[1] == 100
  np.testing.assert_allclose(RIGHT.interval()[0], 100 * 0.025 ** (1 / 6))


def test_permuted_answers_have_the_p_value_of_all_orders():
  """One of 6! orders meets six different persons, one of 3! meets three."""
  assert RIGHT.p_value() == pytest.approx(1 / math.factorial(6), abs=1e-3)
  three = Asked(np.arange(3), np.arange(3))
  assert three.p_value() == pytest.approx(1 / 6, abs=0.02)
  assert WRONG.p_value() == 1


def test_the_controls_reject_as_often_as_they_say(monkeypatch):
  """Random answers about clients of different sizes, 100 times."""
  monkeypatch.setattr(attacks, 'PERMUTATIONS', 299)
  rng = np.random.default_rng(1)
  wanted = np.repeat([0, 1, 2], [20, 10, 5])
  found = rng.choice(3, (100, 35), p=[0.7, 0.2, 0.1])
  p = np.asarray([Asked(wanted, one).p_value() for one in found])
  assert 0.01 < (p < 0.1).mean() < 0.2 and (p < 0.01).mean() < 0.05


def test_one_answer_to_every_query_is_no_success():
  """A judge that names a large domain always is often right, by chance."""
  wanted = np.asarray([0] * 40 + [1] * 10)
  one = Asked(wanted, np.zeros(50, int))
  assert one.rank1() == 80 and one.p_value() == 1
  assert Asked(wanted, wanted).p_value() < 0.001


@pytest.mark.parametrize(
  'person, domain, message',
  [
    ({}, None, ''),
    ({'noise': RIGHT}, None, 'noise leads to the person'),
    ({'real': WRONG}, None, 'real does not lead to the person'),
    ({'real': None}, None, 'real images of two persons cannot be asked'),
    # The same answer to every query.
    ({'real': Asked(PERSONS, 0 * PERSONS)}, None, 'real does not lead'),
    ({'real feature': WRONG}, None, 'real feature does not lead to the person'),
    # With several domains the features must lead to the domain only.
    ({'real feature': WRONG}, {'real feature': RIGHT}, ''),
    ({}, {'real feature': WRONG}, 'real feature does not lead to the domain'),
    ({}, {'permuted DFS': RIGHT}, 'permuted DFS leads to the domain'),
    ({}, {'permuted DFS': WRONG, 'DFS': RIGHT}, ''),
    ({'identity means': RIGHT}, None, ''),
    ({'identity means': WRONG}, None, ''),
    # All queries are of one domain: nothing can be asked.
    ({}, {'real': Asked(np.zeros(6, int), 1 + PERSONS)}, ''),
    # p is 1 / 24 for four right answers and 1 / 6 for three.
    ({'real': Asked(PERSONS[:4], PERSONS[:4])}, None, ''),
    ({'real': Asked(PERSONS[:3], PERSONS[:3])}, None, 'real does not lead'),
    ({'noise': Asked(PERSONS[:4], PERSONS[:4])}, None, ''),
    ({'noise': Asked(PERSONS[:5], PERSONS[:5])}, None, 'noise leads to'),
  ],
)
def test_controls(person, domain, message):
  of = {n: one for n, one in (CONTROLS | person).items() if one is not None}
  asked = {'person': of} | ({} if domain is None else {'domain': domain})
  found = attacks.failed(asked)
  assert (message in found[0] and len(found) == 1) if message else not found
