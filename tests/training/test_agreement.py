"""Processes that differ are refused by each of them, with the reason."""

import json
import threading

import pytest

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.training.processes import agreement, peers


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
  monkeypatch.setattr(peers, 'client', lambda: (service, 0, 2))
  monkeypatch.setattr(peers, 'leave', lambda: left.append(True))
  monkeypatch.setattr(peers, 'rendezvous_s', lambda: 0.2)

  def require(own, other):
    monkeypatch.setattr(agreement, '_calls', iter([7]))
    if other is not None:
      service.key_value_set('fedreid/7/1', json.dumps(other))
    agreement.require('data', lambda: own)

  require.left = left
  return require


def test_a_single_process_publishes_nothing():
  agreement.require('data', lambda: pytest.fail('not needed'))
  assert agreement.largest(3) == 3


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
  assert agreement.differences(facts) == ['a is 1 in process 0, 2 in 2']


def test_code_is_every_source_file_and_version():
  code = agreement.code()
  assert 'version of jax' in code
  assert {'fedreid_jax/round/simulation.py', 'configs/dfh.py'} <= code.keys()
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
  before = agreement.code(named)
  (package / 'helper.py').write_text('')
  (package / 'rule.py').write_text('changed')
  (tmp_path / 'agreed_module.py').write_text('changed')
  after = agreement.code(named)
  assert {name for name in after if after[name] != before.get(name)} == {
    'agreed_package/helper.py',
    'agreed_package/rule.py',
    'agreed_module.py',
  }
