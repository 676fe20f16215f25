from typing import get_args

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import client_split, federation, load
from fedreid_jax.data.options import Data


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


def classes(labels, name='d'):
  return domain(name, labels, np.zeros(len(labels)))


SHARES = {'num_clients': 4, 'concentration': 0.5}


def divide(name, labels, seed=0, **shares):
  return client_split.make_clients(
    [classes(labels)], name, seed, **(SHARES | shares)
  )


def rows_of(clients):
  return [client.images().ravel().tolist() for client in clients]


@pytest.mark.parametrize('name', ['iid', 'dirichlet'])
@pytest.mark.parametrize('num', [1, 3, 7])
def test_every_image_is_at_one_client_under_its_class(name, num):
  labels = np.tile([40, 7, 9], 11)
  clients = divide(name, labels, num_clients=num)
  rows = rows_of(clients)
  assert sorted(sum(rows, [])) == list(range(33))
  assert [c.name for c in clients] == [f'd.part{k}' for k in range(num)]
  for client, own in zip(clients, rows, strict=True):
    assert own and own == sorted(own)
    dense = np.searchsorted([7, 9, 40], labels[own])
    np.testing.assert_array_equal(client.labels, dense)
    assert client.num_identities == 3


@pytest.mark.parametrize('name', ['iid', 'dirichlet'])
def test_partitions_depend_on_the_seed_and_the_domain_only(name):
  labels = np.repeat(np.arange(4), 20)
  first = rows_of(divide(name, labels))
  assert first == rows_of(divide(name, labels))
  assert first != rows_of(divide(name, labels, seed=1))
  other = client_split.make_clients(
    [classes(labels, 'other')], name, 0, **SHARES
  )
  assert first != rows_of(other)


def test_iid_is_an_equal_split_without_an_order():
  clients = divide('iid', np.repeat(np.arange(10), 103))
  assert [c.num_images for c in clients] == [258, 258, 257, 257]
  for client in clients:
    counts = np.bincount(client.labels, minlength=10)
    # Hypergeometric: mean 25.75, standard deviation below 4.4.
    assert (abs(counts - 25.75) < 18).all()


def test_shares_of_a_class_have_the_moments_of_the_dirichlet_law():
  labels = np.repeat(np.arange(600), 200)
  for concentration in (0.2, 1.0, 5.0):
    clients = divide('dirichlet', labels, concentration=concentration)
    shares = np.stack([np.bincount(c.labels, minlength=600) for c in clients])
    shares = shares / 200
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    np.testing.assert_allclose(shares.mean(axis=1), 0.25, atol=0.05)
    expected = 0.25 * 0.75 / (4 * concentration + 1)
    np.testing.assert_allclose(shares.var(), expected, rtol=0.12)


def test_clients_that_would_be_empty_get_an_image():
  """With a tiny concentration one client has a class nearly whole."""
  for seed in range(20):
    clients = divide(
      'dirichlet', [0] * 9, seed=seed, num_clients=5, concentration=1e-3
    )
    sizes = sorted(c.num_images for c in clients)
    assert sizes[0] >= 1 and sum(sizes) == 9
  assert sizes == [1, 1, 1, 1, 5]
  exactly = divide('dirichlet', [0, 0, 1], num_clients=3, concentration=1e-3)
  assert [c.num_images for c in exactly] == [1, 1, 1]


@pytest.mark.parametrize('name', ['iid', 'dirichlet'])
def test_impossible_partitions(name):
  with pytest.raises(errors.DataError, match='3 images for 4 clients'):
    divide(name, [0, 1, 2])
  with pytest.raises(errors.DataError, match=f'{name} training of 2 domains'):
    client_split.make_clients(
      [classes([0] * 9), classes([0] * 9, 'e')],
      name,
      0,
      **SHARES,
    )


def test_labels_of_a_classification_test_are_those_of_training():
  target = federation.class_target(
    classes([9, 40, 40]), np.array([40, 7, 9, 7])
  )
  assert target.images.identities.tolist() == [1, 2, 2]
  ((query, gallery),) = target.trials
  assert query.tolist() == [0, 1, 2] and not len(gallery)
  assert target.protocol == 'accuracy'
  with pytest.raises(errors.DataError, match=r'classes \[3\] are tested'):
    federation.class_target(classes([9, 3]), np.array([9, 7]))
  with pytest.raises(errors.DataError, match='no test images'):
    federation.class_target(classes([]), np.array([9]))


def synthetic(**changes):
  given = {
    'task': 'classification',
    'client_split': 'iid',
    'sources': ('plaza',),
    'targets': ('plaza',),
    'height': 16,
    'width': 8,
    'identities': 3,
    'cameras': 2,
    'shots': 4,
    'target_shots': 2,
  }
  return Data(**given | changes)


@pytest.mark.slow
def test_synthetic_tests_show_the_shots_after_the_training_shots():
  found = load.load(synthetic())
  (target,) = found.targets
  (alone,) = load.load(synthetic(), clients=False).targets
  # The same domain with all shots as training images.
  (everything,) = load.load(
    synthetic(client_split='centralised', shots=6, targets=())
  ).clients
  every = everything.images().reshape(3, 2, 6, 16, 8, 3)
  tested = target.images.images().reshape(3, 2, 2, 16, 8, 3)
  np.testing.assert_array_equal(tested, every[:, :, 4:])
  np.testing.assert_array_equal(alone.images.images(), target.images.images())
  assert target.images.identities.tolist() == [0] * 4 + [1] * 4 + [2] * 4
  trained = np.concatenate([c.images() for c in found.clients])
  assert len(trained) == 3 * 2 * 4
  seen = {image.tobytes() for image in trained}
  assert not seen & {image.tobytes() for image in target.images.images()}


def test_options_of_a_synthetic_test():
  data = synthetic(targets=('plaza:identities=2,shots=1',))
  (target,) = load.load(data).targets
  assert target.images.identities.tolist() == [0, 0, 1, 1]
  with pytest.raises(errors.DataError, match=r'classes \[3\]'):
    load.load(synthetic(targets=('plaza:identities=4',)))


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(targets=('mall',)), "no client is trained on the classes of 'mall'"),
    (
      dict(sources=(), targets=('mall',)),
      "no client is trained on the classes of 'mall'",
    ),
    (
      dict(sources=('plaza', 'mall'), client_split='by_dataset'),
      'classification is of one domain',
    ),
    (dict(client_split='by_identity'), r'clients number \[1\] classes of 3'),
  ],
)
def test_clients_that_cannot_classify(changes, message):
  with pytest.raises(errors.ConfigError, match=message):
    load.load(synthetic(**changes))


def published(root, **changes):
  given = {'source': 'datasets', 'root': str(root)}
  own = {'sources': ('cifar10',), 'targets': ('cifar10',)}
  return synthetic(**given | own | changes)


def test_cifar10_is_partitioned_and_tested_on_its_own_test_images(minis):
  found = load.load(published(minis('cifar10')))
  assert [c.num_images for c in found.clients] == [13, 13, 12, 12]
  assert {c.num_identities for c in found.clients} == {10}
  (target,) = found.targets
  assert sorted(target.images.identities) == list(range(10))
  assert target.images.images().shape == (10, 16, 8, 3)
  (alone,) = load.load(published(minis('cifar10')), clients=False).targets
  np.testing.assert_array_equal(
    alone.images.identities, target.images.identities
  )


def test_tasks_a_published_data_set_has_no_test_for(minis, tmp_path):
  for name in ('market1501', 'cifar10'):
    (tmp_path / name).symlink_to(minis(name))
  market = published(tmp_path, sources=('market1501',), targets=('market1501',))
  with pytest.raises(errors.ConfigError, match='no classification test'):
    load.load(market)
  ranked = published(tmp_path, task='retrieval')
  with pytest.raises(errors.ConfigError, match='cifar10 is no retrieval test'):
    load.load(ranked)
  with pytest.raises(errors.ConfigError, match='one domain'):
    load.load(published(tmp_path, sources=('market1501',)))


def test_an_undivided_domain_is_one_client_beside_cameras():
  found = client_split.make_clients(
    [domain('a'), domain('b')],
    'by_camera',
    0,
    num_clients=4,
    concentration=0.5,
    undivided=('a',),
  )
  assert [c.name for c in found] == ['a', 'b.camera0', 'b.camera1']
  assert found[0].labels.tolist() == [1, 1, 0, 0, 0]
  assert [c.num_identities for c in found] == [2, 2, 2]


def test_an_undivided_domain_that_nobody_has():
  def split(*domains):
    return client_split.make_clients(
      domains,
      'by_camera',
      0,
      num_clients=4,
      concentration=0.5,
      undivided=('c',),
    )

  with pytest.raises(errors.ConfigError, match="no domain 'c'"):
    split(domain('a'), domain('b'))
  # A real site knows its own domain only.
  assert len(split(domain('a'))) == 2
