"""The bugs of `benchmarks.mutations` are still bugs of the present text."""

from pathlib import Path

import pytest

from benchmarks import mutants
from benchmarks.mutations import MUTANTS


@pytest.mark.parametrize('mutant', MUTANTS, ids=lambda m: m.new)
def test_the_old_text_is_there_once_and_its_tests_exist(mutant):
  assert mutants.mutated(mutant)
  assert Path(mutants.ROOT, 'tests', mutant.tests).is_file()
