"""The first segment of the next round, read while this round is computed."""

import itertools
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np


class _Ahead(NamedTuple):
  """A segment that is being read.

  Attributes:
    wanted: arrays that determine the segments.
    first: the first of them, in a list that is empty if there are none.
    rest: the others, read on demand.
  """

  wanted: Any
  first: futures.Future[list[Any]]
  rest: Iterator[Any]


class ReadingAhead:
  """Reads in a thread of its own; one segment is read ahead at most."""

  def __init__(self) -> None:
    """Reads nothing yet."""
    self._thread = futures.ThreadPoolExecutor(1, 'images')
    self._ahead: _Ahead | None = None

  def start(self, wanted: Any, segments: Iterator[Any]) -> None:
    """Begins to read the first of segments.

    Args:
      wanted: tree of arrays that determine the segments.
      segments: images of each segment.
    """
    self.drop()
    read = self._thread.submit(lambda: list(itertools.islice(segments, 1)))
    self._ahead = _Ahead(wanted, read, segments)

  def drop(self) -> None:
    """Forgets what was read ahead, when it has been read."""
    self.take(())

  def take(self, wanted: Any) -> Iterator[Any] | None:
    """Returns the segments, None if these were not read ahead.

    An error of the thread is not raised: who reads again meets it again.
    """
    ahead, self._ahead = self._ahead, None
    if ahead is None:
      return None
    failed = ahead.first.exception()  # waits
    if failed or not _same(ahead.wanted, wanted):
      return None
    return _each(ahead.first.result(), ahead.rest)


def _same(one: Any, other: Any) -> bool:
  if jax.tree.structure(one) != jax.tree.structure(other):
    return False
  return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def _each(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
  # `itertools.chain` would keep the first segment until the last is read.
  while first:
    yield first.pop()
  yield from rest
