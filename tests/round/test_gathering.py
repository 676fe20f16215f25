"""Which methods gather uploads, and the limit of their memory."""

import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.round import compose
from fedreid_jax.round.server import gathering

MODEL = 94 * 2**20


def of_round(names, number, exact=True, budget=512.0):
  made = compose.load(names, {}, algorithms)
  return gathering.of_round(made, number, MODEL, budget, exact)


def test_sums_need_no_memory_for_uploads():
  assert not of_round(('fedpav', 'cdw'), 6000).gathered
  line = of_round(('fedpav',), 64).describe()
  assert line == 'uploads: 64 of 94 MB are added to fixed-point sums'
  assert 'float32' in of_round(('fedpav',), 64, exact=False).describe()


@pytest.mark.parametrize('name', ['kd', 'client_clustering', 'fedatt'])
def test_a_method_that_needs_uploads_is_refused_over_budget(name):
  names = ('fedpav', name)
  assert repr(name) in of_round(names, 5).gathered
  assert '470 MB' in of_round(names, 5).describe()
  with pytest.raises(errors.ResourceError) as caught:
    of_round(names, 64)
  line = caught.value.line()
  assert repr(name) in line and '64 uploads of 94 MB are 6016 MB' in line
  assert 'execution.stack_budget_mb' in line and '6016 or more' in line
  assert of_round(names, 64, budget=6016.0).gathered
