"""Processes of a distributed run: rendezvous, heartbeats and failures.

Processes connect to the first one's coordination service within a time limit
and send heartbeats to it. If a process stops, or its connection breaks, all
others end: JAX raises from a collective or aborts, and both are reported as one
line with the exit code of `ResourceError`. The number of processes is constant
while a run lasts. The same command resumes from the last checkpoint, also on
another number of hosts.

Processes agree on inputs and decisions: each publishes its configuration,
versions and code, and later the digests of its images, as text at the
coordination service. No device is used and nothing is compiled before all
processes agree.
"""

import ctypes
import hashlib
import itertools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax import errors
from fedreid_jax.config import recipes, schema
from fedreid_jax.core import plugins
from fedreid_jax.training.files import recorder

_LAST_S = 1.0  # time that the first process waits for the others' errors
FLAG = '--distributed'
_FORM = 'off, auto on a cluster that JAX detects, or HOST:PORT,N,ID'
# Text in the exceptions of collectives and barriers after a loss.
_LOSS = re.compile(r'Gloo|NCCL|CoordinationService|coordination service')
# A line of the service's log; later lines of a dying process belong to it.
_SERVICE = re.compile(rb'[EF]\d{4} .*(coordination_service|client\.h:)')
_DRAIN_S = 0.3  # time to print output from before the abort
SHOWN = 3  # differing fields in a message


class Place(NamedTuple):
  """Position of a process in its run."""

  address: str  # HOST:PORT of the first process
  processes: int
  process: int  # number of this process


class _Joined:
  """State of a process that has joined others."""

  def __init__(self, rendezvous_s: int):
    self.rendezvous_s = rendezvous_s
    self.met = False
    self.aborts = Aborts(lambda: lost() if self.met else self.alone())

  def alone(self) -> errors.ResourceError:
    """Returns the error of processes that do not connect in time."""
    return errors.ResourceError(
      f'not all processes connected within {self.rendezvous_s} s',
      FLAG,
      "start all of them at the first one's HOST:PORT, or raise --rendezvous_s",
    )


_joined: _Joined | None = None
# Processes make the same calls in the same order, so that the number of a call
# is its name at the coordination service.
_calls = itertools.count()


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
  """Ends this process with an exit status, without waiting for the others."""
  # The first process ends last, so that others with the same error can report
  # it before the service that they depend on ends.
  if service()[1] == 0:
    time.sleep(_LAST_S)
  # A normal exit would wait for the other processes.
  os._exit(code)


def service() -> tuple[Any, int, int]:
  """Returns (coordination service, number of this process, of processes)."""
  # JAX has no public name for the client of its coordination service, and the
  # public numbers of processes start the devices, which may wait for others.
  state = distributed.global_state
  return state.client, state.process_id, state.num_processes


def rendezvous_s() -> int:
  """Returns the limit on waits before training, 0 for a run of one process."""
  return 0 if _joined is None else _joined.rendezvous_s


def lost() -> errors.ResourceError:
  """Returns the error of a run that has lost another process."""
  _, process, processes = service()
  return errors.ResourceError(
    'another process of this run was lost',
    f'process {process} of {processes}',
    'see its own message; the same command on all hosts resumes',
  )


def is_loss(error: BaseException) -> bool:
  """Returns whether an exception means that another process was lost."""
  return joined() and bool(_LOSS.search(str(error)))


class Aborts:
  """Reports aborts of native code as one line and an exit code.

  JAX's coordination service calls `abort()` when other processes are lost or do
  not connect, which would end a process with status 134 and a stack trace and
  without a Python exception. A handler of SIGABRT ends it like any other error
  instead. The service's messages are suppressed; others are printed.
  """

  def __init__(self, error: Callable[[], errors.FedReIDError]):
    """Starts; `error` is that of an abort by the coordination service."""
    self._error = error
    self._by_service = False
    # Native code writes to descriptor 2, whatever `sys.stderr` is: it becomes a
    # pipe, which a thread copies to the screen.
    self._screen = os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    sys.stderr = open(self._screen, 'w', buffering=1, closefd=False)
    self._reader = threading.Thread(target=self._copy, args=(read,))
    self._reader.daemon = True
    self._reader.start()
    # Python's own handlers run between two of its instructions, and `abort`
    # does not return to one. Stored, because C holds no reference to it.
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._on_abort)
    ctypes.CDLL(None).signal(signal.SIGABRT, self._handler)

  def drain(self) -> None:
    """Prints the output that native code has written."""
    os.dup2(self._screen, 2)  # now the reader reaches the end of the pipe
    self._reader.join(_DRAIN_S)

  def _copy(self, read: int) -> None:
    with open(read, 'rb') as lines:
      for line in lines:
        self._by_service |= bool(_SERVICE.match(line))
        if not self._by_service:
          os.write(self._screen, line)

  def _on_abort(self, number: int) -> None:
    del number
    self.drain()
    error = self._error()
    if not self._by_service:
      error = errors.InternalError('native code aborted', '', errors.REPORT)
    os.write(self._screen, f'{error.line()}\n'.encode())
    os._exit(error.exit_code)


def require(what: str, inputs: Callable[[], Mapping[str, Any]]) -> None:
  """Refuses to continue unless all processes have the same inputs.

  `what` names them in messages. A run of one process does not call `inputs`.

  Raises:
    ConfigError: in every process, naming the inputs that differ.
    ResourceError: when a process does not publish its inputs in time.
  """
  if not joined():
    return
  client, process, processes = service()
  prefix = f'fedreid/{next(_calls)}/'
  wait_ms = rendezvous_s() * 1000
  client.key_value_set(
    f'{prefix}{process}', json.dumps(inputs(), sort_keys=True)
  )
  published = []
  for other in range(processes):
    try:
      text = client.blocking_key_value_get(f'{prefix}{other}', wait_ms)
    except RuntimeError as error:
      if 'DEADLINE_EXCEEDED' not in str(error):
        raise  # another process was lost
      raise errors.ResourceError(
        f'process {other} of {processes} had no {what} within '
        f'{rendezvous_s()} s',
        FLAG,
        'see its own message, or raise --rendezvous_s',
      ) from error
    published.append(json.loads(text))
  differ = differences(published)
  if differ:
    more = f' and {len(differ) - SHOWN} more' if len(differ) > SHOWN else ''
    leave()  # all of them refuse, so none must count as lost
    raise errors.ConfigError(
      f'processes differ in {what}: ' + '; '.join(differ[:SHOWN]) + more,
      FLAG,
      'start all processes with the same flags, images and code',
    )


def of_first(make: Callable[[], bytes]) -> bytes:
  """Gives all processes the value that `make` returns in the first one.

  The value is in the coordinator's memory until all processes have read it.
  """
  if not joined():
    return make()
  client, process, _ = service()
  name = f'fedreid/{next(_calls)}'
  if process == 0:
    client.key_value_set(name, make().hex())
  wait_ms = rendezvous_s() * 1000
  value = bytes.fromhex(client.blocking_key_value_get(name, wait_ms))
  # The value may be a secret: it is deleted as soon as all have read it.
  client.wait_at_barrier(f'{name}/read', wait_ms)
  if process == 0:
    client.key_value_delete(name)
  return value


def differences(published: list[dict[str, Any]]) -> list[str]:
  """Returns a line for each input that differs, with two of its values."""
  lines = []
  for name in sorted(set().union(*published)):
    values = [inputs.get(name) for inputs in published]
    other = next((k for k, v in enumerate(values) if v != values[0]), None)
    if other is not None:
      lines.append(
        f'{name} is {values[0]!r} in process 0, {values[other]!r} in {other}'
      )
  return lines


def code(named: Sequence[schema.Named] = ()) -> dict[str, str]:
  """Returns versions, and the SHA-256 of source files, also of plug-ins."""
  found = {
    f'version of {name}': metadata.version(name) for name in recorder.PACKAGES
  }
  roots = [Path(__file__).parents[2], recipes.folder()]
  for plugin, name in named:
    roots += plugins.folders(plugins.module_of(name, plugin, ()))
  for root in roots:
    for path in [root] if root.is_file() else sorted(root.rglob('*.py')):
      digest = hashlib.sha256(path.read_bytes()).hexdigest()
      found[path.relative_to(root.parent).as_posix()] = digest[:16]
  return found


def connect(mesh: Mesh) -> None:
  """Runs a collective over the devices while all processes are together.

  Later collectives over the same devices wait for all processes.
  """
  # Gloo's first collective over some devices fails 30 seconds after the first
  # process has begun it, which is too soon where only one process compiles.
  if joined():
    largest(0)
    whole = NamedSharding(mesh, P())
    split = NamedSharding(mesh, P(mesh.axis_names))
    rows = np.zeros(mesh.devices.size, np.int32)
    placed = jax.make_array_from_callback(rows.shape, split, rows.__getitem__)
    jax.jit(lambda x: x, out_shardings=whole)(placed).block_until_ready()


def largest(number: int) -> int:
  """Returns the largest number of all processes, in each of them."""
  if not joined():
    return number
  return int(np.max(multihost_utils.process_allgather(np.int32(number))))
