"""Rows of clients in segments: crashes, damage, compaction, deletion."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import numpy as safetensors

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.training.files import client_files, client_states

NAMES = [f'c{k}' for k in range(12)]
SHAPES = types.ClientState(
  {'params/classifier/kernel': np.zeros((2, 3), np.float32)},
  {'moon': (np.zeros((), bool), np.zeros(5, np.int32))},
  (),
)
LAYOUT = client_files.layout(SHAPES)
LEAVES = {
  'personal.params.classifier.kernel',
  *('states.moon.0', 'states.moon.1'),
}


def row(value):
  return (
    np.full((2, 3), value, np.float32),
    np.array(value % 2 == 0),
    np.arange(5, dtype=np.int32) + value,
  )


def rows(**values):
  return {int(k[1:]): row(v) for k, v in values.items()}


def opened(folder, **more):
  return client_files.ClientFiles(folder, LAYOUT, NAMES, **more)


def check(files, **values):
  assert {k: int(files[k][0][0, 0]) for k in files} == {
    int(k[1:]): v for k, v in values.items()
  }
  for client in files:
    for found, wanted in zip(
      files[client], row(int(files[client][0][0, 0])), strict=True
    ):
      assert found.dtype == wanted.dtype
      np.testing.assert_array_equal(found, wanted)


def segments(folder):
  return sorted(path.name for path in folder.iterdir())


def test_rows_are_read_back_and_the_library_reads_the_files(tmp_path):
  files = opened(tmp_path)
  assert 3 not in files and len(files) == 0
  files.update(rows(c3=7, c1=4))
  check(files, c3=7, c1=4)
  tensors = safetensors.load_file(tmp_path / '0-0.safetensors')
  assert tensors.keys() == {f'{c}/{x}' for c in ('c1', 'c3') for x in LEAVES}
  for leaf, wanted in zip(LAYOUT, row(7), strict=True):
    np.testing.assert_array_equal(tensors[f'c3/{leaf.name}'], wanted)


def test_every_bit_of_a_row_counts(tmp_path):
  files = opened(tmp_path)
  files.update(rows(c3=7, c1=4))
  path = tmp_path / '0-0.safetensors'
  whole = path.read_bytes()
  first, size = int(files.index.offset[1]), client_files.row_bytes(LAYOUT)
  for place in range(first, first + size):
    damaged = bytearray(whole)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    with pytest.raises(errors.IntegrityError, match="client 'c1'.*was changed"):
      files[1]
    assert files[3][0][0, 0] == 7
  path.write_bytes(whole[:-1])
  with pytest.raises(errors.IntegrityError, match="client 'c1'"):
    files[1]
  path.unlink()
  with pytest.raises(errors.IntegrityError, match="client 'c3'.*No such file"):
    files[3]


def test_a_segment_without_a_live_row_is_deleted_at_once(tmp_path):
  files = opened(tmp_path)
  for value in range(4):
    files.update(rows(c0=value, c1=value))
  assert segments(tmp_path) == ['3-0.safetensors']


def test_a_segment_that_a_checkpoint_names_stays(tmp_path):
  files = opened(tmp_path)
  files.update(rows(c0=1, c1=1))
  files.sync()
  saved = files.index.copy()
  files.update(rows(c0=2, c1=2))
  files.update(rows(c0=3, c1=3))
  assert segments(tmp_path) == ['0-0.safetensors', '2-0.safetensors']
  files.sync()
  files.sweep(saved.segments())
  assert segments(tmp_path) == ['0-0.safetensors', '2-0.safetensors']
  files.sweep(())
  assert segments(tmp_path) == ['2-0.safetensors']


def test_live_rows_of_a_sparse_segment_move_to_the_next_one(tmp_path):
  files = opened(tmp_path)
  files.update(rows(c0=0, c1=1, c2=2, c3=3))
  files.update(rows(c0=10, c1=11))  # half of the first segment is live
  assert segments(tmp_path) == ['0-0.safetensors', '1-0.safetensors']
  files.update(rows(c2=12))
  check(files, c0=10, c1=11, c2=12, c3=3)
  assert segments(tmp_path) == ['1-0.safetensors', '2-0.safetensors']
  assert files.take_changed() == ([0, 1, 2, 3], [])


def test_disk_space_is_bounded_by_the_live_rows(tmp_path):
  files, rng = opened(tmp_path), np.random.default_rng(0)
  wanted = {}
  for value in range(60):
    chosen = {int(k): value for k in rng.permutation(12)[:3]}
    wanted |= chosen
    files.update({k: row(v) for k, v in chosen.items()})
    if value % 5 == 0:
      files.sync()
      files.sweep(())
  files.sweep(())
  check(files, **{f'c{k}': v for k, v in wanted.items()})
  stored = sum(
    sum(name.endswith('kernel') for name in safetensors.load_file(path))
    for path in tmp_path.iterdir()
  )
  assert stored <= 2 * 12 + 3


STEPS = ('open', 'write', 'replace')


@pytest.mark.parametrize('step', STEPS)
def test_a_write_that_fails_changes_nothing(tmp_path, monkeypatch, step):
  files = opened(tmp_path)
  files.update(rows(c0=1, c1=1))
  before = segments(tmp_path), files.index.copy()

  def fail(*_, **__):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    if step == 'open':
      patch.setattr(type(tmp_path), 'open', fail)
    elif step == 'write':
      patch.setattr(client_files, '_pack', fail)
    else:
      patch.setattr(os, 'replace', fail)
    with pytest.raises(errors.ResourceError, match='No space left'):
      files.update(rows(c0=2, c5=2))
  assert segments(tmp_path) == before[0]
  for found, wanted in zip(files.index, before[1], strict=True):
    np.testing.assert_array_equal(found, wanted)
  files.update(rows(c0=3))
  check(files, c0=3, c1=1)


def test_a_later_process_count_opens_all_rows(tmp_path):
  """Three processes wrote; one continues, then two."""
  three = [opened(tmp_path, process=k, processes=3) for k in range(3)]
  for k, files in enumerate(three):
    files.update({k: row(k), k + 3: row(k + 3)})
  index = client_files.Index.empty(12)
  for files in three:
    for column, own in zip(index, files.index, strict=True):
      column[[*files]] = own[[*files]]
  one = opened(tmp_path)
  one.begin(index.copy(), ())
  check(one, **{f'c{k}': k for k in range(6)})
  one.update(rows(c0=10, c1=11, c3=13))
  check(one, c0=10, c1=11, c2=2, c3=13, c4=4, c5=5)
  assert '1-0.safetensors' in segments(tmp_path)
  one.sync()
  two = [opened(tmp_path, process=k, processes=2) for k in range(2)]
  for files in two:
    files.begin(one.index.copy(), ())
    check(files, c0=10, c1=11, c2=2, c3=13, c4=4, c5=5)
  two[1].update(rows(c2=12))
  assert '2-1.safetensors' in segments(tmp_path)


@pytest.mark.parametrize('writer', [0, 1])
def test_a_new_row_wins_over_a_copy_of_the_old_one(
  tmp_path, monkeypatch, writer
):
  """Client 0 runs on another process than before, which copies its old row."""
  two = [opened(tmp_path, process=k, processes=2) for k in range(2)]
  owner = two[1 - writer]
  owner.update(rows(c0=0, c1=1, c2=2, c3=3))
  owner.sync()
  for files in two:
    files.begin(owner.index.copy(), ())
  two[writer].update(rows(c0=10))
  owner.update(rows(c1=11, c2=12, c3=13))
  assert owner[0][0][0, 0] == 0 and len(segments(tmp_path)) == 3
  publish_all(two, monkeypatch)
  for files in two:
    check(files, c0=10, c1=11, c2=12, c3=13)
  # The other process may read what was published until it is told otherwise.
  owner.update(rows(c1=21, c2=22, c3=23))
  check(two[writer], c0=10, c1=11, c2=12, c3=13)
  publish_all(two, monkeypatch)
  for files in two:
    check(files, c0=10, c1=21, c2=22, c3=23)
    files.sweep(())
  assert len(segments(tmp_path)) == 2


def publish_all(two, monkeypatch):
  """Calls `publish` as two processes would."""
  meeting, sent = threading.Barrier(2, timeout=20), {}

  def gather(own):
    sent[threading.current_thread().name] = own
    meeting.wait()
    return np.stack([sent['0'], sent['1']])

  gathered = SimpleNamespace(process_allgather=gather)
  monkeypatch.setattr(client_states, 'multihost_utils', gathered)
  monkeypatch.setattr(client_states.peers, 'largest', lambda own: 8)
  monkeypatch.setattr(client_states.peers, 'joined', lambda: True)
  threads = [
    threading.Thread(target=client_states.publish, args=(files,), name=str(k))
    for k, files in enumerate(two)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()


def test_files_that_are_newer_than_the_index_are_deleted(tmp_path):
  files = opened(tmp_path)
  files.update(rows(c0=1, c1=1))
  files.sync()
  saved = files.index.copy()
  files.update(rows(c0=2))
  (tmp_path / '9-0.safetensors.partial').write_bytes(b'torn')
  again = opened(tmp_path)
  again.begin(saved, ())
  assert segments(tmp_path) == ['0-0.safetensors']
  check(again, c0=1, c1=1)
  again.update(rows(c0=3))
  check(again, c0=3, c1=1)
  fresh = opened(tmp_path)
  fresh.begin(None, ())
  assert segments(tmp_path) == [] and len(fresh) == 0


def test_a_type_that_files_cannot_hold_is_refused():
  with pytest.raises(errors.ConfigError, match='execution.store'):
    client_files.layout({'a': np.zeros(2, np.complex64)})


def test_a_file_of_somebody_else_is_left_alone(tmp_path):
  other = tmp_path / 'copy of 3-0.safetensors'
  other.write_text('')
  opened(tmp_path).begin(None, [])
  assert other.exists()
