"""Time of the phases of a run."""

import threading
import time

import jax

COMPILE_EVENT = '/jax/core/compile/backend_compile_duration'


class Clock:
  """Seconds of each phase of a run, with compilation as a phase.

  Compilations of other threads, which may train other runs, do not count.
  """

  def __init__(self):
    """Starts at zero."""
    self.seconds: dict[str, float] = dict.fromkeys(
      ('setup', 'compile', 'train', 'eval'), 0.0
    )
    self._start = time.perf_counter()
    self._compiled = 0.0
    self._thread = threading.get_ident()
    jax.monitoring.register_event_duration_secs_listener(self._on_duration)

  def close(self) -> None:
    """Stops listening to the compiler."""
    jax.monitoring.unregister_event_duration_listener(self._on_duration)

  def _on_duration(self, event: str, duration_secs: float, **_) -> None:
    if event == COMPILE_EVENT and threading.get_ident() == self._thread:
      self._compiled += duration_secs

  def lap(self, phase: str) -> float:
    """Adds the time since the last lap to a phase, less compilation.

    Returns:
      The added seconds.
    """
    now = time.perf_counter()
    compiled, self._compiled = self._compiled, 0.0
    spent = max(now - self._start - compiled, 0.0)
    self.seconds[phase] += spent
    self.seconds['compile'] += compiled
    self._start = now
    return spent
