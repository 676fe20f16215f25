"""A line of the report of a sweep or table."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SUFFIXES = (
  ' std',
  ' published',
  ' - baseline',
  ' - baseline se',
  ' - baseline n',
  ' - baseline published',
)


class Line(NamedTuple):
  """Scores of one model of a label on a target.

  Attributes:
    label: of the runs.
    factors: values of the label, one column each.
    target: ranked target.
    model: 'global', 'client:NAME' or 'cluster:I'.
    kind: 'last' round, 'best' one, or mean of the 'best_three', see `summary`.
    samples: number of runs.
    numbers: percent: the mean of each metric and, under its name with one of
      `SUFFIXES`, its other statistics.
    megabytes: sent in both directions, mean over the runs.
    seconds: mean over the runs.
    runs: metrics of each run by its seed and trial; none if the line is read
      from a file.
  """

  label: str
  factors: Mapping[str, str]
  target: str
  model: str
  kind: str
  samples: int
  numbers: dict[str, float]
  megabytes: float
  seconds: float
  runs: Mapping[tuple[int, str], Mapping[str, float]] = MappingProxyType({})
