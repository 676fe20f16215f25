"""Trains cells in several processes: one for each GPU, or for a share of cores.

The processes are those of `multiprocessing`. Its pool, and that of
`concurrent.futures`, would end all runs when one process is killed, and could
not let a round finish after a signal. A scheduler's array of jobs needs no
process of this program: each job is given `--shard`.
"""

import contextlib
import glob
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.apps.papers.runs import attempt as attempts
from fedreid_jax.apps.papers.runs.cells import Cell
from fedreid_jax.training.processes import process, signals

POLL_S = 0.5  # between two looks whether a signal has arrived
Outcome = tuple[Cell, errors.FedReIDError | None]


class Place(NamedTuple):
  """What a process computes on: a GPU, or with '' the cores alone."""

  gpu: str
  cores: Sequence[int]


def places(num: int) -> list[Place]:
  """Returns the places of `num` processes.

  Raises:
    ConfigError: if there are fewer GPUs, or fewer cores.
  """
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


class _Worker:
  """A process that trains one cell after another."""

  def __init__(self, place: Place, train: attempts.Train):
    self.place, self.cell = place, None
    context = multiprocessing.get_context('spawn')
    self.pipe, end = context.Pipe()
    self.process = context.Process(target=_serve, args=(end, place, train))
    self.process.start()
    end.close()  # so that the death of the process closes the pipe

  def give(self, cell: Cell, start: Cell | None) -> None:
    """Lets it train a cell, which may start from the models of another."""
    self.cell = cell
    # A process that has died meanwhile is noticed when it is asked.
    with contextlib.suppress(OSError):
      self.pipe.send((cell, start))

  def take(self) -> Outcome:
    """Returns the cell that it was given and its error, None without one."""
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
    """Ends it; with the number of a signal it may finish its round."""
    self.pipe.close()
    if number and self.process.pid and self.process.is_alive():
      os.kill(self.process.pid, number)
    self.process.join()


def outcomes(
  runs: Sequence[Cell], train: attempts.Train, num: int
) -> Iterator[Outcome]:
  """Trains cells in `num` processes and yields each when it has ended.

  A cell that starts from another one of `runs` waits for that one.

  Args:
    runs: cells with different work directories.
    train: function that starts or resumes a run; it can be pickled.
    num: number of processes.

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
  train: attempts.Train,
  stopped: Callable[[], int],
) -> Iterator[Outcome]:
  by_folder = {str(cell.workdir): cell for cell in waiting}
  while not stopped():
    _hand_out(team, waiting, by_folder)
    busy = [worker for worker in team if worker.cell]
    if not busy:
      return
    ready = connection.wait([worker.pipe for worker in busy], POLL_S)
    for worker in busy:
      if worker.pipe in ready:
        yield worker.take()
      # One that died after `wait` still has an outcome to take.
      if worker.cell is None and not worker.process.is_alive():
        worker.close()
        team[team.index(worker)] = _Worker(worker.place, train)


def _hand_out(
  team: Sequence[_Worker], waiting: list[Cell], by_folder: dict[str, Cell]
) -> None:
  """Gives cells to the idle workers, but none whose start is not finished."""
  for worker in team:
    busy = [other.cell for other in team if other.cell]
    unfinished = {str(cell.workdir) for cell in (*waiting, *busy)}
    ready = [c for c in waiting if c.config.start_from not in unfinished]
    if worker.cell is None and ready:
      waiting.remove(ready[0])
      worker.give(ready[0], by_folder.get(ready[0].config.start_from))


def _serve(pipe: Any, place: Place, train: attempts.Train) -> None:
  """Trains the cells that come through a pipe until it is closed."""
  # A terminal signals its whole group, and a second signal would not let a
  # round finish: the parent alone signals its workers.
  os.setpgrp()
  signals.listen()
  if place.gpu:  # before JAX looks for devices
    os.environ['CUDA_VISIBLE_DEVICES'] = place.gpu
  elif hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, place.cores)
  process.prepare_jax(len(place.cores))
  with contextlib.suppress(EOFError, OSError):  # the parent has ended
    while True:
      cell, start = pipe.recv()
      pipe.send(attempts.attempt(cell, train, start))


def _cores() -> set[int]:
  if hasattr(os, 'sched_getaffinity'):
    return os.sched_getaffinity(0)
  return {*range(os.cpu_count() or 1)}


def _gpus() -> list[str]:
  """Returns the GPUs of this process, which JAX would reserve if asked."""
  if os.environ.get('JAX_PLATFORMS', '').startswith('cpu'):
    return []
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is not None:
    return [name for name in visible.split(',') if name.strip()]
  return [str(k) for k in range(len(glob.glob('/dev/nvidia[0-9]*')))]
