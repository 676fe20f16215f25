"""The bugs of `benchmarks.mutants` are still bugs of the present text."""

from pathlib import Path

import pytest

from benchmarks import mutants


@pytest.mark.parametrize('mutant', mutants.MUTANTS, ids=lambda m: m.new)
def test_the_old_text_is_there_once_and_its_tests_exist(mutant):
  assert mutants.mutated(mutant)
  for name in mutant.tests.split():
    assert Path(mutants.ROOT, 'tests', name).is_file()
