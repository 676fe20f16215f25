"""The table of a sweep: its lines are computed, written and read here."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.papers import effects
from fedreid_jax.apps.papers.cells import Cell, results_in
from fedreid_jax.core import model_names
from fedreid_jax.training.files import atomic

# Metrics with a difference to the baseline.
COMPARED = ('rank1', 'mAP', 'accuracy')
# In the order of the columns after a metric.
SUFFIXES = (
  *(' std', ' published', ' - baseline', ' - baseline low'),
  *(' - baseline high', ' - baseline n', ' - baseline published'),
)


class Run(NamedTuple):
  """A finished run."""

  label: str  # of its row in the table
  factors: Mapping[str, str]  # values of the fields that the sweep varies
  pair: tuple[int, str]  # seed and trial; runs with equal ones are a pair
  results: Mapping[str, Any]  # contents of results.json


class Line(NamedTuple):
  """Scores of one model of a label on a target."""

  label: str
  factors: Mapping[str, str]  # varied fields; each has a column
  target: str
  model: str  # 'global', 'client:NAME' or 'cluster:I'
  kind: str  # as in `fedreid_jax.training.reports.report`
  samples: int  # number of runs
  # In percent, the mean of each metric under its name, and its other statistics
  # under its name with one of `SUFFIXES`.
  numbers: dict[str, float]
  megabytes: float  # in both directions, mean over the runs
  seconds: float  # mean duration of the runs
  # Metrics by seed and trial; empty if the line was read from a file.
  runs: Mapping[tuple[int, str], Mapping[str, float]] = MappingProxyType({})


def summarise(runs: Iterable[Run]) -> list[Line]:
  """Means and sample deviations by label; a single run has no deviation."""
  groups: dict[tuple[str, ...], list[tuple[Run, dict[str, float]]]] = {}
  for run in runs:
    for entry in run.results['summary']:
      key = run.label, entry['target'], entry['model'], entry['kind']
      groups.setdefault(key, []).append((run, entry['metrics']))
  lines = []
  for (label, target, model, kind), samples in groups.items():
    numbers = {}
    for name in samples[0][1]:
      # The best rounds of runs may have other evaluators (`options.Every`).
      if any(name not in metrics for _, metrics in samples):
        continue
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
    own = model_names.of_client(line.target)
    # Results of best rounds are compared with best rounds if the baseline has
    # them.
    kind = 'last' if line.kind == 'last' else 'own_best'
    keys = (
      *((line.model, line.kind), (line.model, 'last')),
      *((own, kind), (own, 'last')),
    )
    found = [known[line.target, *k] for k in keys if (line.target, *k) in known]
    if line not in baseline and found:
      line = line._replace(numbers=line.numbers | increase(line, found[0]))
    compared.append(line)
  return compared


def increase(line: Line, base: Line) -> dict[str, float]:
  """The mean increase over the pairs, runs with one seed and trial.

  ` n` is the number of pairs, and ` low` and ` high` are the ends of the 95 %
  interval of the mean, which two pairs or more have (`effects`). Without pairs
  the increase is the difference of the two means.
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
    effect = effects.of_seeds(gains)
    found |= {name: effect.mean, f'{name} n': float(effect.seeds)}
    if effect.seeds > 1:
      found |= {f'{name} low': effect.low, f'{name} high': effect.high}
  return found


def write(
  path: Path,
  title: str,
  lines: Sequence[Line],
  unfinished: Sequence[Mapping[str, str]] = (),
) -> str:
  """Writes `PATH.csv` and `PATH.md` atomically and returns the Markdown."""
  names = dict.fromkeys(name for line in lines for name in line.numbers)
  metrics = sorted({name.partition(' ')[0] for name in names}, key=_order)
  columns = [n + s for n in metrics for s in ('', *SUFFIXES) if n + s in names]
  factors = dict.fromkeys(k for line in lines for k in line.factors)
  first = ('label', *factors, 'target', 'model', 'kind', 'samples')
  rows = [
    line._asdict()
    | dict(line.factors)
    | {name: f'{value:.4f}' for name, value in line.numbers.items()}
    | {'MB': f'{line.megabytes:.3f}', 'seconds': f'{line.seconds:.1f}'}
    for line in lines
  ]
  header = (*first, *columns, 'MB', 'seconds', 'seed', 'error')
  _write_csv(_file(path, '.csv'), header, [*rows, *unfinished])
  text = _text(title, columns, lines, unfinished)
  atomic.write_text(_file(path, '.md'), text)
  return text


def write_runs(path: Path, cells: Sequence[Cell]) -> None:
  """Writes label, fields, seed, trial and folder of runs to `PATH-runs.csv`."""
  factors = dict.fromkeys(k for cell in cells for k in cell.factors)
  rows = [
    {
      **{'label': cell.label, 'seed': cell.config.seed, 'trial': cell.trial},
      **cell.factors,
      # Relative, so that the folder of a sweep can be moved.
      'workdir': os.path.relpath(cell.workdir, path.parent),
    }
    for cell in cells
  ]
  names = ('label', *factors, 'seed', 'trial', 'workdir')
  _write_csv(_file(path, '-runs.csv'), names, rows)


def read(path: Path) -> list[Line]:
  """Reads `PATH.csv` without unfinished runs, or raises IntegrityError."""
  file = _file(path, '.csv')
  try:
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    # The rows of unfinished runs have no samples.
    return [_line(row) for row in rows if row['samples']]
  except (OSError, KeyError, ValueError) as error:
    raise errors.IntegrityError(
      'no table of a sweep', str(file), 'give the work directory of a sweep'
    ) from error


def finished(path: Path) -> list[tuple[str, dict[str, Any]]]:
  """Reads (label, results) of finished runs, or raises IntegrityError."""
  file = _file(path, '-runs.csv')
  try:
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    folders = [(row['label'], path.parent / row['workdir']) for row in rows]
  except (OSError, KeyError) as error:
    raise errors.IntegrityError(
      'no list of the runs of a sweep', str(file), 'repeat the sweep'
    ) from error
  found = []
  for label, folder in folders:
    results = results_in(folder)
    if results and 'summary' in results:
      found.append((label, results))
  return found


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
  """The lines of a Markdown table."""
  table = (header, ['---'] * len(header), *rows)
  return [f'| {" | ".join(row)} |' for row in table]


def write_markdown(
  path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
  """Writes a Markdown table, which is returned."""
  text = '\n'.join(markdown(header, rows)) + '\n'
  atomic.write_text(path, text)
  return text


def _file(path: Path, suffix: str) -> Path:
  # Not `with_suffix`: the name of a table may have a dot.
  return path.with_name(path.name + suffix)


def _write_csv(
  path: Path, names: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
  out = io.StringIO()
  table = csv.DictWriter(out, names, extrasaction='ignore', lineterminator='\n')
  table.writeheader()
  table.writerows(rows)
  atomic.write_text(path, out.getvalue())


def _line(row: Mapping[str, str]) -> Line:
  names = list(row)
  # Columns are found by position: factors are between `label` and `target`, and
  # numbers between `samples` and `MB`.
  first, last = names.index('target'), names.index('samples')
  numbers = names[last + 1 : names.index('MB')]
  return Line(
    label=row['label'],
    factors={name: row[name] for name in names[1:first]},
    target=row['target'],
    model=row['model'],
    kind=row['kind'],
    samples=int(row['samples']),
    numbers={name: float(row[name]) for name in numbers if row[name]},
    megabytes=float(row['MB']),
    seconds=float(row['seconds']),
  )


def _order(metric: str) -> tuple[str, int]:
  # By number, so that rank5 is before rank10.
  word = metric.rstrip('0123456789')
  return word, int(metric[len(word) :] or 0)


def _text(title, columns, lines, unfinished) -> str:
  # `_percent` writes these beside the mean.
  beside = (' std', ' low', ' high', ' n')
  columns = [c for c in columns if not c.endswith(beside)]
  header = ('label', 'target', 'model', 'kind', 'samples', *columns)
  rows = [
    [
      *(line.label, line.target, line.model, line.kind, str(line.samples)),
      *(_percent(line, name) for name in columns),
      *(f'{line.megabytes:.1f}', f'{line.seconds:.0f}'),
    ]
    for line in lines
  ]
  text = [f'# {title}', '', *markdown((*header, 'MB', 'seconds'), rows)]
  if unfinished:
    text += ['', f'Not finished: {len(unfinished)}.', '']
  text += [
    f'- {row["label"]}, seed {row["seed"]}: {row["error"]}'
    for row in unfinished
    if row['error']
  ]
  return '\n'.join(text) + '\n'


def _percent(line: Line, name: str) -> str:
  """A mean with its deviation, or an increase with its interval and n."""
  if name not in line.numbers:
    return ''
  number = line.numbers[name]
  if f'{name} n' in line.numbers:
    low, high = (line.numbers.get(f'{name} {end}') for end in ('low', 'high'))
    interval = '' if low is None else f' [{low:+.2f}, {high:+.2f}]'
    return f'{number:+.2f}{interval} (n {line.numbers[f"{name} n"]:.0f})'
  sign = '+' if ' - baseline' in name else ''
  spread = line.numbers.get(f'{name} std')
  return f'{number:{sign}.2f}' + ('' if spread is None else f' ± {spread:.2f}')
