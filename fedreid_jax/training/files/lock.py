"""Exclusive use of a work directory by one process.

The lock is on the folder itself, or on a file in it where folders cannot be
locked. The package filelock cannot replace this module: it locks files only,
and does not check that the locked file is still at its path.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from fedreid_jax import errors


class Lock(contextlib.ExitStack):
  """A locked work directory, until it is closed or the process ends.

  Folders created for it are removed at the end if they are empty.
  """

  def __init__(self, workdir: Path):
    """Creates and locks a work directory.

    Raises:
      ResourceError: when the directory cannot be created or written.
      LockedError: when another process holds the lock.
    """
    super().__init__()
    made = [p for p in (workdir, *workdir.parents) if not p.exists()]
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      self.callback(_remove_empty, made, os.stat(workdir))
      if not os.access(workdir, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
      # A lock file could be deleted by hand, and a second run would lock a new
      # one. It is used only where folders cannot be locked, as on NFS.
      if not self._take(workdir, os.O_RDONLY):
        self._take(workdir / '.lock', os.O_RDWR | os.O_CREAT)
        self.callback(self._path.unlink, missing_ok=True)
    except BlockingIOError as error:
      self.close()
      raise errors.LockedError(
        'another run is using it',
        str(workdir),
        'wait, or choose another --workdir',
      ) from error
    except OSError as error:
      self.close()
      raise errors.ResourceError(
        f'cannot write: {error.strerror}',
        str(workdir),
        'choose another --workdir',
      ) from error

  def _take(self, path: Path, how: int) -> bool:
    """Locks a file or folder; returns False if folders cannot be locked."""
    file = os.open(path, how, 0o644)
    self.callback(os.close, file)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      # Any other error of a folder means that its file system cannot lock it.
      if isinstance(error, BlockingIOError) or not path.is_dir():
        raise
      return False
    self._path, self._file = path, file
    return True

  def check(self) -> None:
    """Checks that another process would find this lock at the path.

    Raises:
      LockedError: when the folder was moved, deleted or replaced.
    """
    try:
      there = os.path.samestat(os.stat(self._path), os.fstat(self._file))
    except FileNotFoundError:
      there = False
    if not there:
      raise errors.LockedError(
        'it was moved, deleted or replaced during this run',
        str(self._path),
        'end every run that uses it, then start one of them again',
      )


def _remove_empty(made: list[Path], before: os.stat_result) -> None:
  """Removes empty folders from the inside out.

  Args:
    made: folders that `Lock` created, the innermost first.
    before: state of the innermost folder when it was created.
  """
  # Another folder at the path is of another run, and one that is not empty ends
  # the loop by an error.
  with contextlib.suppress(OSError):
    if made and os.path.samestat(os.stat(made[0]), before):
      for folder in made:
        folder.rmdir()
