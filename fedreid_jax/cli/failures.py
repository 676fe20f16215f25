"""Converts the failure of a command to one line on stderr and an exit code."""

import logging as standard_logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from absl import logging

from fedreid_jax import errors

# XLA and CUDA report a lack of memory only in the text of an error.
_MEMORY = re.compile(
  r'RESOURCE_EXHAUSTED|out of memory|OUT_OF_MEMORY|std::bad_alloc'
  r'|Unable to allocate|ALLOC_FAILED',
  re.IGNORECASE,
)
# Warnings for users: printed without the line of source that Python adds.
LINES = errors.DamagedCheckpointWarning, errors.ExposedSecretWarning
LOWER = 'lower local.batch or set execution.image_budget_mb'


def quiet() -> None:
  """Silences libraries, so that the line of an error stands alone."""
  logging.set_verbosity(logging.FATAL)
  standard_logging.getLogger('asyncio').setLevel(standard_logging.CRITICAL)
  # Destructors and threads that fail during the exit would print tracebacks.
  sys.unraisablehook = lambda _: None
  threading.excepthook = lambda _: None
  others = warnings.showwarning

  def show(message: Any, category: type[Warning], *where: Any, **more: Any):
    if issubclass(category, LINES):
      print(f'warning: {errors.printable(str(message))}', file=sys.stderr)
    else:
      others(message, category, *where, **more)

  warnings.showwarning = show


def exit_on_error(body: Callable[[], None], debug: bool) -> None:
  """Runs a command; with `debug` a failure also prints its traceback."""
  if not debug:
    quiet()
  try:
    body()
    # A full disk behind a redirected stdout is an error of the command, too.
    sys.stdout.flush()
  except Exception as error:
    if debug:
      traceback.print_exc()
    _leave(explain(error))


def _leave(failure: errors.FedReIDError) -> None:
  print(failure.line(), file=sys.stderr, flush=True)
  # Looked up, because an import would bring JAX into commands without it. A
  # normal exit would wait for the other processes.
  peers = sys.modules.get('fedreid_jax.training.processes.peers')
  if peers is not None and peers.joined():
    peers.abandon(failure.exit_code)
  sys.exit(failure.exit_code)


def explain(error: Exception) -> errors.FedReIDError:
  """Converts any exception to one with a documented code."""
  if isinstance(error, errors.FedReIDError):
    return error
  text = str(error)
  short = (text.splitlines() or [''])[0][:300]
  peers = sys.modules.get('fedreid_jax.training.processes.peers')
  # Tested first: the loss of a process may look like one of the causes below.
  if peers is not None and peers.is_loss(error):
    return peers.lost()
  if isinstance(error, OSError) or errors.disk_is_full(error):
    where = getattr(error, 'filename', None) or 'disk'
    reason = getattr(error, 'strerror', None) or short
    return errors.ResourceError(reason, str(where), 'check the disk')
  if isinstance(error, MemoryError) or _MEMORY.search(text):
    return errors.ResourceError(short or 'out of memory', 'memory', LOWER)
  frame = traceback.extract_tb(error.__traceback__)[-1]
  return errors.InternalError(
    f'{type(error).__name__}: {short}',
    f'{os.path.basename(frame.filename)}:{frame.lineno}',
    errors.REPORT,
  )
