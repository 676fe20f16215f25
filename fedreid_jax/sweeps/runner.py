"""Runs the configurations of a sweep and writes one table of their results.

A cell is one configuration of a sweep, and one run in a work directory.
"""

import contextlib
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedreid_jax import errors
from fedreid_jax.sweeps import report
from fedreid_jax.sweeps.report import Line
from fedreid_jax.training import recorder

Train = Callable[[Any, Path], Any]
ERROR = 'error.txt'  # file in the work directory of a cell that failed


class Cell(NamedTuple):
  """One run of a sweep.

  Attributes:
    label: name of a row of the table. Its numbers are averages over the cells
      with this label, which differ in their seeds.
    config: validated `ConfigDict`.
    workdir: directory of the run; cells with the same directory are one run.
    factors: values of the fields that the sweep varies; each has a column.
  """

  label: str
  config: Any
  workdir: Path
  factors: Mapping[str, str]


def make_cell(
  label: str, config, folder: Path, factors: Mapping[str, str]
) -> Cell:
  """Returns a cell whose work directory is named after its configuration."""
  digest = hashlib.sha256(config.to_json_best_effort().encode()).hexdigest()
  short = [key.rpartition('.')[2] + value for key, value in factors.items()]
  words = '-'.join((config.name, *short, f'seed{config.seed}'))
  name = re.sub(r'[^\w.-]+', '_', words)[:80]
  return Cell(label, config, folder / f'{name}-{digest[:8]}', factors)


def take_shard(cells: Sequence[Cell], shard: str) -> list[Cell]:
  """Returns every N-th run from run I for the shard 'I/N', all runs for ''.

  Raises:
    ConfigError: if `shard` has another form.
  """
  runs = list({cell.workdir: cell for cell in cells}.values())
  match = re.fullmatch(r'(\d+)/(\d+)', shard or '0/1')
  if not match or int(match[1]) >= int(match[2]):
    raise errors.ConfigError(
      f'{shard!r} is not a shard', '--shard', 'give I/N with I below N'
    )
  return runs[int(match[1]) :: int(match[2])]


def run(
  cells: Sequence[Cell],
  table: Path,
  train: Train,
  *,
  title: str,
  shard: str = '',
  baseline: str = '',
  annotate: Callable[[list[Line]], list[Line]] = list,
) -> None:
  """Runs cells one after another and writes one table of the finished ones.

  If a cell ends with an error, the error is recorded and the next cell runs.
  Finished cells are not run again.

  Args:
    cells: cells of the table.
    table: path of the table without suffix; a `.csv` and a `.md` file are
      written after every cell.
    train: function that starts or resumes a run, such as `loop.train`.
    title: title of the table.
    shard: 'I/N' runs every N-th cell from cell I. The table has all finished
      cells, including those of other shards.
    baseline: label or work directory of the results to compare with, '' for no
      comparison.
    annotate: selects and extends the lines of a table before it is written.

  Raises:
    ConfigError: if the shard or the baseline is unknown, before the first run.
    FedReIDError: if runs failed, after the last run; it is the error of the
      first run that failed.
  """
  if jax.process_count() > 1:
    raise errors.ConfigError(
      'a sweep cannot use several processes', '--distributed', 'use --shard=I/N'
    )
  runs = take_shard(cells, shard)
  other = []
  if baseline and baseline not in {cell.label for cell in cells}:
    other = report.summarise([_run_of(baseline)])

  def write() -> str:
    lines = collect(cells)
    reference = other or [line for line in lines if line.label == baseline]
    lines = annotate(report.compare(lines, reference))
    return report.write(table, title, lines, _unfinished(cells))

  table.parent.mkdir(parents=True, exist_ok=True)
  write()
  try:
    train_all(runs, train, write)
  finally:
    print(write())


def train_all(
  runs: Sequence[Cell], train: Train, after: Callable[[], object]
) -> None:
  """Runs the unfinished cells one after another.

  Args:
    runs: cells with different work directories.
    train: function that starts or resumes a run.
    after: called after every cell.

  Raises:
    FedReIDError: if runs failed, after the last run; it is the error of the
      first run that failed.
  """
  failed: list[tuple[Cell, errors.FedReIDError]] = []
  for number, cell in enumerate(runs, 1):
    if results(cell) is not None:
      continue
    seed = cell.config.seed
    print(f'[{number}/{len(runs)}] {cell.label}, seed {seed}: {cell.workdir}')
    error = _attempt(cell, train)
    if error:
      failed.append((cell, error))
    jax.clear_caches()  # frees memory: later cells compile their own programs
    after()
  _raise_first(failed, len(runs))


def _raise_first(
  failed: Sequence[tuple[Cell, errors.FedReIDError]], num_runs: int
) -> None:
  """Raises the error of the first run that failed, if any."""
  for cell, error in failed:
    raise type(error)(
      f'{len(failed)} of {num_runs} runs failed, the first of them '
      f'{cell.label}: {error.what}',
      error.where,
      error.fix,
    ) from error


def collect(cells: Iterable[Cell]) -> list[Line]:
  """Returns the mean and standard deviation of the finished cells by label."""
  once = {(cell.label, cell.workdir): cell for cell in cells}
  found = [(c.label, c.factors, results(c)) for c in once.values()]
  return report.summarise(
    [(label, factors, done) for label, factors, done in found if done]
  )


def results(cell: Cell) -> dict[str, Any] | None:
  """Returns the results of a finished run, None for an unfinished one."""
  try:
    found = recorder.read_object(cell.workdir / 'results.json')
  except errors.IntegrityError:  # the run will write a missing or damaged file
    return None
  done = found.get('rounds') == cell.config.rounds and 'summary' in found
  return found if done else None


def _attempt(cell: Cell, train: Train) -> errors.FedReIDError | None:
  """Runs a cell; an error is written to its work directory and returned."""
  note = cell.workdir / ERROR
  with contextlib.suppress(OSError):
    note.unlink()
  try:
    train(cell.config, cell.workdir)
  except errors.FedReIDError as error:
    print(error.line(), file=sys.stderr)
    with contextlib.suppress(OSError):  # the error may concern this folder
      note.parent.mkdir(parents=True, exist_ok=True)
      note.write_text(error.line())
    return error
  return None


def _unfinished(cells: Iterable[Cell]) -> list[dict[str, str]]:
  """Returns a row for each unfinished cell, with its error if known."""
  rows = []
  for cell in cells:
    if results(cell) is None:
      note = cell.workdir / ERROR
      error = note.read_text() if note.is_file() else ''
      own = {'label': cell.label, 'seed': str(cell.config.seed)}
      rows.append({**own, **cell.factors, 'error': error})
  return rows


def _run_of(folder: str) -> tuple[str, Mapping[str, str], dict[str, Any]]:
  path = Path(folder).expanduser() / 'results.json'
  found = recorder.read_object(path) if path.is_file() else {}
  if 'summary' not in found:
    raise errors.ConfigError(
      f'{folder!r} is neither a label nor the directory of a finished run',
      '--baseline',
      'give one of these',
    )
  return folder, {}, found
