"""Declaration of the claims of a paper and of the trials that decide them.

A claim compares two arms. An arm is a recipe and the models of its runs that
are tested; both arms are run on the same routes with the same seeds, and are
compared query by query.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

Models = Literal['global', 'client', 'best_client', 'concat', 'average']
# Of a claim that is not a main one and needs runs of its own.
SIDE_SEEDS = 3


class Arm(NamedTuple):
  """One side of a claim.

  Attributes:
    recipe: `NAME:PRESET[,key=value...]`.
    models: models that are tested: 'global'; 'client', the mean over the
      clients' own models; 'best_client', the client's model with the highest
      mean over all targets of a seed, which favours this arm; 'concat', the
      clients' features in a row; 'average', the mean of their parameters.
    start: recipe of the run from whose models the runs of this arm start, with
      the same route and seed; empty for runs that start like all others.
  """

  recipe: str
  models: Models = 'global'
  start: str = ''


class Route(NamedTuple):
  """Domains that train, and domains that are tested."""

  name: str
  changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of a paper about two methods.

  Attributes:
    name: for files and tables.
    source: paper and table.
    text: the statement.
    published: the paper's own figures.
    arm: the method that the statement is about.
    base: the method that it is compared with.
    routes: sources and targets.
    claimed: 'greater', or 'equal' for methods that are near each other.
    margin: in mAP: the smallest gain that matters, or the largest difference
      of methods that are near each other.
    first: whether the first pass tries it.
    minus: targets whose effect is subtracted from that of the others: the claim
      is about their difference.
    seeds: the most seeds with which it is tried.
  """

  name: str
  source: str
  text: str
  published: str
  arm: Arm
  base: Arm
  routes: Sequence[Route]
  claimed: Literal['greater', 'equal'] = 'greater'
  margin: float = 1.0
  first: bool = False
  minus: tuple[str, ...] = ()
  seeds: int = 5


def route(sources: str, targets: str, *more: str) -> Route:
  """Returns a route from names of domains, separated by spaces."""
  changes = (
    f'data.sources={tuple(sources.split())!r}',
    f'data.targets={tuple(targets.split())!r}',
  )
  return Route(sources.replace(' ', '+'), (*changes, *more))


# Nine domains, each of which is trained on in one route and unseen in another.
ROUTES = (
  route('plaza campus station', 'mall park market'),
  route('mall park market', 'harbour alley arcade'),
  route('harbour alley arcade', 'plaza campus station'),
)
