import errno
import fcntl
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from fedreid_jax import errors
from fedreid_jax.training.files import lock


def _try_lock(path, queue):
  try:
    with lock.Lock(path):
      queue.put('free')
  except errors.LockedError as error:
    queue.put(error.exit_code)


def ask(path):
  """Returns the result of another process that tries to lock a folder."""
  context = multiprocessing.get_context('spawn')
  queue = context.Queue()
  other = context.Process(target=_try_lock, args=(path, queue))
  other.start()
  answer = queue.get(timeout=60)
  other.join()
  return answer


def test_lock_is_exclusive_until_it_is_closed(tmp_path):
  with lock.Lock(tmp_path):
    for file in tmp_path.iterdir():  # deleted files do not release it
      file.unlink()
    assert ask(tmp_path) == 7
  assert ask(tmp_path) == 'free'


@pytest.mark.parametrize('where', ['/proc/none', '/dev/null/x'])
def test_workdir_that_cannot_be_made(where):
  with pytest.raises(errors.ResourceError, match='cannot write'):
    lock.Lock(Path(where))


def test_workdir_that_cannot_be_written(tmp_path, monkeypatch):
  monkeypatch.setattr(os, 'access', lambda *_: False)
  with pytest.raises(errors.ResourceError, match='cannot write: Permission'):
    lock.Lock(tmp_path / 'new' / 'w')
  assert not (tmp_path / 'new').exists()


def test_created_folders_are_removed_if_empty(tmp_path):
  mine = tmp_path / 'mine'
  mine.mkdir()
  with lock.Lock(mine / 'a' / 'b'):
    assert (mine / 'a' / 'b').is_dir()
  assert mine.is_dir() and not (mine / 'a').exists()
  with lock.Lock(mine):
    pass
  assert mine.is_dir()
  with lock.Lock(mine / 'a' / 'b'):
    (mine / 'a' / 'results').touch()
  assert os.listdir(mine / 'a') == ['results']


def harm(how, folder):
  if how == 'moved':
    folder.rename(folder.with_name('elsewhere'))
  elif how == 'replaced':
    shutil.copytree(folder, folder.with_name('copy'))
    shutil.rmtree(folder)
    folder.with_name('copy').rename(folder)


@pytest.mark.parametrize('how', ['moved', 'replaced'])
def test_a_lock_on_a_moved_folder_is_lost(tmp_path, how):
  with lock.Lock(tmp_path / 'w') as held:
    held.check()
    harm(how, tmp_path / 'w')
    with pytest.raises(errors.LockedError, match='moved, deleted or replaced'):
      held.check()
  assert (tmp_path / 'w').is_dir() == (how == 'replaced')  # of another run now


@pytest.fixture
def only_files(monkeypatch):
  """A file system that locks files, and not folders."""
  ordinary = fcntl.flock

  def flock(file, how):
    if os.path.isdir(f'/proc/self/fd/{file}'):
      raise OSError(errno.EBADF, 'not a file')
    ordinary(file, how)

  monkeypatch.setattr(fcntl, 'flock', flock)


def test_a_file_is_locked_if_folders_cannot_be(only_files, tmp_path):
  with lock.Lock(tmp_path) as held:
    with pytest.raises(errors.LockedError, match='another run'):
      lock.Lock(tmp_path)
    held.check()
    (tmp_path / '.lock').unlink()
    with pytest.raises(errors.LockedError, match='deleted'):
      held.check()
  with lock.Lock(tmp_path / 'new'):
    pass
  assert os.listdir(tmp_path) == []
