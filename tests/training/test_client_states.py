"""Saves and resumes of states in files, with rounds that train nothing."""

import json
import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.round import client_store
from fedreid_jax.training.files import (
  checkpoint,
  client_files,
  client_states,
  steps,
)

NUM, COHORT = 12, 3
NAMES = [f'c{k}' for k in range(NUM)]


class Killed(BaseException):
  """The end of a process."""


def initial(client):
  return types.ClientState(
    {'params/a/kernel': np.full((2, 3), client, np.float32)},
    {'moon': np.array(client % 2, np.int32)},
    (),
  )


def first_server():
  return types.ServerState(
    {'params/b/kernel': np.zeros((1, 4), np.float32)},
    np.zeros(NUM, np.int32),
    {},
  )


class Federation:
  """A run whose rounds multiply the rows of a cohort."""

  def __init__(self, workdir, rule='disk'):
    workdir.mkdir(exist_ok=True)
    self.saved = checkpoint.Checkpoints(workdir)
    self.store = store()
    self.states = client_states.ClientStates(
      self.store, self.saved, NAMES, rule
    )
    step = self.saved.latest()
    self.server, _ = self.states.restore(step, first_server())
    self.done = step or 0
    if step is None:
      self.save()

  def save(self):
    host = {'clients': NAMES}
    self.states.save(self.done, self.server, host, None)

  def round(self):
    chosen = np.random.default_rng(self.done).permutation(NUM)[:COHORT]
    rows = self.store.read(chosen)
    rows = jax.tree.map(lambda x: x * 3 + self.done + 1, rows)
    self.store.write(chosen, rows, np.array([True, True, self.done % 2 == 0]))
    self.server.shared['params/b/kernel'] += rows.personal[
      'params/a/kernel'
    ].sum()
    self.done += 1

  def run(self, rounds):
    while self.done < rounds:
      self.round()
      self.save()
    return self

  def all(self):
    return self.server, self.store.stacked()


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def store():
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), initial(0)
  )
  return client_store.ClientStore(initial, shapes, NUM)


def after(rounds):
  """The states after some rounds in memory; nothing is saved."""
  run = Federation.__new__(Federation)
  run.store, run.server, run.done = store(), first_server(), 0
  for _ in range(rounds):
    run.round()
  return run.all()


def test_states_in_files_are_those_in_memory(tmp_path):
  run = Federation(tmp_path).run(6)
  assert_equal(run.all(), after(6))
  assert isinstance(run.store.rows, client_files.ClientFiles)
  never = set(range(NUM)) - {*run.store.written()}
  assert never and len(run.store.written()) > COHORT
  step = json.loads((tmp_path / 'checkpoints/6/host.json').read_text())
  assert step['rows']['segments'].keys() <= {
    path.name for path in steps.clients(tmp_path).iterdir()
  }


@pytest.mark.parametrize('rule', ['memory', 'disk'])
def test_a_run_resumes_with_the_other_choice(tmp_path, rule):
  other = {'memory': 'disk', 'disk': 'memory'}[rule]
  Federation(tmp_path, rule).run(2)
  assert_equal(Federation(tmp_path, other).run(3).all(), after(3))
  assert_equal(Federation(tmp_path, rule).run(4).all(), after(4))


def calls(monkeypatch, workdir, stop):
  """Ends the process at the call number `stop` to the disk.

  Returns:
    The names of the calls so far, which grow.
  """
  seen = []

  def counted(name, function):
    def call(*args, **kwargs):
      seen.append(name)
      if len(seen) == stop:
        raise Killed
      return function(*args, **kwargs)

    return call

  disk = {n: counted(n, getattr(os, n)) for n in ('replace', 'fsync')}
  named = {n: getattr(os, n) for n in ('open', 'close', 'O_RDONLY')}
  monkeypatch.setattr(client_files, 'os', SimpleNamespace(**named, **disk))
  for module, name in (
    (steps, 'digests'),
    (checkpoint.recorder, 'write_json'),
    (checkpoint.orbax_files, 'write'),
    (client_files.ClientFiles, 'sweep'),
    (type(workdir), 'unlink'),
  ):
    monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
  return seen


@pytest.mark.slow
def test_a_kill_at_every_step_of_a_save_changes_no_bit(tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    run = Federation(tmp_path / 'counted').run(2)
    seen = calls(patch, tmp_path, 0)
    run.run(3)
  assert {*seen} == {
    *('replace', 'fsync', 'write', 'digests', 'write_json', 'sweep', 'unlink')
  }
  for stop in range(1, len(seen) + 1):
    workdir = tmp_path / str(stop)
    run = Federation(workdir).run(2)
    with monkeypatch.context() as patch:
      calls(patch, workdir, stop)
      with pytest.raises(Killed):
        run.run(3)
    again = Federation(workdir)
    # The second file, the manifest, makes the step complete.
    assert again.done == 2 + (seen[: stop - 1].count('write_json') == 2)
    assert_equal(again.run(4).all(), after(4))
    live = {client_files.name(s) for s in again.saved.segments()}
    assert {p.name for p in steps.clients(workdir).iterdir()} == live


def test_a_kill_before_the_manifest_repeats_the_round(tmp_path, monkeypatch):
  run = Federation(tmp_path).run(2)
  with monkeypatch.context() as patch:
    patch.setattr(steps, 'digests', lambda _: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
      run.run(3)
  again = Federation(tmp_path)
  assert again.done == 2
  assert_equal(again.run(3).all(), after(3))


def test_a_flipped_byte_names_the_client(tmp_path):
  files = Federation(tmp_path).run(4).states.files
  client = files.index.segment.argmax()
  path = files.path(int(files.index.segment[client]))
  content = bytearray(path.read_bytes())
  content[int(files.index.offset[client]) + 5] ^= 8
  path.write_bytes(content)
  again = Federation(tmp_path)
  with pytest.raises(errors.IntegrityError, match=f"'c{client}'"):
    again.store.row(int(client))
  shared, personal, *_ = again.saved.restore_models(4, personal=True)
  assert [*personal] == again.store.written() and shared
  with pytest.raises(errors.IntegrityError, match=f"'c{client}'"):
    personal[int(client)]


def test_a_step_without_one_of_its_files_is_passed_over(tmp_path):
  run = Federation(tmp_path).run(2)
  newest = max(run.saved.segments())
  run.states.files.path(newest).unlink()
  again = Federation(tmp_path)
  assert again.done == 1
  assert_equal(again.run(3).all(), after(3))


def test_rows_of_another_model_are_refused(tmp_path):
  run = Federation(tmp_path).run(1)
  like = run.store.like()
  like.personal['params/a/kernel'] = np.zeros((NUM, 2, 4), np.float32)
  with pytest.raises(errors.IntegrityError, match=r'kernel of float32\[2, 4\]'):
    run.saved.restore(1, first_server(), like)


def test_nothing_private_has_no_files(tmp_path):
  shapes = types.ClientState({}, {}, ())
  store = client_store.ClientStore(lambda _: shapes, shapes, 5)
  saved = checkpoint.Checkpoints(tmp_path)
  made = client_states.ClientStates(store, saved, NAMES, 'disk')
  assert made.files is None and made.notice == ''
  store.write([0, 1], store.read([0, 1]), np.ones(2, bool))
  assert store.written() == []


def test_the_choice_is_by_clients_and_by_bytes(tmp_path):
  def files(num, size, rule='auto'):
    shape = jax.ShapeDtypeStruct((size,), np.float32)
    shapes = types.ClientState({'a': shape}, {}, ())
    store = client_store.ClientStore(lambda _: shapes, shapes, num)
    saved = checkpoint.Checkpoints(tmp_path)
    made = client_states.ClientStates(store, saved, ['c'] * num, rule)
    return made.files is not None

  assert not files(1024, 1) and files(1025, 1)
  assert not files(2, 2**28) and files(2, 2**28 + 1)
  assert files(2, 1, 'disk') and not files(1025, 1, 'memory')
