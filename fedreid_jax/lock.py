"""One process at a time in a work directory."""

import fcntl
from pathlib import Path

from fedreid_jax import errors


def lock(workdir: Path):
  """Makes and locks a work directory for this process.

  Returns:
    An open file; the lock lasts until it is closed or the process dies.

  Raises:
    ResourceError: when the directory cannot be made or written.
    LockedError: when another process holds it.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    file = (workdir / '.lock').open('a')
  except OSError as error:
    raise errors.ResourceError(
      f'cannot write: {error.strerror}',
      str(workdir),
      'choose another --workdir',
    ) from error
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    file.close()
    raise errors.LockedError(
      'another run is using it',
      str(workdir),
      'wait, or choose another --workdir',
    ) from error
  return file
