"""Chooses fields of a method on held-out persons of its clients.

Every point of a grid is trained with every seed of the search. The share
`evaluation.validation` of the persons of every client is not trained on. The
point with the highest mean, over the seeds, of the mAP of the last round on
these persons is chosen; of equal points the first one. A point of which a run
diverges is not chosen. The targets play no part.

One procedure with one grid for all methods that are compared makes the rate a
part of each method: at a common rate, the method that it suits wins.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.papers import runner
from fedreid_jax.apps.papers.cells import Cell, results
from fedreid_jax.training.reports import report

RATE = 'optim.lr'
COLUMNS = 'point', 'held-out mAP', 'by seed'


class Point(NamedTuple):
  """One point of a search."""

  label: str
  fields: Mapping[str, str]  # its values, as text
  scores: tuple[float, ...]  # mAP in percent by seed, NaN for a diverged run

  @property
  def mean(self) -> float:
    """The mean over the seeds; -inf if a run diverged."""
    mean = float(np.mean(self.scores))
    return -math.inf if math.isnan(mean) else mean

  def cells(self) -> list[str]:
    """The texts of `COLUMNS`."""
    each = [_text(score) for score in self.scores]
    return [self.label, _text(float(np.mean(self.scores))), ', '.join(each)]


class Found(NamedTuple):
  """The result of a search whose runs have all ended."""

  points: tuple[Point, ...]  # in the order of the grid
  chosen: str  # label of the best point, '' if a run of every point diverged
  at_edge: bool  # a number of the best is the smallest or largest of its field
  rounds: int  # trained in all runs that did not diverge: the budget

  def described(self) -> dict[str, Any]:
    """The search as an object for JSON."""
    points = [
      {'point': p.label, 'held_out_mAP': [_number(x) for x in p.scores]}
      for p in self.points
    ]
    return self._asdict() | {'points': points}


def ended(cell: Cell) -> bool:
  """Whether the run of a search has results, or has diverged."""
  return results(cell) is not None or diverged(cell)


def diverged(cell: Cell) -> bool:
  """Whether the last attempt at a run ended with `DivergedError`."""
  note = cell.workdir / runner.ERROR
  return note.is_file() and is_divergence(note.read_text())


def is_divergence(note: str) -> bool:
  """Whether the file of an error of a run says that the run has diverged."""
  return note.startswith(f'error[{errors.DivergedError.exit_code}]')


def search(by_point: Mapping[str, Sequence[Cell]]) -> Found | None:
  """Judges the runs of a search; None before all of them have ended.

  Args:
    by_point: a run for every seed, by the label of its point.

  Raises:
    ConfigError: if a run has no held-out persons.
  """
  cells = [cell for own in by_point.values() for cell in own]
  if not all(map(ended, cells)):
    return None
  points = tuple(
    Point(label, own[0].factors or {RATE: label}, tuple(map(score, own)))
    for label, own in by_point.items()
  )
  best = max(points, key=lambda point: point.mean)
  chosen = best.label if best.mean > -math.inf else ''
  scores = (x for point in points for x in point.scores)
  rounds = sum(
    cell.config.rounds
    for cell, own in zip(cells, scores, strict=True)
    if not math.isnan(own)
  )
  return Found(points, chosen, bool(chosen) and _at_edge(best, points), rounds)


def _at_edge(best: Point, points: Sequence[Point]) -> bool:
  """Whether a value of a point is the smallest or the largest of its field."""
  for name, text in best.fields.items():
    values = {_value(point.fields[name]) for point in points}
    known = {value for value in values if value is not None}
    if len(known) > 1 and _value(text) in (min(known), max(known)):
      return True
  return False


def _value(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:  # words and tuples have no order
    return None


def score(cell: Cell) -> float:
  """The mAP of a run on held-out persons in its last round, in percent.

  It is the mean over the clients' persons; NaN if the run diverged.

  Raises:
    ConfigError: if the run has no held-out persons.
  """
  done = results(cell)
  if done is None:
    return math.nan
  evaluation = done['evaluation']
  last = max(entry['round'] for entry in evaluation)
  found = report.held_out([x for x in evaluation if x['round'] == last])
  if 'mAP' not in found:
    raise errors.ConfigError(
      'the run holds out no persons of its clients',
      str(cell.workdir),
      'raise evaluation.validation, or train on domains with more identities',
    )
  return found['mAP']


def _text(value: float) -> str:
  return 'diverged' if math.isnan(value) else f'{value:.1f}'


def _number(value: float) -> float | None:
  return None if math.isnan(value) else value
