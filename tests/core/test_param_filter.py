import numpy as np

from fedreid_jax.algorithms import fedpav
from fedreid_jax.core import param_filter

TREE = {
  'params': {
    'backbone': {'conv': {'kernel': np.zeros((3, 3, 1, 2), np.float32)}},
    'classifier': {'kernel': np.zeros((2, 5), np.float32)},
  },
  'batch_stats': {'neck': {'mean': np.zeros(2, np.float32)}},
}


def test_flatten_and_back():
  flat = param_filter.flatten(TREE)
  assert set(flat) == {
    'params/backbone/conv/kernel',
    'params/classifier/kernel',
    'batch_stats/neck/mean',
  }
  assert param_filter.unflatten(flat) == TREE


def test_fedpav_keeps_the_classifier_only():
  shared, personal = param_filter.split(
    param_filter.flatten(TREE), fedpav.make().shared
  )
  assert list(personal) == ['params/classifier/kernel']
  assert len(shared) == 2


def test_buffers_are_not_trained():
  params, buffers = param_filter.trainable(param_filter.flatten(TREE))
  assert list(buffers) == ['batch_stats/neck/mean']
  assert len(params) == 2


def test_a_digest_depends_on_names_types_shapes_and_bits_not_on_order():
  one, two = np.arange(4, dtype=np.float32), np.zeros((2, 2), np.int32)
  same = param_filter.digest({'a': one, 'b': two})
  assert param_filter.digest({'b': two, 'a': one}) == same
  changed = one.copy()
  changed[3] = np.nextafter(changed[3], np.float32(9))
  for other in (
    {'a': changed, 'b': two},
    {'a': one, 'c': two},
    {'a': one.reshape(2, 2), 'b': two},
    {'a': one.view(np.int32), 'b': two},
    {'a': one},
  ):
    assert param_filter.digest(other) != same
