"""Processes of a distributed run: rendezvous, heartbeats and failures.

Processes connect to the first one's coordination service within a time limit
and send heartbeats to it. If a process stops, or its connection breaks, all
others end: JAX raises from a collective or aborts, and both are reported as one
line with the exit code of `ResourceError`. The number of processes is constant
while a run lasts. The same command resumes from the last checkpoint, also on
another number of hosts.
"""

import os
import re
import socket
import time
from typing import Any, NamedTuple, NoReturn

import jax
from jax._src import distributed

from fedreid_jax import errors
from fedreid_jax.training.processes import aborts

_LAST_S = 1.0  # time that the first process waits for the others' errors
FLAG = '--distributed'
_FORM = 'off, auto on a cluster that JAX detects, or HOST:PORT,N,ID'
# Text in the exceptions of collectives and barriers after a loss.
_LOSS = re.compile(r'Gloo|NCCL|CoordinationService|coordination service')


class Place(NamedTuple):
  """Position of a process in its run.

  Attributes:
    address: HOST:PORT of the first process.
    processes: number of processes.
    process: number of this process.
  """

  address: str
  processes: int
  process: int


class _Joined:
  """State of a process that has joined others."""

  def __init__(self, rendezvous_s: int):
    self.rendezvous_s = rendezvous_s
    self.met = False
    self.aborts = aborts.Aborts(lambda: lost() if self.met else self.alone())

  def alone(self) -> errors.ResourceError:
    """Returns the error of processes that do not connect in time."""
    return errors.ResourceError(
      f'not all processes connected within {self.rendezvous_s} s',
      FLAG,
      "start all of them at the first one's HOST:PORT, or raise --rendezvous_s",
    )


_joined: _Joined | None = None


def parse(text: str) -> Place:
  """Parses HOST:PORT,NUM_PROCESSES,PROCESS_ID.

  Raises:
    ConfigError: for another form, or an invalid port, number or host.
  """
  match = re.fullmatch(
    r'(\[[^\]]+\]|[^:,\s]+):(\d{1,5}),(\d{1,9}),(\d{1,9})', text
  )
  if not match:
    raise errors.ConfigError(f'{text!r} is no HOST:PORT,N,ID', FLAG, _FORM)
  host, port, processes, process = match[1], *map(int, match.groups()[1:])
  if not 1 <= port <= 65535:
    raise errors.ConfigError(f'{port} is no port', FLAG, '1 to 65535')
  if process >= processes:
    raise errors.ConfigError(
      f'process {process} of {processes}', FLAG, 'ID counts from 0'
    )
  try:
    socket.getaddrinfo(host.strip('[]'), port)
  except (OSError, UnicodeError) as error:
    raise errors.ConfigError(
      f'no host {host!r}: {error}', FLAG, 'name the host of the first process'
    ) from error
  return Place(f'{host}:{port}', processes, process)


def join(mode: str, rendezvous_s: int, heartbeat_s: int) -> None:
  """Connects to the other processes of a run.

  Args:
    mode: 'auto' or a text for `parse`.
    rendezvous_s: limit in seconds on every wait for others before training.
    heartbeat_s: seconds without a heartbeat after which a process is lost.

  Raises:
    ConfigError: for a mode that does not lead to a connection.
  """
  global _joined
  place = (None, None, None) if mode == 'auto' else parse(mode)
  # Processes agree on signals after every round (`signals`); with its
  # preemption service JAX would handle SIGTERM itself.
  jax.config.update('jax_enable_preemption_service', False)
  _joined = _Joined(rendezvous_s)
  try:
    jax.distributed.initialize(
      *place,
      initialization_timeout=rendezvous_s,
      heartbeat_timeout_seconds=heartbeat_s,
      shutdown_timeout_seconds=rendezvous_s,
    )
  except (ValueError, RuntimeError) as error:
    raise errors.ConfigError(
      f'{mode!r}: {str(error).splitlines()[0]}', FLAG, _FORM
    ) from error
  _joined.met = True


def joined() -> bool:
  """Returns whether this process has joined others."""
  return _joined is not None


def leave() -> None:
  """Waits until all processes are done, and disconnects from them."""
  if _joined is not None:
    jax.distributed.shutdown()
    _joined.aborts.drain()


def abandon(code: int) -> NoReturn:
  """Ends this process after an error, without waiting for the others.

  Args:
    code: exit status of the process.
  """
  # The first process ends last, so that others with the same error can report
  # it before the service that they depend on ends.
  if client()[1] == 0:
    time.sleep(_LAST_S)
  # A normal exit would wait for the other processes.
  os._exit(code)


def client() -> tuple[Any, int, int]:
  """Returns (coordination service, number of this process, of processes)."""
  state = distributed.global_state
  return state.client, state.process_id, state.num_processes


def rendezvous_s() -> int:
  """Returns the limit on waits before training, 0 for a run of one process."""
  return 0 if _joined is None else _joined.rendezvous_s


def lost() -> errors.ResourceError:
  """Returns the error of a run that has lost another process."""
  _, process, processes = client()
  return errors.ResourceError(
    'another process of this run was lost',
    f'process {process} of {processes}',
    'see its own message; the same command on all hosts resumes',
  )


def is_loss(error: BaseException) -> bool:
  """Returns whether an exception means that another process was lost."""
  return joined() and bool(_LOSS.search(str(error)))
