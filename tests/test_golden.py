"""Comparison of two commits by the final bits of their recipes."""

import pytest

from benchmarks import golden


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
