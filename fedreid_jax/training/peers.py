"""The processes of one run: how they meet, and that none waits for a lost one.

Processes meet at the first's coordination service within a limit, and tell it
that they live. One that stops doing so, or whose connection breaks, ends all
others: JAX raises from a collective or aborts, and both are one line and the
code of `ResourceError`. There is no elastic run: the same command on every host
resumes from the last checkpoint.
"""

import os
import re
import socket
import time
from typing import Any, NamedTuple, NoReturn

import jax
from jax._src import distributed

from fedreid_jax import errors
from fedreid_jax.training import aborts

_LAST_S = 1.0  # the first process waits for the others' own errors
FLAG = '--distributed'
_FORM = 'off, auto on a cluster that JAX detects, or HOST:PORT,N,ID'
# What a collective or a barrier raises when another process is lost says one.
_LOSS = re.compile(r'Gloo|NCCL|CoordinationService|coordination service')


class Place(NamedTuple):
  """Where a process stands among those of its run.

  Attributes:
    address: HOST:PORT of the first process.
    processes: how many there are.
    process: number of this one.
  """

  address: str
  processes: int
  process: int


class _Joined:
  """What this process knows of its run, once it has joined others."""

  def __init__(self, rendezvous_s: int):
    self.rendezvous_s = rendezvous_s
    self.met = False
    self.aborts = aborts.Aborts(lambda: lost() if self.met else self.alone())

  def alone(self) -> errors.ResourceError:
    """Returns what is said when others do not come."""
    return errors.ResourceError(
      f'not all processes came within {self.rendezvous_s} s',
      FLAG,
      "start all of them at the first one's HOST:PORT, or raise --rendezvous_s",
    )


_joined: _Joined | None = None


def parse(text: str) -> Place:
  """Reads HOST:PORT,NUM_PROCESSES,PROCESS_ID.

  Raises:
    ConfigError: for another form, a port, number or host that cannot be.
  """
  match = re.fullmatch(
    r'(\[[^\]]+\]|[^:,\s]+):(\d{1,5}),(\d{1,9}),(\d{1,9})', text
  )
  if not match:
    raise errors.ConfigError(f'{text!r} is no place', FLAG, _FORM)
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
  """Meets the other processes of a run.

  Args:
    mode: 'auto' or what `parse` reads.
    rendezvous_s: limit in seconds on every wait for others before training.
    heartbeat_s: seconds without a sign of life after which one is lost.

  Raises:
    ConfigError: for a mode that leads nowhere.
  """
  global _joined
  place = (None, None, None) if mode == 'auto' else parse(mode)
  # Signals are agreed on after every round; JAX's service would take SIGTERM.
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
  """Waits until all processes are done, and parts from them."""
  if _joined is not None:
    jax.distributed.shutdown()
    _joined.aborts.drain()


def abandon(code: int) -> NoReturn:
  """Ends this process after an error; an ordinary end waits for the others.

  The first process goes last: those that met the same error say so themselves
  before the service they depend on is gone.
  """
  if client()[1] == 0:
    time.sleep(_LAST_S)
  os._exit(code)


def client() -> tuple[Any, int, int]:
  """Returns (the coordination service, number of this process, how many)."""
  state = distributed.global_state
  return state.client, state.process_id, state.num_processes


def rendezvous_s() -> int:
  """Returns the limit on waits before training, of one that has joined."""
  assert _joined is not None
  return _joined.rendezvous_s


def lost() -> errors.ResourceError:
  """Returns what is said when another process is lost."""
  _, process, processes = client()
  return errors.ResourceError(
    'another process of this run was lost',
    f'process {process} of {processes}',
    'see its own message; the same command on all hosts resumes',
  )


def is_loss(error: BaseException) -> bool:
  """Returns whether an exception says that another process was lost."""
  return joined() and bool(_LOSS.search(str(error)))
