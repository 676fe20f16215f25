"""Trains one cell of a sweep, and records an error in place of its results."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from fedreid_jax import errors
from fedreid_jax.apps.papers.runs import cells
from fedreid_jax.apps.papers.runs.cells import Cell

Train = Callable[[Any, Path], Any]
ERROR = 'error.txt'  # file in the work directory of a cell that failed


def attempt(
  cell: Cell, train: Train, start: Cell | None
) -> errors.FedReIDError | None:
  """Runs a cell; an error is written to its work directory and returned.

  Args:
    cell: the cell.
    train: function that starts or resumes a run.
    start: cell from whose models it starts, None if there is none.
  """
  note = cell.workdir / ERROR
  with contextlib.suppress(OSError):
    note.unlink()
  try:
    if start and cells.results(start) is None:
      raise errors.IntegrityError(
        f'the run from which it starts, {start.label}, is not finished',
        str(start.workdir),
        'correct the error of that run and repeat the command',
      )
    train(cell.config, cell.workdir)
  except errors.FedReIDError as error:
    print(error.line(), file=sys.stderr)
    with contextlib.suppress(OSError):  # the error may concern this folder
      note.parent.mkdir(parents=True, exist_ok=True)
      note.write_text(error.line())
    return error
  finally:
    jax.clear_caches()  # frees memory: later cells compile their own programs
  return None
