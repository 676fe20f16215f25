"""The choice between stacked and streamed uploads."""

import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.round import compose
from fedreid_jax.round.server import reduction

MODEL = 94 * 2**20


def choose(names, uploads, wanted='auto', exact=True, budget=512.0):
  made = compose.load(names, {}, algorithms)
  return reduction.choose(wanted, made, uploads, MODEL, budget, exact)


def test_uploads_stream_when_they_exceed_the_budget():
  assert not choose(('fedpav', 'cdw'), 5).streams  # 470 MB
  assert choose(('fedpav', 'cdw'), 6).streams
  assert not choose(('fedpav',), 6, budget=600.0).streams
  assert choose(('fedpav',), 2, 'stream').streams
  assert not choose(('fedpav',), 600, 'stacked').streams


@pytest.mark.parametrize('name', ['kd', 'client_clustering', 'fedatt'])
def test_a_method_that_needs_uploads_is_refused_over_budget(name):
  names = ('fedpav', name)
  assert not choose(names, 5).streams
  assert not choose(names, 64, 'stacked').streams
  with pytest.raises(errors.ResourceError) as caught:
    choose(names, 64)
  line = caught.value.line()
  assert repr(name) in line and '64 uploads of 94 MB are 6016 MB' in line
  assert 'execution.stack_budget_mb' in line and '6016 or more' in line
  with pytest.raises(errors.ConfigError, match=name):
    choose(names, 5, 'stream')


def test_attention_streams_where_sums_need_not_be_exact():
  assert choose(('fedavg', 'fedatt'), 64, exact=False).streams
  with pytest.raises(errors.ResourceError, match='deterministic=False'):
    choose(('fedavg', 'fedatt'), 64)
  with pytest.raises(errors.ResourceError) as caught:
    choose(('fedpav', 'kd'), 64)
  assert 'deterministic' not in str(caught.value)


def test_the_choice_is_described():
  line = choose(('fedpav',), 64).describe()
  assert line == (
    'reduction: stream, 64 uploads of 94 MB are added to fixed-point sums'
  )
  assert 'stacked, 5 uploads of 94 MB are 470 MB' in (
    choose(('fedpav',), 5).describe()
  )
