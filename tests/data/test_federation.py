import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import federation


def domain(name='d', identities=(7, 7, 3, 3, 3), cameras=(0, 1, 0, 0, 1)):
  num = len(identities)
  return federation.Images(
    name,
    lambda: np.arange(num, dtype=np.uint8).reshape(num, 1, 1, 1),
    np.asarray(identities, np.int32),
    np.asarray(cameras, np.int32),
    np.zeros(num, np.int32),
  )


def test_clients_are_sorted_and_labels_dense():
  clients = federation.by_domain([domain('z'), domain('a', (900, 5), (0, 0))])
  assert [c.name for c in clients] == ['a', 'z']
  assert clients[1].labels.tolist() == [1, 1, 0, 0, 0]
  assert clients[0].labels.tolist() == [1, 0]
  assert clients[1].num_identities == 2


def test_empty_domain_and_twice_the_same_name():
  with pytest.raises(errors.DataError, match='no images'):
    federation.by_domain([domain('e', (), ())])
  with pytest.raises(errors.DataError, match='not unique'):
    federation.by_domain([domain('a'), domain('a')])


@pytest.mark.parametrize(
  'rule, expected',
  [
    ('first', [1, 0, 1, 0, 0]),
    ('first_per_camera', [1, 1, 1, 0, 1]),
    ('camera=right', [0, 1, 0, 0, 1]),
    ('camera=left+right', [1, 1, 1, 1, 1]),
  ],
)
def test_query_rules(rule, expected):
  out = federation.rows_of_query(rule, domain(), ['left', 'right'])
  assert out.astype(int).tolist() == expected


def test_unknown_query_rule_and_camera():
  with pytest.raises(errors.ConfigError, match='query rule'):
    federation.rows_of_query('last', domain(), [])
  with pytest.raises(errors.ConfigError, match="no camera 'up'"):
    federation.rows_of_query('camera=up', domain(), ['left'])


def test_target_splits_images():
  target = federation.split_target(domain(), np.array([1, 0, 0, 0, 1], bool))
  assert target.query.images().ravel().tolist() == [0, 4]
  assert target.gallery.images().ravel().tolist() == [1, 2, 3]
  assert target.gallery.identities.tolist() == [7, 3, 3]
