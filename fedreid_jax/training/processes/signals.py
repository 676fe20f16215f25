"""SIGTERM and SIGINT: a run completes its round, other work ends at once.

A signal is handled by Python's handler in the main thread or by a thread of
this module, whichever is first.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

STOPS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = b'\n\x1b[?25h'  # a progress bar hides it


class _Listener:
  """Handles the signals of this process until it is closed."""

  def __init__(self):
    self.rounds = False  # whether a first signal waits for the end of a round
    self.noted = 0  # number of that signal
    self.lock = threading.RLock()  # a handler may interrupt a handler
    self._read, self._write = os.pipe()
    # Handler and thread read the same pipe, and the second one must not wait;
    # `set_wakeup_fd` accepts no blocking descriptor.
    os.set_blocking(self._read, False)
    os.set_blocking(self._write, False)
    self._old = {s: signal.signal(s, lambda *_: self._act()) for s in STOPS}
    # Python calls a handler between two instructions of its main thread, which
    # may compile, wait for another process or read images for minutes. The
    # number of a signal in the pipe wakes a thread at once.
    self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
    self._thread = threading.Thread(target=self._wait, daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Restores the earlier handlers."""
    signal.set_wakeup_fd(self._wakeup)
    for number, handler in self._old.items():
      signal.signal(number, handler)
    os.close(self._write)
    self._thread.join()
    os.close(self._read)

  def _wait(self) -> None:
    while select.select([self._read], [], [])[0] and self._act():
      pass

  def _act(self) -> bool:
    """Handles pending signals; returns whether more can arrive."""
    with self.lock, contextlib.suppress(BlockingIOError):
      numbers = os.read(self._read, 64)
      for number in filter(STOPS.__contains__, numbers):
        if not self.rounds or self.noted:
          _end(number)
        self.noted = number
      return bool(numbers)
    return True


def _end(number: int) -> None:
  """Ends the process, whatever its other threads are doing."""
  line = f'stopped by {signal.Signals(number).name}\n'.encode()
  with contextlib.suppress(OSError, ValueError, AttributeError):
    if os.isatty(1):
      os.write(1, _SHOW_CURSOR)
    os.write(sys.stderr.fileno(), line)  # of Python: `peers.Aborts` moves it
  os._exit(128 + number)


_listener: _Listener | None = None


def listen() -> None:
  """Makes signals end the process at once with 128 + their number."""
  global _listener
  if _listener is None:
    _listener = _Listener()


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], int]]:
  """Lets rounds finish: only a second signal ends the process at once.

  Yields a function that returns the number of the first signal, 0 before it.
  Without an earlier call of `listen` nothing is changed, because signals then
  belong to the caller of this package and any thread may train.

  Raises:
    SystemExit: with 128 + the number of a signal, if one arrived.
  """
  listener = _listener
  if listener is None:
    yield lambda: 0
    return
  listener.rounds = True
  try:
    yield lambda: listener.noted
  finally:
    # Under the lock no signal is noted in between, where nobody would see it.
    with listener.lock:
      listener.rounds = False
      noted, listener.noted = listener.noted, 0
  if noted:
    raise SystemExit(128 + noted)
