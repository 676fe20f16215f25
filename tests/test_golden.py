"""Comparison of two commits by the final bits of their recipes."""

import numpy as np
import pytest

from benchmarks import golden


def test_a_digest_depends_on_names_types_shapes_and_bits_not_on_order():
  one, two = np.arange(4, dtype=np.float32), np.zeros((2, 2), np.int32)
  same = golden.digest({'a': one, 'b': two})
  assert golden.digest({'b': two, 'a': one}) == same
  changed = one.copy()
  changed[3] = np.nextafter(changed[3], np.float32(9))
  for other in (
    {'a': changed, 'b': two},
    {'a': one, 'c': two},
    {'a': one.reshape(2, 2), 'b': two},
    {'a': one.view(np.int32), 'b': two},
    {'a': one},
  ):
    assert golden.digest(other) != same


def test_differences_name_the_recipe_and_the_part():
  record = {'metrics': [{'mAP': 1.0}], 'models': {'global': 'ab'}}
  other = record | {'models': {'global': 'cd'}}
  before = {'dfh': record, 'moon': record}
  assert golden.differing(before, {'dfh': record}) == []
  assert golden.differing(before, {'dfh': other, 'moon': record}) == [
    'dfh: models differ'
  ]
  assert golden.differing(before, {'snr': record}) == [
    'snr: not recorded before'
  ]


@pytest.mark.slow
def test_the_same_commit_has_the_same_bits():
  first = golden.record('fedpav')
  assert first['models'].keys() == {'global'}
  assert (
    golden.differing({'fedpav': first}, {'fedpav': golden.record('fedpav')})
    == []
  )
