"""Trains the cells of a sweep and writes a table of their results."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from fedreid_jax import errors
from fedreid_jax.apps.papers.runs import attempt as attempts
from fedreid_jax.apps.papers.runs import report, workers
from fedreid_jax.apps.papers.runs import table as files
from fedreid_jax.apps.papers.runs.attempt import ERROR, Train
from fedreid_jax.apps.papers.runs.cells import Cell, results, take_shard
from fedreid_jax.apps.papers.runs.report import Run
from fedreid_jax.apps.papers.tables.line import Line
from fedreid_jax.training.files import recorder
from fedreid_jax.training.reports import console_table


def run(
  cells: Sequence[Cell],
  table: Path,
  train: Train,
  *,
  title: str,
  shard: str = '',
  baseline: str = '',
  annotate: Callable[[list[Line]], list[Line]] = list,
  num_workers: int = 1,
) -> None:
  """Trains the unfinished cells and writes a table of the finished ones.

  If a cell ends with an error, the error is recorded and the next cell runs.

  Args:
    cells: cells of the table.
    table: path of the table without suffix; a `.csv` and a `.md` file are
      written before the first cell and after every cell.
    train: function that starts or resumes a run, such as `loop.train`.
    title: title of the table.
    shard: 'I/N' runs every N-th cell from cell I. The table has all finished
      cells, including those of other shards.
    baseline: label or work directory of the results to compare with, '' for no
      comparison.
    annotate: function that selects and extends the lines of the table.
    num_workers: processes that train at the same time, see `train_all`.

  Raises:
    ConfigError: if the shard or the baseline is unknown, before the first run.
    FedReIDError: if runs failed, after the last run; it is the error of the
      first run that failed.
  """
  # `process_count` starts the backend, which would reserve the GPUs of workers.
  if num_workers == 1 and jax.process_count() > 1:
    raise errors.ConfigError(
      'a sweep cannot use several processes', '--distributed', 'use --shard=I/N'
    )
  runs = take_shard(cells, shard)
  # A baseline outside the sweep is read now: a wrong path fails before
  # training.
  other = []
  if baseline and baseline not in {cell.label for cell in cells}:
    other = report.summarise([_run_of(baseline)])

  def write() -> str:
    lines = collect(cells)
    reference = other or [line for line in lines if line.label == baseline]
    lines = annotate(report.compare(lines, reference))
    return files.write(table, title, lines, _unfinished(cells))

  table.parent.mkdir(parents=True, exist_ok=True)
  files.write_runs(table, cells)
  write()
  try:
    train_all(runs, train, write, num_workers)
  finally:
    # Also after an error or a signal, for the cells that have ended.
    console_table.markdown(write())


def train_all(
  runs: Sequence[Cell],
  train: Train,
  after: Callable[[], object],
  num_workers: int = 1,
) -> None:
  """Trains the unfinished cells.

  A cell that starts from an unfinished one fails.

  Args:
    runs: cells with different work directories.
    train: function that starts or resumes a run.
    after: called after every cell.
    num_workers: processes that train at the same time, see `workers`; one means
      this process.

  Raises:
    ConfigError: if there are fewer GPUs or cores than processes.
    FedReIDError: if runs failed, after the last run; it is the error of the
      first run that failed.
  """
  failed: list[tuple[Cell, errors.FedReIDError]] = []
  waiting = [cell for cell in runs if results(cell) is None]
  ended = len(runs) - len(waiting)
  if num_workers == 1:
    found = _one_after_another(runs, train)
  else:
    found = workers.outcomes(waiting, train, num_workers)
  for cell, error in found:
    if error:
      failed.append((cell, error))
    if num_workers > 1:
      ended += 1
      state = 'failed' if error else 'finished'
      print(f'[{ended}/{len(runs)}] {_name(cell)}: {state}')
    after()
  _raise_first(failed, len(runs))


def _one_after_another(
  runs: Sequence[Cell], train: Train
) -> Iterator[workers.Outcome]:
  """Trains the unfinished cells in this process and yields their outcomes."""
  by_folder = {str(cell.workdir): cell for cell in runs}
  for number, cell in enumerate(runs, 1):
    if results(cell) is None:
      print(f'[{number}/{len(runs)}] {_name(cell)}')
      start = by_folder.get(cell.config.start_from)
      yield cell, attempts.attempt(cell, train, start)


def _name(cell: Cell) -> str:
  return f'{cell.row}, seed {cell.config.seed}: {cell.workdir}'


def _raise_first(
  failed: Sequence[tuple[Cell, errors.FedReIDError]], num_runs: int
) -> None:
  """Raises the error of the first run that failed, if any."""
  for cell, error in failed:
    raise type(error)(
      f'{len(failed)} of {errors.counted(num_runs, "run")} failed, the first '
      f'of them {cell.row}: {error.what}',
      error.where,
      error.fix,
    ) from error


def collect(cells: Iterable[Cell]) -> list[Line]:
  """Returns the mean and standard deviation of the finished cells by label."""
  # Cells with equal label and folder are one run, which counts once in the
  # mean.
  once = {(cell.label, cell.workdir): cell for cell in cells}
  found = [(cell, results(cell)) for cell in once.values()]
  return report.summarise(
    Run(cell.label, cell.factors, (cell.config.seed, cell.trial), done)
    for cell, done in found
    if done
  )


def _unfinished(cells: Iterable[Cell]) -> list[dict[str, str]]:
  """Returns a row for each unfinished cell, with its error if it failed."""
  rows = []
  for cell in cells:
    if results(cell) is None:
      note = cell.workdir / ERROR
      error = note.read_text() if note.is_file() else ''
      own = {'label': cell.row, 'seed': str(cell.config.seed)}
      rows.append({**own, **cell.factors, 'error': error})
  return rows


def _run_of(folder: str) -> Run:
  path = Path(folder).expanduser()
  found = _object(path / 'results.json')
  if 'summary' not in found:
    raise errors.ConfigError(
      f'{folder!r} is neither a label nor the directory of a finished run',
      '--baseline',
      'give one of these',
    )
  seed = _object(path / 'config.json').get('seed', 0)
  return Run(folder, {}, (seed, ''), found)


def _object(path: Path) -> dict[str, Any]:
  return recorder.read_object(path) if path.is_file() else {}
