import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
import toy
import toy_run
from drawn import written
from matplotlib import colors

from fedreid_jax import errors
from fedreid_jax.apps.audit import attacks, inversion
from fedreid_jax.apps.audit.attacks import Asked, Attempt
from fedreid_jax.apps.audit.inversion import Reconstructed, Search, Weights
from fedreid_jax.figures import canvas
from fedreid_jax.losses import hallucination

CLAMPED = functools.partial(hallucination.draw, negative_variance='clamp')
ONCE = Weights(), Search((0, 1))


@pytest.fixture(scope='module')
def run():
  own = toy_run.toy_run()
  return own._replace(config=toy.replaced(own.config, {'dfh.space': 'b'}))


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


@pytest.mark.slow
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
  np.testing.assert_array_equal(sent, attacks.sampled(every, CLAMPED, 0))
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
  found = attacks.sampled(jnp.asarray(dfs), CLAMPED, 0)
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
  config = toy.replaced(run.config, {'model.pool': 'flatten'})
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


def attempt(photos, clients, labels=None):
  """Photos as if they were reconstructed from black noise."""
  images = Reconstructed(photos, np.zeros_like(photos), {})
  return Attempt(images, np.asarray(clients), labels)


def only(run, *clients):
  """The run with other clients."""
  return run._replace(federation=run.federation._replace(clients=clients))


def test_real_images_are_found_and_noise_is_not(run):
  client = run.client('birch')  # identities by turns, 5, 5 and 4 images
  rows = np.asarray([3, 4, 5])
  made = {'means': attempt(client.images()[rows], [1] * 3, np.arange(3))}
  found = attacks.judge(made, run, run)['person']
  # Rows count all clients' images, of which nine are before birch's.
  np.testing.assert_array_equal(found.nearest['means'][:, 0], rows + 9)
  np.testing.assert_array_equal(
    np.sort(found.nearest['means']), np.tile(np.arange(9, 23), (3, 1))
  )
  assert list(found.rank1()) == ['means', 'noise', 'real', 'chance']
  assert found.rank1()['means'] == 100
  np.testing.assert_allclose(found.rank1()['chance'], 100 / 3)
  np.testing.assert_allclose(found.rank1()['noise'], 100 / 3)  # all alike
  features = run.ranked(client.images())
  gaps = np.linalg.norm(features[:3, None] - features[None, 3:], axis=2)
  answers = client.labels[3:][gaps.argmin(1)]
  right = answers == [0, 1, 2]
  persons = found.asked['real'].wanted  # of all clients: ash has nine
  np.testing.assert_array_equal(persons, found.asked['means'].wanted)
  np.testing.assert_array_equal(found.asked['real'].found - persons[0], answers)
  assert len(np.unique(found.asked['noise'].found)) == 1
  np.testing.assert_array_equal(found.asked['noise'].wanted, persons)
  np.testing.assert_allclose(found.rank1()['real'], 100 * right.mean())


def test_domains_and_persons_of_several_clients(run):
  """One of four DFS images of birch is ash's; persons differ by client."""
  birch, ash = run.client('birch'), run.client('ash')
  photos = np.concatenate([birch.images()[:3], ash.images()[:1]])
  real = np.concatenate([birch.images()[:2], ash.images()[[0]]])
  made = {
    'DFS': attempt(photos, [1] * 4),
    # The last one is of person 0 of ash and intends person 0 of birch.
    'real feature': attempt(real, [1] * 3, np.asarray([0, 1, 0])),
  }
  found = attacks.judge(made, run, run)
  assert set(found['person'].nearest) == {'real feature'}
  domain = found['domain']
  assert domain.rank1()['DFS'] == 75
  np.testing.assert_allclose(domain.rank1()['real feature'], 200 / 3)
  assert domain.nearest['DFS'].shape == (4, 9 + 14 + 5 + 11)
  np.testing.assert_array_equal(domain.nearest['DFS'][:, 0], [9, 10, 11, 0])
  np.testing.assert_allclose(domain.rank1()['chance'], 100 * 14 / 39)
  features = np.concatenate(
    [run.ranked(c.images()) for c in run.federation.clients]
  )
  gaps = np.linalg.norm(features[9:11, None] - features[None], axis=2)
  gaps[:, 9:11] = np.inf  # real images do not find one another
  right = (gaps.argmin(1) >= 9) & (gaps.argmin(1) < 23)
  np.testing.assert_allclose(domain.rank1()['real'], 100 * right.mean())
  both = {
    'real feature': attempt(real, [1, 1, 0], np.asarray([0, 1, 0])),
  }
  person = attacks.judge(both, run, run)['person']
  assert person.nearest['real feature'].shape == (3, 9 + 14)
  assert person.rank1()['real feature'] == 100
  shares = [
    np.mean(np.concatenate([birch.labels, ash.labels + 9]) == k)
    for k in (0, 1, 9)
  ]
  np.testing.assert_allclose(person.rank1()['chance'], 100 * np.mean(shares))


def test_one_client_has_no_question_of_domains(run):
  client = run.client('birch')
  made = {'means': attempt(client.images()[:3], [0] * 3, np.arange(3))}
  assert set(attacks.judge(made, only(run, client), run)) == {'person'}


def test_persons_of_one_image_are_no_real_queries(run):
  client = run.client('birch')
  client = client._replace(
    labels=np.arange(14, dtype=np.int32), num_identities=14
  )
  made = {'means': attempt(client.images()[:3], [0] * 3, np.arange(3))}
  rank1 = attacks.judge(made, only(run, client), run)['person'].rank1()
  assert 'real' not in rank1
  np.testing.assert_allclose(rank1['chance'], 100 / 14)


def test_features_that_are_no_numbers_are_refused(run):
  client = run.client('birch')
  made = {'means': attempt(client.images()[:3], [0] * 3, np.arange(3))}
  lost = run._replace(
    variables={n: x * np.nan for n, x in run.variables.items()}
  )
  with pytest.raises(errors.DataError, match='NaN distance'):
    attacks.judge(made, only(run, client), lost)


def test_a_judge_of_other_images_is_refused(run):
  made = {'means': attempt(run.client('').images()[:1], [0], np.arange(1))}
  small = run.federation._replace(image_shape=(8, 4, 1))
  with pytest.raises(errors.ConfigError, match='same size'):
    attacks.judge(made, run, run._replace(federation=small))


@pytest.mark.parametrize(
  'mine, theirs, same',
  [
    ({}, {}, True),
    ({}, {'seed': 1}, False),
    ({'pretrained': 'a'}, {'pretrained': 'a', 'seed': 1}, True),
    ({'pretrained': 'a'}, {'pretrained': 'b'}, False),
    ({'pretrained': 'a'}, {}, False),
    ({'pretrained': 'a', 'start_from': 'x'}, {'pretrained': 'a'}, False),
    ({'start_from': 'x'}, {'start_from': 'x', 'seed': 1}, True),
  ],
)
def test_same_initial_weights(run, mine, theirs, same):
  def made(seed=0, pretrained='', start_from=''):
    config = toy.replaced(
      run.config,
      {'seed': seed, 'start_from': start_from, 'model.pretrained': pretrained},
    )
    return run._replace(config=config)

  assert attacks.same_initial_weights(made(**mine), made(**theirs)) is same


def test_same_model(run):
  assert attacks.same_model(run, run)
  moved = {name: np.asarray(x) + 1 for name, x in run.variables.items()}
  assert not attacks.same_model(run, run._replace(variables=moved))


def colour(axes):
  return colors.to_hex(axes.spines['left'].get_edgecolor()).upper()


def test_reconstructed_sheet_of_identities(run, tmp_path):
  photos = run.client('birch').images()
  made = {'identity means': attempt(photos[:3], [1] * 3, np.arange(3))}
  answers = attacks.judge(made, run, run)
  figure = attacks.draw(made, answers, run, 'title')
  assert len(figure.axes) == 2 * 8  # two rows of two, the last place empty
  assert sum(bool(axes.get_images()) for axes in figure.axes) == 12
  captions = [axes.get_xlabel() for axes in figure.axes]
  assert captions[:3] == ['birch 0'] * 3 and captions[4:7] == ['birch 1'] * 3
  assert colour(figure.axes[2]) == canvas.RIGHT
  np.testing.assert_array_equal(
    figure.axes[1].get_images()[0].get_array(), photos[0, :, :, 0]
  )
  written(figure, tmp_path / 'reconstructed.png')


def test_reconstructed_sheet_of_statistics(run, tmp_path):
  birch, ash = run.client('birch'), run.client('ash')
  both = np.concatenate([birch.images()[:1], ash.images()[:1]])
  made = {
    'DFS': attempt(both, [1, 0]),
    'permuted DFS': attempt(both[::-1], [1, 0]),
    'real feature': attempt(both[:1], [1], np.arange(1)),
  }
  answers = attacks.judge(made, run, run)
  figure = attacks.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(2, 10)
  captions = [[axes.get_xlabel() for axes in row] for row in rows]
  assert captions[0][:2] == ['birch', 'birch']
  assert captions[0][3:5] == ['birch', 'ash']
  assert captions[1][3:5] == ['ash', 'birch']
  assert captions[0][6:9] == ['birch 0'] * 3
  frames = [colour(rows[0, place]) for place in (1, 4, 8)]
  assert frames == [canvas.RIGHT, canvas.WRONG, canvas.RIGHT]
  assert not any(axes.get_images() for axes in rows[1, 6:])
  written(figure, tmp_path / 'reconstructed.png')


def test_a_sheet_shows_all_clients(run):
  """Of more images than there are rows, some of every client."""
  photos = np.repeat(run.client('birch').images()[:1], 40, axis=0)
  owners = np.repeat(np.arange(4), 10)
  made = {
    'DFS': attempt(photos, owners),
    'real feature': attempt(photos[:1], [1], np.arange(1)),
  }
  answers = attacks.judge(made, run, run)
  figure = attacks.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(8, 7)
  shown = [row[0].get_xlabel() for row in rows]
  assert shown == [
    n for n in ('ash', 'birch', 'cedar', 'dogwood') for _ in 'ab'
  ]
