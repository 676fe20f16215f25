"""Trains the cells of a sweep, one after another or in several processes.

A process has one GPU, or a share of the cores.
"""

import contextlib
import glob
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedreid_jax import errors
from fedreid_jax.apps.papers import report
from fedreid_jax.apps.papers.cells import (
  Cell,
  results,
  take_shard,
  unchecked,
)
from fedreid_jax.apps.papers.report import Line, Run
from fedreid_jax.training.files import recorder, run_files
from fedreid_jax.training.processes import process, signals
from fedreid_jax.training.reports import console_table

Train = Callable[[Any, Path], Any]
Outcome = tuple[Cell, errors.FedReIDError | None]
ERROR = 'error.txt'  # file in the work directory of a cell that failed
POLL_S = 0.5  # seconds between two tests whether a signal has arrived


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
    table: path without suffix, written before the first and after every cell.
    shard: 'I/N' for every N-th cell from cell I; the table has all shards.
    baseline: label or work directory to compare with, '' for no comparison.
    annotate: selects and extends the lines of the table.

  Raises:
    ConfigError: if the shard or the baseline is unknown, before the first run.
    FedReIDError: of the first run that failed, after the last run.
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
    lines = _collect(cells)
    reference = other or [line for line in lines if line.label == baseline]
    lines = annotate(report.compare(lines, reference))
    return report.write(table, title, lines, _unfinished(cells))

  table.parent.mkdir(parents=True, exist_ok=True)
  report.write_runs(table, cells)
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
  may_diverge: Callable[[Cell], bool] = lambda cell: False,
) -> None:
  """Trains the unfinished cells; one that starts from an unfinished one fails.

  The cells have different work directories. `train` starts or resumes a run and
  is picklable if there are several processes; `after` is called after every
  cell. One worker is this process. The divergence of a run that may diverge is
  a result and not a failure.

  Raises:
    ConfigError: if there are fewer GPUs or cores than processes.
    FedReIDError: of the first run that failed, after the last run.
  """
  failed: list[tuple[Cell, errors.FedReIDError]] = []
  waiting = [cell for cell in runs if results(cell) is None]
  ended = len(runs) - len(waiting)
  if num_workers == 1:
    found = _one_after_another(runs, train)
  else:
    found = outcomes(waiting, train, num_workers)
  for cell, error in found:
    diverged = isinstance(error, errors.DivergedError)
    if error and not (diverged and may_diverge(cell)):
      failed.append((cell, error))
    if num_workers > 1:
      ended += 1
      state = 'failed' if error else 'finished'
      print(f'[{ended}/{len(runs)}] {_name(cell)}: {state}')
    after()
  for line in unchecked(runs):
    print(line)
  for cell, error in failed[:1]:
    raise type(error)(
      f'{len(failed)} of {errors.counted(len(runs), "run")} failed, the first '
      f'of them {cell.row}: {error.what}',
      error.where,
      error.fix,
    ) from error


def _one_after_another(runs: Sequence[Cell], train: Train) -> Iterator[Outcome]:
  by_folder = {str(cell.workdir): cell for cell in runs}
  for number, cell in enumerate(runs, 1):
    if results(cell) is None:
      print(f'[{number}/{len(runs)}] {_name(cell)}')
      start = by_folder.get(cell.config.start_from)
      yield cell, _attempt(cell, train, start)


def _name(cell: Cell) -> str:
  return f'{cell.row}, seed {cell.config.seed}: {cell.workdir}'


def _attempt(
  cell: Cell, train: Train, start: Cell | None
) -> errors.FedReIDError | None:
  """Trains a cell; an error is written to its work directory and returned."""
  note = cell.workdir / ERROR
  with contextlib.suppress(OSError):
    note.unlink()
  try:
    # The start has checkpoints before it is finished, which `train` would
    # accept.
    if start and results(start) is None:
      raise errors.IntegrityError(
        f'the run from which it starts, {start.label}, is not finished',
        str(start.workdir),
        'correct the error of that run and repeat the command',
      )
    train(cell.config, cell.workdir)
  except errors.FedReIDError as error:
    print(error.line(), file=sys.stderr)
    # The error may be that this folder cannot be written.
    with contextlib.suppress(OSError):
      note.parent.mkdir(parents=True, exist_ok=True)
      note.write_text(error.line())
    return error
  finally:
    # Frees memory: later cells compile other programs.
    jax.clear_caches()
  return None


def _collect(cells: Iterable[Cell]) -> list[Line]:
  # Cells with equal label and folder are one run, which counts once in the
  # mean.
  once = {(cell.label, cell.workdir): cell for cell in cells}
  return report.summarise(
    Run(cell.label, cell.factors, (cell.config.seed, cell.trial), done)
    for cell in once.values()
    if (done := results(cell))
  )


def _unfinished(cells: Iterable[Cell]) -> list[dict[str, str]]:
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
  found = run_files.results(path) if (path / recorder.RESULTS).is_file() else {}
  if 'summary' not in found:
    raise errors.ConfigError(
      f'{folder!r} is neither a label nor the directory of a finished run',
      '--baseline',
      'give one of these',
    )
  return Run(folder, {}, (found.get('seed', 0), ''), found)


class Place(NamedTuple):
  """The GPU of a process ('' for none) and its cores."""

  gpu: str
  cores: Sequence[int]


def places(num: int) -> list[Place]:
  """Returns places for processes, or raises ConfigError for too many."""
  gpus, cores = _gpus(), sorted(_cores())
  there, kind = (len(gpus), 'GPU') if gpus else (len(cores), 'core')
  if num > there:
    raise errors.ConfigError(
      f'{errors.counted(num, "process", "processes")}, '
      f'{errors.counted(there, kind)}',
      '--workers',
      f'give 1 to {there}',
    )
  return [Place(gpus[k] if gpus else '', cores[k::num]) for k in range(num)]


# Not a pool: that of `multiprocessing` or `concurrent.futures` ends all runs
# when one process is killed, and cannot let a round finish after a signal.
class _Worker:
  """A process that trains one cell after another."""

  def __init__(self, place: Place, train: Train):
    self.place, self.cell = place, None
    # A fork would copy the state of JAX and of its threads.
    context = multiprocessing.get_context('spawn')
    self.pipe, end = context.Pipe()
    self.process = context.Process(target=_serve, args=(end, place, train))
    self.process.start()
    # The process has the only other end now, so its death closes the pipe.
    end.close()

  def give(self, cell: Cell, start: Cell | None) -> None:
    self.cell = cell
    # `take` notices a process that has died meanwhile.
    with contextlib.suppress(OSError):
      self.pipe.send((cell, start))

  def take(self) -> Outcome:
    """Waits for the cell and returns it with its error, None for success."""
    cell, self.cell = self.cell, None
    assert cell is not None
    try:
      return cell, self.pipe.recv()
    except (EOFError, OSError):
      self.process.join()
      return cell, errors.ResourceError(
        f'the process of a run ended with code {self.process.exitcode}',
        str(cell.workdir),
        'a killed process lacked memory: lower --workers, repeat the command',
      )

  def close(self, number: int = 0) -> None:
    """Ends the process; after a signal of this number it finishes its round."""
    self.pipe.close()
    if number and self.process.pid and self.process.is_alive():
      os.kill(self.process.pid, number)
    self.process.join()


def outcomes(runs: Sequence[Cell], train: Train, num: int) -> Iterator[Outcome]:
  """Trains cells in `num` processes and yields each when it has ended.

  A cell that starts from another one of `runs` waits for it.

  Raises:
    ConfigError: if there are fewer GPUs, or fewer cores.
    SystemExit: with 128 + the number of a signal, when all rounds have ended.
  """
  team = [_Worker(place, train) for place in places(num)[: len(runs)]]
  with signals.deferred() as stopped:
    try:
      yield from _outcomes(team, list(runs), train, stopped)
    finally:
      for worker in team:
        worker.close(stopped())


def _outcomes(
  team: list[_Worker],
  waiting: list[Cell],
  train: Train,
  stopped: Callable[[], int],
) -> Iterator[Outcome]:
  by_folder = {str(cell.workdir): cell for cell in waiting}
  while not stopped():
    _hand_out(team, waiting, by_folder)
    busy = [worker for worker in team if worker.cell]
    if not busy:
      return
    # With a limit, because no pipe is ready when a signal has arrived.
    ready = connection.wait([worker.pipe for worker in busy], POLL_S)
    for worker in busy:
      if worker.pipe in ready:
        yield worker.take()
      # A process that died after `wait` has a cell, whose outcome is taken
      # first.
      if worker.cell is None and not worker.process.is_alive():
        worker.close()
        team[team.index(worker)] = _Worker(worker.place, train)


def _hand_out(
  team: Sequence[_Worker], waiting: list[Cell], by_folder: dict[str, Cell]
) -> None:
  """Gives cells to the idle workers; a cell waits for its start."""
  for worker in team:
    busy = [other.cell for other in team if other.cell]
    unfinished = {str(cell.workdir) for cell in (*waiting, *busy)}
    ready = [c for c in waiting if c.config.start_from not in unfinished]
    if worker.cell is None and ready:
      waiting.remove(ready[0])
      worker.give(ready[0], by_folder.get(ready[0].config.start_from))


def _serve(pipe: Any, place: Place, train: Train) -> None:
  # A terminal signals its whole process group, and the parent signals as well:
  # a second signal would end the round. So only the parent signals its workers.
  os.setpgrp()
  signals.listen()
  # Before JAX looks for devices.
  if place.gpu:
    os.environ['CUDA_VISIBLE_DEVICES'] = place.gpu
  elif hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, place.cores)
  process.prepare_jax(len(place.cores))
  with contextlib.suppress(EOFError, OSError):  # the parent has ended
    while True:
      cell, start = pipe.recv()
      pipe.send(_attempt(cell, train, start))


def _cores() -> set[int]:
  # A scheduler may allow fewer cores than there are; not every system tells.
  if hasattr(os, 'sched_getaffinity'):
    return os.sched_getaffinity(0)
  return {*range(os.cpu_count() or 1)}


def _gpus() -> list[str]:
  # Without JAX, which would reserve their memory in this process.
  if os.environ.get('JAX_PLATFORMS', '').startswith('cpu'):
    return []
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is not None:
    return [name for name in visible.split(',') if name.strip()]
  return [str(k) for k in range(len(glob.glob('/dev/nvidia[0-9]*')))]
