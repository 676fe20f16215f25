from typing import get_args

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import federation
from fedreid_jax.data.split import client_split


def domain(name='d', identities=(7, 7, 3, 3, 3), cameras=(0, 1, 0, 0, 1)):
  num = len(identities)
  return federation.Images(
    name,
    # An image is its own number; uint8 would repeat them beyond 256.
    lambda: np.arange(num).reshape(num, 1, 1, 1),
    np.asarray(identities, np.int32),
    np.asarray(cameras, np.int32),
    np.zeros(num, np.int32),
  )


def make(domains, name='by_dataset', seed=0):
  return client_split.make_clients(
    domains, name, seed, num_clients=4, concentration=0.5
  )


def test_clients_are_sorted_and_labels_dense():
  clients = make([domain('z'), domain('a', (900, 5), (0, 0))])
  assert [c.name for c in clients] == ['a', 'z']
  assert clients[1].labels.tolist() == [1, 1, 0, 0, 0]
  assert clients[0].labels.tolist() == [1, 0]
  assert clients[1].num_identities == 2


def test_empty_domain_and_twice_the_same_name():
  with pytest.raises(errors.DataError, match='no images'):
    make([domain('e', (), ())])
  with pytest.raises(errors.DataError, match='not unique'):
    make([domain('a'), domain('a')])


def test_by_camera_has_own_labels_and_all_images():
  clients = make([domain()], 'by_camera')
  assert [c.name for c in clients] == ['d.camera0', 'd.camera1']
  assert clients[0].images().ravel().tolist() == [0, 2, 3]
  assert clients[0].labels.tolist() == [1, 0, 0]
  assert [set(c.cameras.tolist()) for c in clients] == [{0}, {1}]
  one = make([domain('s', (1, 1, 2), (0, 1, 1))], 'by_camera')
  assert [c.num_identities for c in one] == [1, 2]


def test_camera_independent_has_the_identities_of_the_data_set():
  clients = make([domain('s', (1, 1, 2), (0, 1, 1))], 'camera_independent')
  assert [c.num_identities for c in clients] == [2, 2]
  assert clients[0].labels.tolist() == [0]
  assert clients[1].labels.tolist() == [0, 1]


def test_by_identity_assigns_751_identities_to_six_clients():
  people = np.repeat(np.arange(751), 6)
  cameras = np.tile(np.arange(6), 751)
  clients = make([domain('m', people, cameras)], 'by_identity')
  assert [c.num_identities for c in clients] == [125] * 6
  assert [c.num_images for c in clients] == [750] * 6
  seen = [c.images().ravel() for c in clients]
  assert len(set().union(*(s.tolist() for s in seen))) == 6 * 750
  owners = [set(people[s].tolist()) for s in seen]
  assert len(set().union(*owners)) == 6 * 125
  for client, rows in zip(clients, seen, strict=True):
    dense = np.unique(people[rows], return_inverse=True)[1]
    np.testing.assert_array_equal(client.labels, dense)
  again = make([domain('m', people, cameras)], 'by_identity')
  other = make([domain('m', people, cameras)], 'by_identity', seed=1)
  assert (clients[0].images() == again[0].images()).all()
  assert set(seen[0].tolist()) != set(other[0].images().ravel().tolist())


@pytest.mark.parametrize('name', ['centralised', 'entity_shared'])
def test_merged_clients_have_the_union_of_labels_and_cameras(name):
  (client,) = make([domain('b'), domain('a', (5, 900), (0, 3))], name)
  assert client.name == 'a+b'
  assert client.labels.tolist() == [0, 1, 3, 3, 2, 2, 2]
  assert client.num_identities == 4
  assert len(set(client.cameras.tolist())) == 4
  assert client.images().shape == (7, 1, 1, 1)


def test_entity_independent_offsets_labels_and_keeps_clients_apart():
  clients = make(
    [domain('b'), domain('a', (5, 900), (0, 0))], 'entity_independent'
  )
  assert [c.labels.tolist() for c in clients] == [[0, 1], [3, 3, 2, 2, 2]]
  assert [c.num_identities for c in clients] == [4, 4]


def test_standalone_is_one_domain():
  assert len(make([domain()], 'standalone')) == 1
  with pytest.raises(errors.DataError, match='standalone training of 2'):
    make([domain('a'), domain('b')], 'standalone')


def test_fewer_identities_than_clients():
  with pytest.raises(errors.DataError, match='1 identity for 2 clients'):
    make([domain('a', (1, 1), (0, 1))], 'by_identity')


def test_target_splits_images():
  query = np.array([1, 0, 0, 0, 1], bool)
  ((asked, ranked),) = federation.split_target(domain(), query).trials
  assert asked.tolist() == [0, 4] and ranked.tolist() == [1, 2, 3]
  for none in (query & False, query | True):
    with pytest.raises(errors.DataError, match='image in d'):
      federation.split_target(domain(), none)


def labelled(labels, name='by_dataset', order=1):
  domains = [domain('b'), domain('a', (5, 900), (0, 1))][::order]
  clients = client_split.make_clients(
    domains, name, 0, labels, num_clients=4, concentration=0.5
  )
  return {c.name: (c.labels.tolist(), c.num_identities) for c in clients}


@pytest.mark.parametrize(
  'labels, expected',
  [
    ('', {'a': ([0, 1], 2), 'b': ([1, 1, 0, 0, 0], 2)}),
    ('concat', {'a': ([0, 1], 4), 'b': ([3, 3, 2, 2, 2], 4)}),
    ('max', {'a': ([0, 1], 2), 'b': ([1, 1, 0, 0, 0], 2)}),
    ('global', {'a': ([0, 1], 4), 'b': ([3, 3, 2, 2, 2], 4)}),
  ],
)
def test_label_spaces_of_data_sets(labels, expected):
  assert labelled(labels) == expected


@pytest.mark.parametrize(
  'labels, columns, expected',
  [
    # a.camera0 has 1 identity, a.camera1 1, b.camera0 2 and b.camera1 2
    ('concat', 6, ([0], [1], [3, 2, 2], [5, 4])),
    ('max', 2, ([0], [0], [1, 0, 0], [1, 0])),
    ('global', 4, ([0], [1], [3, 2, 2], [3, 2])),
  ],
)
def test_label_spaces_of_cameras_that_see_the_same_people(
  labels, columns, expected
):
  """Only 'global' knows that two cameras see one person."""
  clients = labelled(labels, 'by_camera')
  assert list(clients) == ['a.camera0', 'a.camera1', 'b.camera0', 'b.camera1']
  assert [c[0] for c in clients.values()] == [*expected]
  assert {c[1] for c in clients.values()} == {columns}


@pytest.mark.parametrize('labels', get_args(client_split.Labels))
@pytest.mark.parametrize(
  'name',
  ['by_dataset', 'by_camera', 'camera_independent', 'entity_independent'],
)
def test_order_of_the_domains_does_not_matter(name, labels):
  assert labelled(labels, name) == labelled(labels, name, order=-1)
