"""Runs of several threads on the same devices."""

import contextlib
import threading
from collections.abc import Iterator

import jax

_turn = threading.RLock()


@contextlib.contextmanager
def taken(config) -> Iterator[None]:
  """Waits for other threads' runs if this one uses several devices.

  Programs over several devices that two threads start at once may arrive at
  the devices in different orders, and then wait for each other forever. On one
  device runs need not wait.
  """
  alone = 1 in (config.execution.devices, jax.device_count())
  with contextlib.nullcontext() if alone else _turn:
    yield
