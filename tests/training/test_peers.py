"""Positions of processes, lost processes, and processes that differ."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedreid_jax import errors
from fedreid_jax.core import plugins
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


ROOT = Path(__file__).parents[2]
SERVICE = (
  'F1121 14:31:28.820215 7406 client.h:80] Terminating process\\n@ 0x7f\\n'
)
PROGRAM = """
import os, threading
from fedreid_jax import errors
from fedreid_jax.training.processes import peers
taken = peers.Aborts(lambda: errors.ResourceError('lost', 'here', 'again'))
os.write(2, b'{text}')
{end}
"""


def run(text: str, end: str) -> tuple[int, str]:
  done = subprocess.run(
    [sys.executable, '-c', PROGRAM.format(text=text, end=end)],
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
  )
  return done.returncode, done.stderr


@pytest.mark.parametrize(
  'end',
  [
    'os.abort()',
    'threading.Thread(target=os.abort).start(); threading.Event().wait()',
  ],
  ids=['main', 'thread'],
)
def test_the_service_is_one_line(end):
  code, err = run(SERVICE, end)
  assert (code, err) == (6, 'error[6]: lost — here — again\n')


def test_another_abort_keeps_its_message():
  code, err = run('Check failed: x\\n', 'os.abort()')
  assert code == 70
  lines = err.splitlines()
  assert lines[0] == 'Check failed: x'
  assert lines[1].startswith('error[70]: native code aborted')


@pytest.mark.slow
def test_messages_of_native_code_pass():
  code, err = run('W1121 slow operation\\n', 'taken.drain()')
  assert (code, err) == (0, 'W1121 slow operation\n')


class Service:
  """Keys and values of a coordination service for several threads."""

  def __init__(self):
    self.values, self.came = {}, threading.Condition()

  def key_value_set(self, key, value):
    with self.came:
      self.values[key] = value
      self.came.notify_all()

  def blocking_key_value_get(self, key, timeout_in_ms):
    with self.came:
      if not self.came.wait_for(
        lambda: key in self.values, timeout_in_ms / 1000
      ):
        raise RuntimeError('DEADLINE_EXCEEDED')
      return self.values[key]


@pytest.fixture
def two(monkeypatch):
  """Returns `(own inputs, other's inputs) -> None`, of process 0 of two."""
  service, left = Service(), []
  monkeypatch.setattr(peers, 'joined', lambda: True)
  monkeypatch.setattr(peers, 'service', lambda: (service, 0, 2))
  monkeypatch.setattr(peers, 'leave', lambda: left.append(True))
  monkeypatch.setattr(peers, 'rendezvous_s', lambda: 0.2)

  def require(own, other):
    monkeypatch.setattr(peers, '_calls', iter([7]))
    if other is not None:
      service.key_value_set('fedreid/7/1', json.dumps(other))
    peers.require('data', lambda: own)

  require.left = left
  return require


def test_a_single_process_publishes_nothing():
  peers.require('data', lambda: pytest.fail('not needed'))
  assert peers.largest(3) == 3


def test_equal_inputs(two):
  two({'a': 1, 'b': (1, 2)}, {'b': [1, 2], 'a': 1})
  assert not two.left


def test_different_inputs_are_named_and_all_leave_together(two):
  with pytest.raises(errors.ConfigError) as info:
    two({'seed': 0, 'lr': 0.1, 'x': 1}, {'seed': 3, 'lr': 0.1, 'y': 2})
  assert 'seed is 0 in process 0, 3 in 1' in info.value.what
  assert 'x is 1 in process 0, None in 1' in info.value.what
  assert 'lr' not in info.value.what
  assert two.left


def test_a_process_that_does_not_come(two):
  with pytest.raises(errors.ResourceError, match='process 1 of 2'):
    two({'a': 1}, None)


def test_the_third_process_is_compared_too():
  facts = [{'a': 1}, {'a': 1}, {'a': 2}]
  assert peers.differences(facts) == ['a is 1 in process 0, 2 in 2']


def test_code_is_every_source_file_and_version():
  code = peers.code()
  assert 'version of jax' in code
  assert {'fedreid_jax/round/rounds.py', 'configs/dfh.py'} <= code.keys()
  assert len(set(code.values())) > 50  # digests, not names


def test_code_of_plug_ins_counts(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  package = tmp_path / 'agreed_package'
  package.mkdir()
  for path in (package / '__init__.py', package / 'rule.py'):
    path.write_text('')
  (tmp_path / 'agreed_module.py').write_text('')
  named = [
    (plugins.COMPONENT, 'agreed_package.rule'),
    (plugins.SOURCE, 'agreed_module.x'),
    (plugins.SOURCE, 'not_installed.x'),
  ]
  before = peers.code(named)
  (package / 'helper.py').write_text('')
  (package / 'rule.py').write_text('changed')
  (tmp_path / 'agreed_module.py').write_text('changed')
  after = peers.code(named)
  assert {name for name in after if after[name] != before.get(name)} == {
    'agreed_package/helper.py',
    'agreed_package/rule.py',
    'agreed_module.py',
  }
