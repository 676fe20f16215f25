import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.audit import shadow
from fedreid_jax.core.types import ClientData


def client(counts, cameras=2):
  """A client whose image k has the pixel k, shuffled over the persons."""
  rng = np.random.default_rng(0)
  labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
  size = len(labels)
  images = np.arange(size, dtype=np.uint8)[:, None, None, None]
  return ClientData(
    'ash',
    lambda: images,
    labels.astype(np.int32),
    rng.integers(0, cameras, size).astype(np.int32),
    np.zeros(size, np.int32),
    len(counts),
  )


COUNTS = (8, 3, 5, 4, 1, 6, 4, 7, 4, 9)


def test_halves_of_the_images_are_disjoint_and_of_all_persons():
  found = shadow.of_client(client(COUNTS))
  labels = found.client.labels
  assert found.number == 8  # without those of three images and of one
  assert not set(found.trained) & set(found.asked)
  kept = [p for p, n in enumerate(COUNTS) if n >= 4]
  for person, label in enumerate(kept):
    ours = found.trained[found.trained_of == person]
    others = found.asked[found.asked_of == person]
    assert set(labels[ours]) == set(labels[others]) == {label}
    assert len(ours) == -(-COUNTS[label] // 2)
    assert len(ours) + len(others) == COUNTS[label]
    cameras = found.client.cameras
    for camera in range(2):
      of = [(cameras[side] == camera).sum() for side in (ours, others)]
      assert abs(of[0] - of[1]) <= 1


def test_a_client_of_members_has_their_images_for_training_only():
  found = shadow.of_client(client(COUNTS))
  included = np.asarray([1, 0, 0, 1, 1, 0, 0, 1], bool)
  member = found.members(included)
  rows = found.trained[included[found.trained_of]]
  np.testing.assert_array_equal(member.images().ravel(), rows)
  np.testing.assert_array_equal(member.labels, found.client.labels[rows])
  np.testing.assert_array_equal(member.cameras, found.client.cameras[rows])
  assert member.num_identities == 10 and len(np.unique(member.labels)) == 4


def test_tracklets_of_members_are_those_of_their_frames():
  one = client(COUNTS)
  assert shadow.of_client(one).members(np.ones(8, bool)).tracklets is None
  order = np.lexsort((one.cameras, one.labels))
  numbers = np.empty(len(order), np.int32)
  numbers[order] = np.arange(len(order)) // 2
  found = shadow.of_client(one._replace(tracklets=numbers))
  rows = found.trained[found.trained_of < 3]
  member = found.members(np.arange(8) < 3)
  np.testing.assert_array_equal(member.tracklets, numbers[rows])


def test_scores_are_of_the_right_images():
  found = shadow.of_client(client(COUNTS))

  def features(images, modalities):
    """Directions of persons, only in images on which no model is trained."""
    rows = images.ravel()
    assert len(modalities) == len(rows)
    axes = np.eye(len(COUNTS))[found.client.labels[rows]]
    return axes + 1.0 * np.isin(rows, found.trained)[:, None]

  np.testing.assert_allclose(found.scores(features, 'other images'), 1)
  assert (found.scores(features, 'same images') < 0.5).all()


def test_fewer_persons():
  found = shadow.of_client(client(COUNTS)).some(3)
  assert found.number == 3 and set(found.asked_of) == {0, 1, 2}
  assert found.client.num_images == 8 + 5 + 4  # person 1 has three images
  every = shadow.of_client(client(COUNTS))
  for name in ('trained', 'asked'):
    of = getattr(every, f'{name}_of')
    rows = getattr(every, name)[of < 3]
    ours = found.client.images()[getattr(found, name)].ravel()
    np.testing.assert_array_equal(ours, rows)
    np.testing.assert_array_equal(getattr(found, f'{name}_of'), of[of < 3])
  assert found.some(24).number == 3


def test_a_half_is_random_and_exact():
  rng = np.random.default_rng(0)
  drawn = np.asarray([shadow.half(9, rng) for _ in range(2000)])
  assert (drawn.sum(1) == 4).all()
  np.testing.assert_allclose(drawn.mean(0), 4 / 9, atol=0.05)


def test_clients_that_share_persons_are_refused():
  with pytest.raises(errors.ConfigError, match='at several clients'):
    shadow.of_clients([client(COUNTS)], 'by_camera')
  assert len(shadow.of_clients([client(COUNTS)], 'by_identity')) == 1


def test_few_images_are_refused():
  with pytest.raises(errors.DataError, match='2 persons have 4 images or more'):
    shadow.of_clients([client((4, 4, 3, 3))], 'by_dataset')
