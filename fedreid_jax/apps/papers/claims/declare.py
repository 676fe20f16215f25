"""Declares the claims of a paper and the runs that decide them.

A claim compares two arms. An arm is a recipe and the models of its runs that
are tested. Both arms are trained on the same routes with the same seeds, and
are compared query by query.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

Models = Literal['global', 'client', 'best_client', 'concat', 'average']
# Number of seeds of a claim that is not a main one and needs runs that no other
# claim has.
SIDE_SEEDS = 3


class Arm(NamedTuple):
  """One side of a claim.

  Attributes:
    recipe: `NAME:PRESET[,key=value...]`.
    models: models that are tested: 'global'; 'client', the mean over the
      models of the clients; 'best_client', the client's model with the highest
      mean over all targets of a seed, which favours this arm; 'concat', the
      clients' features in a row; 'average', the mean of their parameters.
    start: recipe of the run from whose models the runs of this arm start, with
      the same route and seed; empty for runs that start like all others.
  """

  recipe: str
  models: Models = 'global'
  start: str = ''


class Route(NamedTuple):
  """Changes that select the training domains and the tested domains."""

  name: str
  changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of a paper about two methods.

  Attributes:
    name: name on the command line and in files.
    source: paper and table.
    text: the statement.
    published: the numbers of the paper.
    arm: the method that the statement is about.
    base: the method that it is compared with.
    routes: training domains and targets on which it is tried.
    claimed: 'greater', or 'equal' for methods that are near each other.
    margin: in mAP, the smallest gain that matters, or the largest difference
      between methods that are near each other.
    first: whether it is a main claim, which `--first` selects.
    minus: targets whose effect is subtracted from the effect on the others, for
      a claim about the difference.
    seeds: largest number of seeds with which it is tried.
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
  """Returns a route; names of domains are separated by spaces."""
  changes = (
    f'data.sources={tuple(sources.split())!r}',
    f'data.targets={tuple(targets.split())!r}',
  )
  return Route(sources.replace(' ', '+'), (*changes, *more))


# Nine domains. Each is a training domain in one route and unseen in another.
ROUTES = (
  route('plaza campus station', 'mall park market'),
  route('mall park market', 'harbour alley arcade'),
  route('harbour alley arcade', 'plaza campus station'),
)
