"""CMC, mAP and mINP of ranked lists.

The ranked list of a query has the gallery images that the protocol does not
hide from it, nearest first. Its matches, the R images of the query's identity,
have the positions p_0 < ... < p_{R-1}, counted from 0. The scores of the query
are:

  AP, standard   = 1/R sum_j (j + 1) / (p_j + 1)
  AP, trapezoid  = 1/R sum_j (j / p_j + (j + 1) / (p_j + 1)) / 2, the first
                   fraction being 1 where p_j = 0 (Philbin et al., CVPR 2007)
  INP            = R / (p_{R-1} + 1)   (Ye et al., TPAMI 2021, equation 2)
  CMC at k       = 1 where p_0 < k, else 0

The list is not sorted: a position is the number of nearer images. Images at the
same distance are in gallery order. The result does not depend on the number of
queries in a block.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped

from fedreid_jax import errors
from fedreid_jax.data import protocols
from fedreid_jax.data.protocols import Protocol
from fedreid_jax.evaluation import gallery as gallery_lib
from fedreid_jax.evaluation.gallery import Gallery


class Scores(NamedTuple):
  """Scores of every query. A query without a match is invalid.

  Attributes:
    first: position of the first match in the CMC curve, infinite without one.
    ties: number of matches at the distance of an image of another identity;
      such images are in gallery order.
  """

  precision: Float64[np.ndarray, ' Q']  # AP, zero without a match
  inverse_penalty: Float64[np.ndarray, ' Q']  # INP, zero without a match
  first: Float64[np.ndarray, 'Q repeats']
  valid: Bool[np.ndarray, ' Q']  # whether the query has a match
  ties: Int64[np.ndarray, ' Q']


def evaluate_ranking(
  distance: Any,
  query_ids: Any,
  gallery_ids: Any,
  query_cameras: Any,
  gallery_cameras: Any,
  protocol: str | Protocol = 'market',
  ranks: Sequence[int] = (1, 5, 10),
  seed: int = 0,
) -> dict[str, float | int]:
  """Evaluates a matrix of distances under a test protocol.

  Images at the same distance are in gallery order. A CMC curve has its last
  value at all ranks beyond its length.

  >>> import fedreid_jax as fr
  >>> distance = [[0.1, 0.7, 0.2], [0.3, 0.4, 0.9]]
  >>> found = fr.evaluate_ranking(
  ...   distance, [0, 1], [0, 1, 1], [0, 0], [1, 1, 1], ranks=(1, 2)
  ... )
  >>> found['rank1'], found['rank2'], round(found['mAP'], 1)
  (50.0, 100.0, 79.2)

  Args:
    distance: distances `[Q, P]`.
    query_ids: identities, int `[Q]`; so are `query_cameras`.
    gallery_ids: identities, int `[P]`; so are `gallery_cameras`.
    protocol: a name of `protocols.PROTOCOLS` or a `Protocol`.
    ranks: ranks at which the CMC curve is reported, from 1.
    seed: seed of the random galleries of a 'single_shot' CMC curve.

  Returns:
    `mAP`, `mINP`, `rank1`, ... in percent, and the counts `queries`,
    `gallery` (both as given), `invalid_queries` (without a match) and
    `ties` (matches at the distance of an image of another identity).

  Raises:
    ConfigError: for an unknown protocol or a rank below 1.
    DataError: for labels that do not fit, NaN distances, or no valid query.
  """
  labels = gallery_lib.check_labels(
    query_ids, gallery_ids, query_cameras, gallery_cameras
  )
  distance = np.asarray(distance)
  expected = (labels.query_ids.size, labels.gallery_ids.size)
  if distance.shape != expected:
    raise errors.DataError(
      f'distances of shape {distance.shape}',
      'evaluation',
      f'the labels need {expected}',
    )
  if distance.dtype not in (np.float32, np.float64):
    distance = distance.astype(np.float64)
  return evaluate_blocks([distance], labels, protocol, ranks, seed)


def evaluate_blocks(
  blocks: Iterable[Float[np.ndarray, 'rows P']],
  labels: gallery_lib.Labels,
  protocol: str | Protocol,
  ranks: Sequence[int],
  seed: int,
  keep: Callable[[Scores], None] | None = None,
) -> dict[str, float | int]:
  """Evaluates blocks as `evaluate_ranking`; `keep` receives the scores.

  Raises:
    ConfigError: for an unknown protocol or a rank below 1.
    DataError: if a distance is NaN, or no query is valid.
  """
  rules = protocols.get(protocol)
  if any(rank < 1 for rank in ranks):
    raise errors.ConfigError(
      f'{tuple(ranks)} are not all positive', 'ranks', 'use ranks from 1'
    )
  scores = score_queries(blocks, labels, rules, seed)
  if keep:
    keep(scores)
  return summarise(scores, rules, ranks, labels.gallery_ids.size)


def score_queries(
  blocks: Iterable[Float[np.ndarray, 'rows P']],
  labels: gallery_lib.Labels,
  protocol: Protocol,
  seed: int = 0,
) -> Scores:
  """Scores queries; the rows of all blocks together are the queries in order.

  `seed` is for the random galleries of the 'single_shot' curve. A DataError is
  raised if a distance is NaN.
  """
  num_queries = labels.query_ids.size
  gallery = gallery_lib.Gallery(labels, protocol)
  # Scores are float64, and their means are computed once at the end, so that
  # the number of queries in a block does not change the result.
  scores = Scores(
    precision=np.zeros(num_queries),
    inverse_penalty=np.zeros(num_queries),
    first=np.full((num_queries, protocol.repeats), np.inf),
    valid=np.zeros(num_queries, bool),
    ties=np.zeros(num_queries, np.int64),
  )
  for query, distance in enumerate(itertools.chain.from_iterable(blocks)):
    # Comparisons with NaN are false, so that a match at NaN would rank first.
    if np.isnan(distance).any():
      raise errors.DataError(
        'NaN distance',
        f'query {query}',
        'check for a diverged model or an image that cannot be decoded',
      )
    right, dropped = gallery.split(
      labels.query_ids[query], labels.query_cameras[query]
    )
    if not right.size:
      continue
    answers = kept_positions(distance, right, dropped)
    positions = answers.positions
    scores.valid[query] = True
    scores.ties[query] = answers.ties
    scores.precision[query] = average_precision(positions, protocol.precision)
    scores.inverse_penalty[query] = positions.size / (positions[-1] + 1)
    scores.first[query] = first_hits(
      distance, answers, dropped, gallery, protocol, (seed, query)
    )
  return scores


def average_precision(positions: Int[np.ndarray, ' R'], rule: str) -> float:
  """Average precision of matches at ascending positions from 0."""
  hits = np.arange(positions.size)
  at_hit = (hits + 1) / (positions + 1)
  if rule == 'standard':
    return float(at_hit.mean())
  # The fraction is 1 at position 0 by definition. np.where evaluates both cases
  # everywhere, and np.maximum avoids 0 / 0.
  before = np.where(positions > 0, hits / np.maximum(positions, 1), 1.0)
  return float((before + at_hit).mean() / 2)


def summarise(
  scores: Scores, protocol: Protocol, ranks: Sequence[int], num_gallery: int
) -> dict[str, float | int]:
  """Means over queries, in percent, and counts; DataError without a match."""
  if not scores.valid.any():
    raise errors.DataError(
      f'none of {scores.valid.size} queries has a match',
      'evaluation',
      'check identities and cameras, or use a protocol with same_camera=False',
    )
  counted = slice(None) if protocol.count_invalid else scores.valid
  return {
    'mAP': _percent(scores.precision[counted]),
    'mINP': _percent(scores.inverse_penalty[counted]),
    **{f'rank{rank}': _percent(scores.first[counted] < rank) for rank in ranks},
    'queries': scores.valid.size,
    'gallery': num_gallery,
    'invalid_queries': int(np.count_nonzero(~scores.valid)),
    'ties': int(scores.ties.sum()),
  }


def _percent(values: Shaped[np.ndarray, 'Q ...']) -> float:
  return 100.0 * float(values.mean())


class Answers(NamedTuple):
  """The matches of one query, nearest first.

  Attributes:
    ties: number of matches whose position depends on the tie rule, since a
      wrong image of the ranked list is at the same distance.
  """

  images: Int64[np.ndarray, ' R']  # gallery indices
  positions: Int64[np.ndarray, ' R']  # in the ranked list, from 0
  ties: int


def kept_positions(
  distance: Float[np.ndarray, ' P'],
  right: Int64[np.ndarray, ' R'],
  dropped: Int64[np.ndarray, ' dropped'],
) -> Answers:
  """Finds the matches of a query in its ranked list.

  `right` are the gallery indices of the matches, ascending, and `dropped` those
  of images hidden from the query.
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


def _numbers(
  distance: Float[np.ndarray, ' P'], values: Float[np.ndarray, ' R']
) -> tuple[Int64[np.ndarray, ' R'], Int64[np.ndarray, ' R']]:
  """Numbers of distances below, and at most, each sorted value."""
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


@functools.cache
def counted_matches() -> int:
  """Largest number of matches whose nearer images are counted.

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
  seconds = []
  for _ in range(5):
    start = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - start)
  return min(seconds)


def first_hits(
  distance: Float[np.ndarray, ' P'],
  answers: Answers,
  dropped: Int64[np.ndarray, ' dropped'],
  gallery: Gallery,
  protocol: Protocol,
  seed: tuple[int, int],
) -> Int64[np.ndarray, ' repeats'] | int | np.integer:
  """Position of the step of the CMC curve of a query, from 0.

  For a single-shot curve there are `protocol.repeats` positions, those in
  random galleries of the query's seed.
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
  """Positions in lists with a kept image per identity, `[repeats]`."""
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
