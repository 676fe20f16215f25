"""How near strangers are: what the distance of a match is worth.

A distance means nothing without those of other persons. Pairs of images of two
persons who are not in the training set give distances d_1, ..., d_n of
strangers, and a match at the distance d has the rank

  1 + #{i: d_i <= d}   of   1 + n.

If the two images were of strangers of the same kind, a share r would be reached
with a probability of at most r, which is not so without the two ones (Phipson
and Smyth, "Permutation P-values should never be zero", Statistical Applications
in Genetics and Molecular Biology, 2010). The smallest share that n pairs can
show is 1 / (1 + n). A share is of one comparison: among g images of strangers,
g times as many are as near.

Every two persons of a test count once, with one query image of one of them and
one gallery image of the other, drawn with a fixed seed. More images of the same
persons would be more distances, but no more persons, and would promise more
than the sample can tell. The images may be of one camera, as in a search.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import distances as distance_lib

SEED = 0  # of persons and images
MOST_PERSONS = 2000  # of a side of a test
MOST_PAIRS = 50_000  # of a test

Pairs = tuple[Int[np.ndarray, ' n'], Int[np.ndarray, ' n']]


class Calibration(NamedTuple):
  """Distances of pairs of strangers."""

  distances: Float[np.ndarray, ' n']  # ascending
  persons: int
  domains: tuple[str, ...]

  def rank(self, distance: float) -> tuple[int, int]:
    """Rank of a distance among strangers, and the number of ranks.

    >>> strangers = Calibration(np.float32([0.5, 0.75, 1.0]), 3, ('mall',))
    >>> strangers.rank(0.25), strangers.rank(0.75)
    ((1, 4), (3, 4))
    """
    # Gallery distances are float32, as those of strangers.
    nearer = np.searchsorted(self.distances, np.float32(distance), 'right')
    return 1 + int(nearer), 1 + len(self.distances)

  def text(self, distance: float) -> str:
    """The rank in words, '3 of 4': at most so many strangers are as near."""
    rank, ranks = self.rank(distance)
    return f'{rank:,} of {ranks:,}'


def pairs(
  identities: Int[np.ndarray, ' M'],
  query: Int[np.ndarray, ' Q'],
  gallery: Int[np.ndarray, ' P'],
  most: int = MOST_PAIRS,
) -> Pairs:
  """Rows of images of two persons each, one of them among the queries.

  The result has the rows of the query images and those of the gallery images.
  Every two persons occur once at most, and `most` pairs are drawn of more.
  """
  rng = np.random.default_rng(SEED)
  sides: list[_Side] = [
    _side(identities, rows, rng) for rows in (query, gallery)
  ]
  one, other = np.meshgrid(sides[0].persons, sides[1].persons, indexing='ij')
  # Where both persons are on both sides, (a, b) and (b, a) are the same two.
  twice = np.isin(one, sides[1].persons) & np.isin(other, sides[0].persons)
  first, second = np.nonzero((one != other) & ~(twice & (one > other)))
  if len(first) > most:
    chosen = np.sort(rng.choice(len(first), most, replace=False))
    first, second = first[chosen], second[chosen]
  drawn = [
    side.rows[side.start[k] + rng.integers(side.num[k])]
    for side, k in zip(sides, (first, second), strict=True)
  ]
  return drawn[0], drawn[1]


class _Side(NamedTuple):
  """The images of one side of a test, sorted by person."""

  rows: Int[np.ndarray, ' rows']
  persons: Int[np.ndarray, ' persons']
  start: Int[np.ndarray, ' persons']  # of each person in `rows`
  num: Int[np.ndarray, ' persons']


def _side(
  identities: Int[np.ndarray, ' M'],
  rows: Int[np.ndarray, ' rows'],
  rng: np.random.Generator,
) -> _Side:
  people = np.unique(identities[rows])
  # Junk and distractors have negative identities.
  people = people[people >= 0]
  if len(people) > MOST_PERSONS:
    people = np.sort(rng.choice(people, MOST_PERSONS, replace=False))
  rows = rows[np.isin(identities[rows], people)]
  rows = rows[np.argsort(identities[rows], kind='stable')]
  _, start, num = np.unique(
    identities[rows], return_index=True, return_counts=True
  )
  return _Side(rows, people, start, num)


def calibrate(
  tests: Sequence[tuple[Target, Float[np.ndarray, 'M D']]], metric: str
) -> Calibration:
  """Distances of strangers in tests, each with the features of its images.

  The first trial of a test is used, and only persons of one test are paired.

  Raises:
    DataError: if no test has two persons.
  """
  found: list[Float[np.ndarray, ' n']] = []
  persons = 0
  for target, features in tests:
    trial, identities = target.trials[0], target.images.identities
    query, gallery = pairs(identities, trial.query, trial.gallery)
    found.append(_between(features[query], features[gallery], metric))
    persons += len(np.unique(identities[np.append(query, gallery)]))
  if not sum(map(len, found)):
    raise errors.DataError(
      'no two persons to compare',
      'evaluation',
      'give a target with two persons or more',
    )
  return Calibration(
    np.sort(np.concatenate(found)),
    persons,
    tuple(target.name for target, _ in tests),
  )


def _between(
  one: Float[np.ndarray, 'n D'], other: Float[np.ndarray, 'n D'], metric: str
) -> Float[np.ndarray, ' n']:
  """Distances of rows, those that a search prints."""
  if metric == 'cosine':
    one, other = (
      np.asarray(distance_lib.normalise(jnp.asarray(x))) for x in (one, other)
    )
    return 1 - np.einsum('ij,ij->i', one, other)
  return np.linalg.norm(one - other, axis=1)
