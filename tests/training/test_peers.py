"""Positions of processes in a run, and reports of lost processes."""

import pytest

from fedreid_jax import errors
from fedreid_jax.training.processes import peers


def test_places():
  assert peers.parse('localhost:29500,4,3') == ('localhost:29500', 4, 3)
  assert peers.parse('[::1]:1,1,0') == ('[::1]:1', 1, 0)


@pytest.mark.parametrize(
  'text',
  [
    'nowhere',
    'localhost,2,0',
    'localhost:,2,0',
    ':29500,2,0',
    'localhost:0,2,0',
    'localhost:65536,2,0',
    'localhost:29500,2,2',
    'localhost:29500,0,0',
    'localhost:29500,2,-1',
    'localhost:29500,2',
    'localhost:29500,2,0,0',
    'localhost:29500,two,0',
    'name.invalid:29500,2,0',
  ],
)
def test_what_is_no_place(text):
  with pytest.raises(errors.ConfigError) as info:
    peers.parse(text)
  assert info.value.where == '--distributed'


@pytest.mark.parametrize(
  'text, loss',
  [
    ('UNKNOWN: Gloo AllGather failed: Connection closed by peer', True),
    ("timed out [type.../tensorflow.CoordinationServiceError='']", True),
    ('NCCL operation ncclAllReduce failed: remote process exited', True),
    ('RESOURCE_EXHAUSTED: Out of memory', False),
  ],
)
def test_a_loss_by_its_words(text, loss, monkeypatch):
  assert not peers.is_loss(RuntimeError(text))  # a process alone has no peers
  monkeypatch.setattr(peers, 'joined', lambda: True)
  assert peers.is_loss(RuntimeError(text)) == loss
