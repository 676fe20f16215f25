"""Reads and writes the files of a sweep: its table and the list of its runs."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.apps.papers.runs.cells import Cell
from fedreid_jax.apps.papers.tables.line import SUFFIXES, Line
from fedreid_jax.training.files import recorder


def write(
  path: Path,
  title: str,
  lines: Sequence[Line],
  unfinished: Sequence[Mapping[str, str]] = (),
) -> str:
  """Writes `PATH.csv` and `PATH.md`, each atomically.

  Args:
    path: of the table, without suffix.
    title: heading of the Markdown.
    lines: lines of the table.
    unfinished: rows of unfinished runs with label, factors, seed and error.

  Returns:
    The Markdown.
  """
  names = dict.fromkeys(name for line in lines for name in line.numbers)
  metrics = sorted({name.partition(' ')[0] for name in names}, key=_order)
  columns = [n + s for n in metrics for s in ('', *SUFFIXES) if n + s in names]
  factors = dict.fromkeys(k for line in lines for k in line.factors)
  first = ('label', *factors, 'target', 'model', 'kind', 'samples')
  out = io.StringIO()
  table = csv.DictWriter(
    out,
    (*first, *columns, 'MB', 'seconds', 'seed', 'error'),
    extrasaction='ignore',
    lineterminator='\n',
  )
  table.writeheader()
  table.writerows(
    line._asdict()
    | dict(line.factors)
    | {name: f'{value:.4f}' for name, value in line.numbers.items()}
    | {'MB': f'{line.megabytes:.3f}', 'seconds': f'{line.seconds:.1f}'}
    for line in lines
  )
  table.writerows(unfinished)
  _replace(path.with_name(f'{path.name}.csv'), out.getvalue())
  text = _markdown(title, columns, lines, unfinished)
  _replace(path.with_name(f'{path.name}.md'), text)
  return text


def read(path: Path) -> list[Line]:
  """Reads the lines of `PATH.csv`, without unfinished runs.

  Args:
    path: of the table, without suffix.

  Raises:
    IntegrityError: if there is no such table.
  """
  file = path.with_name(f'{path.name}.csv')
  try:
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    # The rows of unfinished runs have no samples.
    return [_line(row) for row in rows if row['samples']]
  except (OSError, KeyError, ValueError) as error:
    raise errors.IntegrityError(
      'no table of a sweep', str(file), 'give the work directory of a sweep'
    ) from error


def exists(path: Path) -> bool:
  """Returns whether there is a table at a path without suffix."""
  return path.with_name(f'{path.name}.csv').is_file()


def write_runs(path: Path, cells: Iterable[Cell]) -> None:
  """Writes the label, fields, seed, trial and folder of runs to a CSV file.

  Args:
    path: of the table, without suffix; the file is `PATH-runs.csv`.
    cells: runs of the table.
  """
  cells = list(cells)
  factors = dict.fromkeys(k for cell in cells for k in cell.factors)
  out = io.StringIO()
  names = ('label', *factors, 'seed', 'trial', 'workdir')
  table = csv.DictWriter(out, names, lineterminator='\n')
  table.writeheader()
  for cell in cells:
    # Relative, so that the folder of a sweep can be moved.
    folder = os.path.relpath(cell.workdir, path.parent)
    own = {'label': cell.label, 'seed': cell.config.seed, 'trial': cell.trial}
    table.writerow({**own, **cell.factors, 'workdir': folder})
  _replace(path.with_name(f'{path.name}-runs.csv'), out.getvalue())


def finished(path: Path) -> list[tuple[str, dict[str, Any]]]:
  """Returns (label, contents of results.json) of the finished runs.

  Args:
    path: of the table, without suffix.

  Raises:
    IntegrityError: if there is no list of its runs.
  """
  file = path.with_name(f'{path.name}-runs.csv')
  try:
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    folders = [(row['label'], path.parent / row['workdir']) for row in rows]
  except (OSError, KeyError) as error:
    raise errors.IntegrityError(
      'no list of the runs of a sweep', str(file), 'repeat the sweep'
    ) from error
  found = []
  for label, folder in folders:
    with contextlib.suppress(errors.IntegrityError):  # the run has not ended
      results = recorder.read_object(folder / 'results.json')
      if 'summary' in results:
        found.append((label, results))
  return found


def _line(row: Mapping[str, str]) -> Line:
  names = list(row)
  # Columns are found by position: factors are between `label` and `target`, and
  # numbers between `samples` and `MB`.
  first, last = names.index('target'), names.index('samples')
  return Line(
    label=row['label'],
    factors={name: row[name] for name in names[1:first]},
    target=row['target'],
    model=row['model'],
    kind=row['kind'],
    samples=int(row['samples']),
    numbers={
      name: float(row[name])
      for name in names[last + 1 : names.index('MB')]
      if row[name]
    },
    megabytes=float(row['MB']),
    seconds=float(row['seconds']),
  )


def _order(metric: str) -> tuple[str, int]:
  # By number, so that rank5 is before rank10.
  word = metric.rstrip('0123456789')
  return word, int(metric[len(word) :] or 0)


def _markdown(title, columns, lines, unfinished) -> str:
  # `_percent` writes these beside the mean.
  columns = [c for c in columns if not c.endswith((' std', ' se', ' n'))]
  header = ('label', 'target', 'model', 'kind', 'samples', *columns)
  rows = [(*header, 'MB', 'seconds'), ['---'] * (len(header) + 2)]
  for line in lines:
    numbers = [_percent(line, name) for name in columns]
    rows.append(
      [line.label, line.target, line.model, line.kind, str(line.samples)]
      + [*numbers, f'{line.megabytes:.1f}', f'{line.seconds:.0f}']
    )
  text = [f'# {title}', '', *(f'| {" | ".join(row)} |' for row in rows)]
  if unfinished:
    text += ['', f'Not finished: {len(unfinished)}.', '']
  text += [
    f'- {row["label"]}, seed {row["seed"]}: {row["error"]}'
    for row in unfinished
    if row['error']
  ]
  return '\n'.join(text) + '\n'


def _percent(line: Line, name: str) -> str:
  """Returns a mean with its deviation, or an increase with its error and n."""
  if name not in line.numbers:
    return ''
  number = line.numbers[name]
  if f'{name} n' in line.numbers:
    error = line.numbers.get(f'{name} se')
    more = '' if error is None else f'se {error:.2f}, '
    return f'{number:+.2f} ({more}n {line.numbers[f"{name} n"]:.0f})'
  sign = '+' if ' - baseline' in name else ''
  spread = line.numbers.get(f'{name} std')
  return f'{number:{sign}.2f}' + ('' if spread is None else f' ± {spread:.2f}')


def _replace(path: Path, text: str) -> None:
  # Not `atomic.write_text`, whose temporary name is fixed: several shards write
  # the same table.
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  partial.write_text(text)
  os.replace(partial, path)
