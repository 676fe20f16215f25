"""Reports aborts of native code as one line and an exit code.

JAX's coordination service calls `abort()` when other processes are lost or do
not connect, which would end a process with status 134 and a stack trace and
without a Python exception. A handler of SIGABRT ends it like any other error
instead. The service's messages are suppressed; other native messages are
printed.
"""

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable

from fedreid_jax import errors

# A line of the service's log; later lines of a dying process belong to it.
_SERVICE = re.compile(rb'[EF]\d{4} .*(coordination_service|client\.h:)')
_DRAIN_S = 0.3  # time to print output from before the abort


class Aborts:
  """Handles aborts and native messages of this process until it ends."""

  def __init__(self, error: Callable[[], errors.FedReIDError]):
    """Starts to handle aborts.

    Args:
      error: returns the error of an abort by the coordination service.
    """
    self._error = error
    self._by_service = False
    # Native code writes to descriptor 2, whatever `sys.stderr` is: it becomes a
    # pipe, which a thread copies to the screen.
    self._screen = os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    sys.stderr = open(self._screen, 'w', buffering=1, closefd=False)
    self._reader = threading.Thread(target=self._copy, args=(read,))
    self._reader.daemon = True
    self._reader.start()
    # Python's own handlers run between two of its instructions, and `abort`
    # does not return to one. Stored, because C holds no reference to it.
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._on_abort)
    ctypes.CDLL(None).signal(signal.SIGABRT, self._handler)

  def drain(self) -> None:
    """Prints the output that native code has written."""
    os.dup2(self._screen, 2)  # now the reader reaches the end of the pipe
    self._reader.join(_DRAIN_S)

  def _copy(self, read: int) -> None:
    with open(read, 'rb') as lines:
      for line in lines:
        self._by_service |= bool(_SERVICE.match(line))
        if not self._by_service:
          os.write(self._screen, line)

  def _on_abort(self, number: int) -> None:
    del number
    self.drain()
    error = self._error()
    if not self._by_service:
      error = errors.InternalError('native code aborted', '', errors.REPORT)
    os.write(self._screen, f'{error.line()}\n'.encode())
    os._exit(error.exit_code)
