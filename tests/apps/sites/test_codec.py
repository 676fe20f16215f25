import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec

TREE = {
  'shared': {'params/a/kernel': np.arange(6, dtype=np.float32).reshape(2, 3)},
  'messages': {'dfh': (jnp.float32(2.5), np.array([True, False]))},
  'seed': np.array([1, 2**32 - 1], np.uint32),
  'half': np.ones((2, 0, 3), np.float16),
  'none': (),
}


def test_a_message_arrives_as_it_was_sent():
  turned = TREE | {'turned': np.arange(6).reshape(2, 3).T}
  message = codec.unpack(codec.pack(codec.TRAIN, {'round': 3}, turned), 'x')
  assert message.kind == codec.TRAIN and message.fields == {'round': 3}
  found = codec.fit(message.arrays, turned, 'x')
  assert jax.tree.structure(found) == jax.tree.structure(turned)
  for mine, sent in zip(
    jax.tree.leaves(found), jax.tree.leaves(turned), strict=True
  ):
    assert mine.dtype == sent.dtype and mine.shape == sent.shape
    np.testing.assert_array_equal(mine, sent)


@pytest.mark.parametrize(
  ('change', 'text'),
  [
    ({'seed': np.zeros(3, np.uint32)}, 'seed is uint32[3], not uint32[2]'),
    ({'seed': np.zeros(2, np.int32)}, 'seed is int32[2], not uint32[2]'),
    ({'more': np.zeros(1)}, 'more is float64[1], not expected'),
    ({'seed': ()}, 'seed is absent, not uint32[2]'),
  ],
)
def test_other_arrays_are_refused(change, text):
  arrays = codec.unpack(codec.pack('x', {}, TREE | change), 'x').arrays
  with pytest.raises(errors.IntegrityError) as caught:
    codec.fit(arrays, TREE, 'site a')
  assert text in caught.value.what and caught.value.where == 'site a'


def header(**values):
  return safetensors_numpy.save({}, {'fedreid': json.dumps(values)})


@pytest.mark.parametrize(
  'data',
  [
    b'',
    b'\x80\x04]',
    codec.pack('x', {}, TREE)[:-1],
    safetensors_numpy.save({}, {'other': ''}),
    header(kind='x', fields={}),
    header(kind='x', fields=[1], protocol=codec.PROTOCOL),
    header(kind='x', fields={}, protocol=codec.PROTOCOL + 1),
  ],
)
def test_bytes_that_are_no_message_are_refused(data):
  with pytest.raises(errors.IntegrityError, match='protocol|cannot be read'):
    codec.unpack(data, 'site a')


def test_no_message_is_longer_than_its_bound():
  tree = {'a' * 50: np.zeros((3, 5), np.float32), 'b': {'c': np.zeros((), int)}}
  sent = codec.pack(codec.TRAIN, {'name': 'x' * 190}, tree)
  assert len(sent) <= codec.largest(tree) < len(sent) + 2 * codec.FIELDS
