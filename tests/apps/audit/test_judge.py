import numpy as np
import pytest
import toy_run
from drawn import written
from matplotlib import colors

from fedreid_jax import errors
from fedreid_jax.apps.audit import attacks
from fedreid_jax.apps.audit.attacks import Attempt
from fedreid_jax.apps.audit.inversion import Reconstructed
from fedreid_jax.figures import canvas


@pytest.fixture(scope='module')
def run():
  return toy_run.toy_run()


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


def test_same_model(run):
  assert attacks.same_model(run, run)
  moved = {n: np.asarray(x) + 1 for n, x in run.variables.items()}
  assert not attacks.same_model(run, run._replace(variables=moved))


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
    config = run.config.copy_and_resolve_references()
    config.seed, config.start_from = seed, start_from
    config.model.pretrained = pretrained
    return run._replace(config=config)

  assert attacks.same_initial_weights(made(**mine), made(**theirs)) is same


def attempt_reconstructed(photos, clients, labels=None):
  images = Reconstructed(photos, photos, {})
  return attacks.Attempt(images, np.asarray(clients), labels)


def colour(axes):
  return colors.to_hex(axes.spines['left'].get_edgecolor()).upper()


def test_reconstructed_sheet_of_identities(run, tmp_path):
  photos = run.client('birch').images()
  made = {
    'identity means': attempt_reconstructed(photos[:3], [1] * 3, np.arange(3))
  }
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
    'DFS': attempt_reconstructed(both, [1, 0]),
    'permuted DFS': attempt_reconstructed(both[::-1], [1, 0]),
    'real feature': attempt_reconstructed(both[:1], [1], np.arange(1)),
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
    'DFS': attempt_reconstructed(photos, owners),
    'real feature': attempt_reconstructed(photos[:1], [1], np.arange(1)),
  }
  answers = attacks.judge(made, run, run)
  figure = attacks.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(8, 7)
  shown = [row[0].get_xlabel() for row in rows]
  assert shown == [
    n for n in ('ash', 'birch', 'cedar', 'dogwood') for _ in 'ab'
  ]
