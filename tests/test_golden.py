"""Comparison of two commits by the final models of their recipes."""

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


@pytest.mark.parametrize(
  'norms, line',
  [
    ({'w': 2.0001, 'b': 1.0}, []),
    ({'w': 2.0, 'b': 1.01}, ['dfh: b by 9.9e-03']),
    ({'w': float('nan'), 'b': 1.0}, ['dfh: w by inf']),
    ({'b': 1.0, 'w': float('nan')}, ['dfh: w by inf']),
    ({'w': 2.0}, ['dfh: names of arrays']),
  ],
)
def test_a_tolerance_compares_norms(norms, line):
  before = {'dfh': {'norms': {'w': 2.0, 'b': 1.0}}}
  now = {'dfh': {'norms': norms}}
  assert golden.differing(before, now, 1e-3) == line


@pytest.mark.slow
def test_the_same_commit_has_the_same_bits():
  first = golden.record('fedpav')
  assert first['models'].keys() == {'global'}
  assert (
    golden.differing({'fedpav': first}, {'fedpav': golden.record('fedpav')})
    == []
  )
