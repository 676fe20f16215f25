import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import poison
from fedreid_jax.training.contract import toy_client

NAMES = ('ash', 'birch', 'cedar')
CLIENTS = tuple(toy_client(name, 40, 8) for name in NAMES)


def poisoned(kind, names=('birch',), share=0.3, seed=0):
  return poison.poison(CLIENTS, kind, names, share, seed)


@pytest.mark.parametrize('kind', ['flip', 'shuffle', 'merge', 'backdoor'])
def test_only_the_named_clients_change(kind):
  found = poisoned(kind)
  assert found[0] is CLIENTS[0] and found[2] is CLIENTS[2]
  assert (found[1].labels != CLIENTS[1].labels).any()
  assert found[1].labels.dtype == np.int32
  assert found[1].num_identities == 8 and found[1].labels.max() < 8
  again = poisoned(kind, NAMES)[1]
  np.testing.assert_array_equal(found[1].labels, again.labels)
  np.testing.assert_array_equal(found[1].images(), again.images())


def test_no_attack_changes_nothing():
  assert poisoned('', ()) == CLIENTS


def test_shuffled_identities_keep_their_numbers_of_images():
  first, second = (poisoned('shuffle', seed=seed)[1] for seed in (0, 1))
  for found in (first, second):
    np.testing.assert_array_equal(
      np.bincount(found.labels), np.bincount(CLIENTS[1].labels)
    )
  assert (first.labels != second.labels).any()
  one, other = poisoned('shuffle', NAMES)[:2]
  assert (one.labels != other.labels).any()


def test_flipped_identities_are_counted_from_the_last():
  client = CLIENTS[1]._replace(num_identities=10)  # two of them are elsewhere
  (found,) = poison.poison((client,), 'flip', ('birch',), 0.3, 0)
  np.testing.assert_array_equal(found.labels, 9 - client.labels)


@pytest.mark.parametrize('first', [0, 5])
def test_merged_identities_are_pairs(first):
  labels = CLIENTS[1].labels
  client = CLIENTS[1]._replace(
    labels=labels + np.int32(first), num_identities=8 + first
  )
  found = poison.poison((client,), 'merge', ('birch',), 0.3, 0)[0].labels
  np.testing.assert_array_equal(found, first + labels // 2 * 2)


@pytest.mark.parametrize('share, number', [(0.3, 12), (1.0, 40), (0.0, 1)])
def test_a_share_of_the_images_has_the_trigger_and_one_identity(share, number):
  found = poisoned('backdoor', share=share)[1]
  before, after = CLIENTS[1].images(), found.images()
  changed = (before != after).any(axis=(1, 2, 3))
  assert changed.sum() == number
  np.testing.assert_array_equal(after[changed], poison.stamp(before[changed]))
  assert not found.labels[changed].any()
  np.testing.assert_array_equal(
    found.labels[~changed], CLIENTS[1].labels[~changed]
  )


def test_the_trigger_is_six_of_64_rows_in_one_corner():
  images = np.full((2, 64, 32, 3), 100, np.uint8)
  changed = poison.stamp(images) != images
  assert changed[:, -6:, -6:].all()
  assert changed.sum() == 2 * 6 * 6 * 3
  assert {*np.unique(poison.stamp(images))} == {0, 100, 255}
  assert (images == 100).all()


def test_a_client_that_does_not_exist():
  with pytest.raises(errors.ConfigError, match='did you mean birch'):
    poisoned('merge', ('brich',))


def test_users_read_which_clients_are_poisoned():
  assert poison.notice('merge', ('ash',)) == (
    'the images of ash are poisoned: merge',
  )
  assert not poison.notice('', ())
