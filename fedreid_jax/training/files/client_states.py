"""The states of the clients of a run, in memory or in files.

A small federation in one process has all states in memory, and a checkpoint has
them as one array per leaf. Otherwise every process writes the rows of the
clients that it ran (`client_files`), and a checkpoint has an index of these
files. Both give the same bits, and a run can be resumed with the other choice.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedreid_jax import errors
from fedreid_jax.core.types import ClientState, ServerState
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.training.files import atomic, checkpoint, client_files, steps
from fedreid_jax.training.files.client_files import ClientFiles, Index
from fedreid_jax.training.processes import peers

# `execution.store='auto'` keeps states of one process in memory up to both of
# these limits. Several processes would send each other all states.
MEMORY_CLIENTS = 1024
MEMORY_BYTES = 2 * 2**30
_RECORD = np.dtype(
  [
    *((name, '<i8') for name in ('client', 'segment', 'offset')),
    ('digest', 'u1', client_files.DIGEST),
    ('moved', '?'),
  ]
)


def on_disk(rule: str, store: ClientStore) -> bool:
  """Returns whether the states of clients are in files."""
  if not store.row_bytes:  # nothing is private
    return False
  if rule == 'auto':
    all_bytes = len(store) * store.row_bytes
    many = len(store) > MEMORY_CLIENTS or all_bytes > MEMORY_BYTES
    return many or jax.process_count() > 1
  return rule == 'disk'


class ClientStates:
  """Saves and restores a run with the states of its clients."""

  def __init__(
    self,
    store: ClientStore,
    saved: checkpoint.Checkpoints,
    names: Sequence[str],
    rule: str,
  ):
    """Chooses memory or files by `rule`; the store has no rows yet."""
    self.store, self._saved, self._names = store, saved, names
    # None: the states are in memory.
    self.files: ClientFiles | None = None
    if on_disk(rule, store):
      self.files = self._open(jax.process_index(), jax.process_count())
      store.attach(self.files)

  def _open(self, process: int = 0, processes: int = 1) -> ClientFiles:
    return ClientFiles(
      steps.clients(self._saved.workdir),
      client_files.layout(self.store.shapes),
      self._names,
      process,
      processes,
    )

  @property
  def notice(self) -> str:
    """A line on the size of the files, '' if there are none."""
    if self.files is None:
      return ''
    num, size = len(self.store), self.store.row_bytes
    clients = errors.counted(num, 'client')
    return (
      f'states of clients are in files: {clients} of {size:,} bytes, '
      f'{num * size / 1e9:.3g} GB if all of them train'
    )

  def publish(self) -> None:
    """Makes the rows of every process readable by all of them."""
    if self.files is not None:
      publish(self.files)

  def save(
    self,
    step: int,
    server: ServerState,
    host: dict[str, Any],
    score: float | None,
  ) -> Path:
    """Saves the state after `step` rounds, as `Checkpoints.save` does."""
    if self.files is None:
      states = self.store.stacked()
      return self._saved.save(step, server, states, host, score)
    # The checkpoint names rows, so that they must be on the disk before it.
    self.files.sync()
    self.publish()  # all processes have synchronised their files
    path = self._saved.save(step, server, self.files, host, score)
    peers.largest(0)  # the first process has deleted older steps
    self.files.sweep(self._saved.segments())
    return path

  def restore(
    self, step: int | None, server: ServerState
  ) -> tuple[ServerState, dict[str, Any]]:
    """Restores the clients; returns (state of the server, the JSON part).

    Without a step, at the start, these are `server` and {}. `server` has the
    expected shapes.

    Raises:
      IntegrityError: when the checkpoint is of another model.
      ConfigError: when the processes do not share a folder of files.
    """
    found, host, store = None, {}, self.store
    if step is not None:
      server, found, host = self._saved.restore(step, server, store.like())
    if self.files is not None:
      check_shared(self.files.folder)
      index = found if isinstance(found, Index) else None
      self.files.begin(index, self._saved.segments())
      peers.largest(0)  # no process writes before newer files are deleted
    if isinstance(found, ClientState):
      writes = not store.local or jax.process_index() == 0
      clients = np.arange(len(store))
      store.write(clients, found, np.full(len(store), writes))
      self.publish()  # the first process has written the rows of all others
    elif found is not None and not store.local:
      files = self._open()
      files.index = found
      store.rows.update({k: files[k] for k in files})
    return server, host


def check_shared(folder: Path) -> None:
  """Refuses processes that do not see one folder of files.

  Raises:
    ConfigError: in every process.
  """
  if not peers.joined():
    return
  first, probe = jax.process_index() == 0, folder / 'probe'
  # A new token, because a run that was killed may have left its probe; it is an
  # int32, which `largest` sends.
  token = peers.largest(time.time_ns() % 2**31 if first else 0)
  if first:
    with errors.on_disk(folder):
      folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(probe, str(token))
  peers.largest(0)  # the file is written
  seen = probe.is_file() and probe.read_text() == str(token)
  missing = peers.largest(not seen)
  if first:
    probe.unlink()
  if missing:
    peers.leave()  # all of them refuse, so none must count as lost
    raise errors.ConfigError(
      f'not all processes see the files in {folder}',
      'execution.store',
      'use a work directory that they share, or set it to memory',
    )


def publish(files: ClientFiles) -> None:
  """Sends the places of new rows to all processes, 57 bytes a row."""
  changed, moved = files.take_changed()
  if not peers.joined():
    return
  mine = changed + moved
  # A collective needs arrays of one size, so that shorter ones are padded.
  most = peers.largest(len(mine))
  if not most:
    return
  records = np.zeros(most, _RECORD)
  records['client'] = -1
  records['client'][: len(mine)] = mine
  records['moved'][len(changed) : len(mine)] = True
  for field, column in files.index._asdict().items():
    records[field][: len(mine)] = column[mine]
  sent = np.frombuffer(records.tobytes(), np.uint8)
  received: Any = multihost_utils.process_allgather(sent)
  found = np.frombuffer(np.asarray(received).tobytes(), _RECORD)
  found = found[found['client'] >= 0]
  # Copied rows first, so that new ones replace them: after a resume on other
  # devices a process may copy the old row of a client that another one trains.
  for part in (found[found['moved']], found[~found['moved']]):
    for field, column in files.index._asdict().items():
      column[part['client']] = part[field]
