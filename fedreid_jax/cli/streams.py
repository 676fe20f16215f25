"""Standard streams that may be closed while a run continues."""

import errno
import io
import os
import sys


def open_all() -> None:
  """Discards writes to closed streams.

  Otherwise the next opened file would get the descriptor of a closed stream
  (`>&-`), and every print to a closed pipe (`| head -1`) would be an error.
  """
  while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(free, True)
  os.close(free)
  for name, number in (('stdout', 1), ('stderr', 2)):
    sys_stream = getattr(sys, name)
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
  """A descriptor that ignores errors of a broken pipe."""

  def write(self, data, /):
    try:
      return super().write(data)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EBADF):
        raise
      return memoryview(data).nbytes
