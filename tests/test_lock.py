import multiprocessing
from pathlib import Path

import pytest

from fedreid_jax import errors, lock


def _try_lock(path, queue):
  try:
    lock.lock(path)
    queue.put('free')
  except errors.LockedError as error:
    queue.put(error.exit_code)


def test_lock_is_exclusive_and_dies_with_its_holder(tmp_path):
  context = multiprocessing.get_context('spawn')
  queue = context.Queue()
  held = lock.lock(tmp_path)
  for expected in (7, 'free'):
    other = context.Process(target=_try_lock, args=(tmp_path, queue))
    other.start()
    assert queue.get(timeout=60) == expected
    other.join()
    held.close()


@pytest.mark.parametrize('where', ['/proc/none', '/dev/null/x'])
def test_workdir_that_cannot_be_made(where):
  with pytest.raises(errors.ResourceError, match='cannot write'):
    lock.lock(Path(where))
