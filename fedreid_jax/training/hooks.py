"""Calls of the callbacks of a run, any of which may end it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from fedreid_jax import errors
from fedreid_jax.training import callbacks
from fedreid_jax.training.callbacks import Callback

# Processes agree after a round on the largest of their reasons to end, which
# are numbers of signals or one of these.
STOPPED, FAILED = 1000, 1001
Event = TypeVar('Event')


class Hooks:
  """The callbacks of a run; the first process calls them.

  An exception in the record of the run is raised at once, one in another
  callback after the run has saved its state.

  Attributes:
    watched: whether there are callbacks beside the record.
  """

  def __init__(self, record: Callback, others: Sequence[Callback]):
    """Prepares the calls.

    Args:
      record: writes the record of the run; it receives each event first.
      others: trackers, and callbacks of the user.
    """
    first = jax.process_index() == 0
    self._all = [record, *others] if first else []
    self._failed: list[Callback] = []
    self._started: list[Callback] = []
    self._error: Exception | None = None
    self._round = 0
    self.watched = len(self._all) > 1

  def __enter__(self):
    return self

  def __exit__(self, kind, error: BaseException | None, trace) -> None:
    """Calls `on_end` of every callback, then raises its first exception."""
    del kind, trace
    found = None
    for one in self._started:
      try:
        one.on_end(callbacks.End(self._round, error))
      except Exception as failure:
        found = found or failure
    if found and error is None:
      raise found

  def start(self, event: callbacks.Start) -> None:
    """Starts the callbacks; an exception of one is raised at once."""
    self._round = event.round
    for one in self._all:
      self._started.append(one)
      self._call(one, one.on_start, event)
    self.raise_error()

  def round(self, event: callbacks.Round) -> None:
    """Reports a round."""
    self._round = event.round
    for one in self._all:
      self._call(one, one.on_round, event)

  def evaluation(self, event: callbacks.Evaluation) -> None:
    """Reports an evaluation."""
    for one in self._all:
      self._call(one, one.on_evaluation, event)

  def checkpoint(self, event: callbacks.Checkpoint) -> None:
    """Reports a checkpoint."""
    for one in self._all:
      self._call(one, one.on_checkpoint, event)

  def _call(
    self, one: Callback, hook: Callable[[Event], None], event: Event
  ) -> None:
    if one in self._failed:
      return
    try:
      hook(event)
    except callbacks.StopTraining as stop:
      self._error = self._error or stop
    except Exception as error:
      # Results and reports are made from the record, so a run ends without it.
      if one is self._all[0]:
        raise
      # Kept until the round is saved: the other callbacks receive all events,
      # so that a resumed run need not repeat any.
      self._failed.append(one)
      if self.ending() != FAILED:
        self._error = error

  def ending(self) -> int:
    """Returns STOPPED or FAILED after an exception, 0 without one."""
    if self._error is None:
      return 0
    stop = isinstance(self._error, callbacks.StopTraining)
    return STOPPED if stop else FAILED

  def raise_error(self) -> None:
    """Raises the exception of a callback, if there is one."""
    if self._error is not None and self.ending() == FAILED:
      raise self._error


def check(found: Sequence[object]) -> None:
  """Refuses objects that are not instances of `Callback`.

  Raises:
    ConfigError: naming the first of them.
  """
  for one in found:
    if not isinstance(one, Callback):
      raise errors.ConfigError(
        f'{one!r} is not an instance of fedreid_jax.Callback',
        'callbacks',
        'derive its class from Callback, and give an instance',
      )
