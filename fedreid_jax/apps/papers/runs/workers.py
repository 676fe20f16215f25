"""Trains cells in several processes: one for each GPU, or for a share of cores.

The jobs of a scheduler's array need no such processes: each gets a `--shard`.
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

POLL_S = 0.5  # seconds between two tests whether a signal has arrived
Outcome = tuple[Cell, errors.FedReIDError | None]


class Place(NamedTuple):
  """The GPU of a process ('' for none) and its cores."""

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


# Not a pool: that of `multiprocessing` or `concurrent.futures` ends all runs
# when one process is killed, and cannot let a round finish after a signal.
class _Worker:
  """A process that trains one cell after another."""

  def __init__(self, place: Place, train: attempts.Train):
    self.place, self.cell = place, None
    # A fork would copy the state of JAX and of its threads.
    context = multiprocessing.get_context('spawn')
    self.pipe, end = context.Pipe()
    self.process = context.Process(target=_serve, args=(end, place, train))
    self.process.start()
    # The process has the only other end now, so its death closes the pipe.
    end.close()

  def give(self, cell: Cell, start: Cell | None) -> None:
    """Sends a cell to the process, and the cell from which it starts."""
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


def outcomes(
  runs: Sequence[Cell], train: attempts.Train, num: int
) -> Iterator[Outcome]:
  """Trains cells in `num` processes and yields each when it has ended.

  A cell that starts from another one of `runs` waits for it.

  Args:
    runs: cells with different work directories.
    train: function that starts or resumes a run; has to be picklable.
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


def _serve(pipe: Any, place: Place, train: attempts.Train) -> None:
  """Trains the cells that come through a pipe until it is closed."""
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
      pipe.send(attempts.attempt(cell, train, start))


def _cores() -> set[int]:
  # A scheduler may allow fewer cores than there are; not every system tells.
  if hasattr(os, 'sched_getaffinity'):
    return os.sched_getaffinity(0)
  return {*range(os.cpu_count() or 1)}


def _gpus() -> list[str]:
  """Returns the names of the GPUs that this process may use."""
  # Without JAX, which would reserve their memory in this process.
  if os.environ.get('JAX_PLATFORMS', '').startswith('cpu'):
    return []
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is not None:
    return [name for name in visible.split(',') if name.strip()]
  return [str(k) for k in range(len(glob.glob('/dev/nvidia[0-9]*')))]
