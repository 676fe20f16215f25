"""Reads the first segment of a round while the round before it is computed."""

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
    first: the first segment in a list, which is empty if there are no segments.
    rest: the other segments, which are read on demand.
  """

  wanted: Any
  first: futures.Future[list[Any]]
  rest: Iterator[Any]


class ReadingAhead:
  """Reads at most one segment ahead, in a separate thread."""

  def __init__(self) -> None:
    """Starts the thread pool; no segment is read yet."""
    self._thread = futures.ThreadPoolExecutor(1, 'images')
    self._ahead: _Ahead | None = None

  def start(self, wanted: Any, segments: Iterator[Any]) -> None:
    """Begins to read the first of some segments.

    Args:
      wanted: tree of arrays that determine the segments.
      segments: iterator over the segments, which reads their images.
    """
    self.drop()
    read = self._thread.submit(lambda: list(itertools.islice(segments, 1)))
    self._ahead = _Ahead(wanted, read, segments)

  def drop(self) -> None:
    """Waits for a segment that is being read ahead, and drops it."""
    self.take(())

  def take(self, wanted: Any) -> Iterator[Any] | None:
    """Returns the segments, None if these were not read ahead.

    Args:
      wanted: tree of arrays that determine the segments.
    """
    ahead, self._ahead = self._ahead, None
    if ahead is None:
      return None
    # This waits for the thread. Its error is not raised, as whoever reads these
    # segments again meets the error again.
    failed = ahead.first.exception()
    if failed or not _same(ahead.wanted, wanted):
      return None
    return _each(ahead.first.result(), ahead.rest)


def _same(one: Any, other: Any) -> bool:
  if jax.tree.structure(one) != jax.tree.structure(other):
    return False
  return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def _each(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
  # `itertools.chain` would keep the first segment in memory until the last one
  # is read.
  while first:
    yield first.pop()
  yield from rest
