"""Keeps a run alive when its standard streams are closed."""

import errno
import io
import os
import sys


def open_all() -> None:
  """Discards output to a closed standard stream or a broken pipe."""
  # After `>&-` descriptors up to 2 are free, and the next opened file would get
  # one of them and everything that is printed. So /dev/null takes them all.
  while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(free, True)
  os.close(free)
  for name, number in (('stdout', 1), ('stderr', 2)):
    sys_stream = getattr(sys, name)
    # None is a stream that was closed when Python started.
    if sys_stream is None or not sys_stream.isatty():
      setattr(sys, name, _text(number, sys_stream))


def _text(number: int, like: io.TextIOWrapper | None) -> io.TextIOWrapper:
  return io.TextIOWrapper(
    io.BufferedWriter(_Raw(number, 'wb', closefd=False)),
    encoding=like.encoding if like else 'utf-8',
    errors='backslashreplace',
    line_buffering=True,
  )


class _Raw(io.FileIO):
  """An open descriptor whose writes never fail for a lost reader."""

  def write(self, data, /):
    try:
      return super().write(data)
    # EPIPE after `| head -1` has ended, EBADF where the descriptor was closed.
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EBADF):
        raise
      # Claims success: the buffer would otherwise keep the bytes and try again.
      return memoryview(data).nbytes
