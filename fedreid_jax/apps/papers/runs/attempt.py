"""Trains one cell of a sweep and records its error, if any, in a file."""

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
  """Trains a cell; an error is written to its work directory and returned.

  Args:
    cell: the cell.
    train: function that starts or resumes a run.
    start: cell from whose models `cell` starts; None for no other cell.
  """
  note = cell.workdir / ERROR
  with contextlib.suppress(OSError):
    note.unlink()
  try:
    # The start has checkpoints before it is finished, which `train` would
    # accept.
    if start and cells.results(start) is None:
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
