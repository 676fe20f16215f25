"""Computes the lines of a table: means, deviations, paired differences."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.apps.papers.tables.line import Line

COMPARED = (
  'rank1',
  'mAP',
  'accuracy',
)  # metrics with a difference to the baseline


class Run(NamedTuple):
  """A finished run.

  Attributes:
    label: label of its row in the table.
    factors: values of the fields that the sweep varies.
    pair: seed and trial; runs of two labels with the same ones are a pair.
    results: contents of results.json.
  """

  label: str
  factors: Mapping[str, str]
  pair: tuple[int, str]
  results: Mapping[str, Any]


def summarise(runs: Iterable[Run]) -> list[Line]:
  """Returns means and sample standard deviations over the runs of a label.

  A single run has no standard deviation.
  """
  groups: dict[tuple[str, ...], list[tuple[Run, dict[str, float]]]] = {}
  for run in runs:
    for entry in run.results['summary']:
      key = run.label, entry['target'], entry['model'], entry['kind']
      groups.setdefault(key, []).append((run, entry['metrics']))
  lines = []
  for (label, target, model, kind), samples in groups.items():
    numbers = {}
    for name in samples[0][1]:
      values = [metrics[name] for _, metrics in samples]
      numbers[name] = float(np.mean(values))
      # ddof=1: an estimate for other runs, from squares over the number less
      # one.
      if len(values) > 1:
        numbers[f'{name} std'] = float(np.std(values, ddof=1))
    sent = [sum(r.results['communication_bytes'].values()) for r, _ in samples]
    spent = [r.results['seconds']['total'] for r, _ in samples]
    lines.append(
      Line(
        label=label,
        factors=samples[0][0].factors,
        target=target,
        model=model,
        kind=kind,
        samples=len(samples),
        numbers=numbers,
        megabytes=float(np.mean(sent)) / 1e6,
        seconds=float(np.mean(spent)),
        runs={run.pair: metrics for run, metrics in samples},
      )
    )
  return lines


def compare(lines: Sequence[Line], baseline: Sequence[Line]) -> list[Line]:
  """Adds to each line its increase over a baseline on the same target.

  A model is compared with the baseline's model of the same name, or otherwise
  with the model of the client of the target.
  """
  known = {(b.target, b.model, b.kind): b for b in baseline}
  compared = []
  for line in lines:
    # A baseline of clients that train alone has no global model: a federated
    # model is compared with the client whose data set is the target.
    own = f'client:{line.target}'
    # Results of best rounds are compared with best rounds if the baseline has
    # them.
    kind = 'last' if line.kind == 'last' else 'best'
    keys = (
      (line.model, line.kind),
      (line.model, 'last'),
      (own, kind),
      (own, 'last'),
    )
    found = [known[line.target, *k] for k in keys if (line.target, *k) in known]
    if line not in baseline and found:
      line = line._replace(numbers=line.numbers | increase(line, found[0]))
    compared.append(line)
  return compared


def increase(line: Line, base: Line) -> dict[str, float]:
  """Returns the increase of metrics over another line.

  Runs with the same seed and trial are pairs. The increase is the mean over the
  pairs; ` n` is their number, and ` se` the standard error of the mean, which
  is the sample standard deviation of the differences over the root of n.
  Without pairs the increase is the difference of the two means.
  """
  pairs = [pair for pair in line.runs if pair in base.runs]
  found = {}
  for metric in COMPARED:
    if metric not in line.numbers or metric not in base.numbers:
      continue
    name = f'{metric} - baseline'
    gains = [line.runs[p][metric] - base.runs[p][metric] for p in pairs]
    if not gains:
      found[name] = line.numbers[metric] - base.numbers[metric]
      continue
    found |= {name: float(np.mean(gains)), f'{name} n': float(len(gains))}
    if len(gains) > 1:
      found[f'{name} se'] = float(np.std(gains, ddof=1) / np.sqrt(len(gains)))
  return found
