"""A line of the table of a sweep or of a paper."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# In the order of the columns after a metric.
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
    label: label of the runs.
    factors: values of the fields that the sweep varies; each has a column.
    target: name of the target.
    model: 'global', 'client:NAME' or 'cluster:I'.
    kind: 'last' round, 'best' round, or mean of the 'best_three' rounds.
    samples: number of runs.
    numbers: in percent, the mean of each metric under its name, and its other
      statistics under its name with one of `SUFFIXES`.
    megabytes: sent in both directions, mean over the runs.
    seconds: duration, mean over the runs.
    runs: metrics of each run by its seed and trial; empty if the line was read
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
