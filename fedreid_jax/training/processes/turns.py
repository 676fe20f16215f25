"""Turns of the runs of several threads on the same devices."""

import contextlib
import threading
from collections.abc import Iterator

import jax

_turn = threading.RLock()


@contextlib.contextmanager
def taken(config) -> Iterator[None]:
  """Waits for other threads' runs if this one uses several devices.

  Runs on one device do not wait.
  """
  # Programs over several devices that two threads start at once may reach the
  # devices in different orders and then wait for each other forever.
  alone = 1 in (config.execution.devices, jax.device_count())
  with contextlib.nullcontext() if alone else _turn:
    yield
