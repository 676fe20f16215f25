"""Positions of the matches of a query in its ranked list.

The list is not sorted: a position is the number of nearer images. Images at the
same distance are in gallery order.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from fedreid_jax.evaluation.gallery import Gallery
from fedreid_jax.evaluation.protocol.protocols import Protocol


class Answers(NamedTuple):
  """The matches of one query, nearest first.

  Attributes:
    images: gallery indices of the matches.
    positions: positions in the ranked list, from 0, ascending.
    ties: number of matches whose position depends on the tie rule, since a
      wrong image of the ranked list is at the same distance.
  """

  images: Int64[np.ndarray, ' R']
  positions: Int64[np.ndarray, ' R']
  ties: int


def kept_positions(
  distance: Float[np.ndarray, ' P'],
  right: Int64[np.ndarray, ' R'],
  dropped: Int64[np.ndarray, ' dropped'],
) -> Answers:
  """Finds the matches of a query in its ranked list.

  Args:
    distance: distance of every gallery image to the query.
    right: gallery indices of the matches, ascending.
    dropped: gallery indices hidden from the query.
  """
  right = right[np.argsort(distance[right], kind='stable')]
  values = distance[right]
  removed = np.sort(distance[dropped])
  nearer, not_farther = (
    number - np.searchsorted(removed, values, side)
    for number, side in zip(
      _numbers(distance, values), ('left', 'right'), strict=True
    )
  )
  # Matches at one distance have the same number of nearer images: each counts
  # the equal matches before it, too.
  first_equal = np.searchsorted(values, values, 'left')
  num_equal = np.searchsorted(values, values, 'right') - first_equal
  positions = nearer + np.arange(right.size) - first_equal
  # More images than matches at a distance: wrong ones are among them, and the
  # gallery order decides.
  tied = not_farther - nearer > num_equal
  for value in np.unique(values[tied]) if tied.any() else ():
    same = np.setdiff1d(np.flatnonzero(distance == value), dropped)
    here = values == value
    positions[here] = nearer[here] + np.searchsorted(same, right[here])
  return Answers(right, positions, int(np.count_nonzero(tied)))


@functools.cache
def counted_matches() -> int:
  """Returns the largest number of matches whose nearer images are counted.

  With more matches, one sort of the distances takes less time. Positions do not
  depend on this number.
  """
  # Measured once in a process, since the number differs between machines: 110
  # on an AMD EPYC, and fewer where NumPy sorts with AVX-512.
  sample = np.random.default_rng(0).random(1 << 16, np.float32)
  sort = _seconds(lambda: np.sort(sample))
  count = _seconds(lambda: np.count_nonzero(sample < sample[0]))
  return int(sort / (2 * count))


def _seconds(run: Callable[[], object]) -> float:
  """Returns the shortest time of a few runs."""
  seconds = []
  for _ in range(5):
    start = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - start)
  return min(seconds)


def _numbers(
  distance: Float[np.ndarray, ' P'], values: Float[np.ndarray, ' R']
) -> tuple[Int64[np.ndarray, ' R'], Int64[np.ndarray, ' R']]:
  """Returns the numbers of distances below, and at most, each sorted value."""
  near = distance <= values[-1]
  # Otherwise the copy takes as long as it saves.
  if 4 * np.count_nonzero(near) < near.size:
    distance = np.compress(near, distance)
  if values.size > counted_matches():
    distance = np.sort(distance)
    below, at_most = (
      np.searchsorted(distance, values, side) for side in ('left', 'right')
    )
    return below, at_most
  # A few comparisons of all distances take less time than one sort.
  below = [np.count_nonzero(distance < value) for value in values]
  at_most = [np.count_nonzero(distance <= value) for value in values]
  return np.asarray(below), np.asarray(at_most)


def first_hits(
  distance: Float[np.ndarray, ' P'],
  answers: Answers,
  dropped: Int64[np.ndarray, ' dropped'],
  gallery: Gallery,
  protocol: Protocol,
  seed: tuple[int, int],
) -> Int64[np.ndarray, ' repeats'] | int | np.integer:
  """Returns the positions of the steps of the CMC curve of a query, from 0.

  Args:
    distance: distance of every gallery image to the query.
    answers: the matches of the query.
    dropped: gallery indices hidden from the query.
    gallery: the indexed gallery.
    protocol: defines the entries that the curve counts.
    seed: seed of the random galleries of this query.

  Returns:
    One position, or those in `protocol.repeats` random galleries.
  """
  if protocol.cmc == 'image':
    return answers.positions[0]
  kept = np.ones(distance.size, bool)
  kept[dropped] = False
  if protocol.cmc == 'identity':
    first = answers.images[0]
    # Images at the same distance are in gallery order.
    before = distance < distance[first]
    before[:first] |= distance[:first] == distance[first]
    return np.unique(gallery.codes[before & kept]).size
  rng = np.random.default_rng(seed)
  return _single_shot(distance, answers, kept, gallery, protocol.repeats, rng)


def _single_shot(distance, answers, kept, gallery, repeats, rng):
  """Returns positions in lists with a kept image per identity, `[repeats]`."""
  images = gallery.by_identity[kept[gallery.by_identity]]
  codes, starts, counts = np.unique(
    gallery.codes[images], return_index=True, return_counts=True
  )
  # One random number per identity selects among its kept images.
  draws = rng.random((repeats, codes.size)) * counts[None, :]
  drawn = images[starts[None, :] + draws.astype(np.int64)]
  column = np.searchsorted(codes, gallery.codes[answers.images[0]])
  right = drawn[:, column, None]
  nearer = (distance[drawn] < distance[right]) | (
    (distance[drawn] == distance[right]) & (drawn < right)
  )
  return np.count_nonzero(nearer, axis=1)
