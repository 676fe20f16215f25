"""The states of the clients of a run, in memory or in files.

A small federation has all states in memory, and a checkpoint has them as one
array per leaf. In a large federation every process writes the rows of the
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
from fedreid_jax.core.types import ClientState
from fedreid_jax.round.devices.client_store import ClientStore
from fedreid_jax.training.clients import client_files, row_format
from fedreid_jax.training.clients.client_files import ClientFiles, Index
from fedreid_jax.training.files import atomic, manifests
from fedreid_jax.training.processes import agreement, peers

# `execution.store='auto'` keeps states in memory up to both of these limits.
MEMORY_CLIENTS = 1024
MEMORY_BYTES = 2 * 2**30
_PROBE = 'probe'
_RECORD = np.dtype(
  [
    *((name, '<i8') for name in ('client', 'segment', 'offset')),
    ('digest', 'u1', row_format.DIGEST),
    ('moved', '?'),
  ]
)


def on_disk(rule: str, store: ClientStore) -> bool:
  """Returns whether the states of clients are in files.

  Args:
    rule: `execution.store`.
    store: of the states.
  """
  if not store.row_bytes:  # nothing is private
    return False
  if rule == 'auto':
    all_bytes = len(store) * store.row_bytes
    return len(store) > MEMORY_CLIENTS or all_bytes > MEMORY_BYTES
  return rule == 'disk'


def attach(
  store: ClientStore, workdir: Path, names: Sequence[str]
) -> ClientFiles:
  """Moves the rows of a store into the files of a run, and returns these."""
  files = ClientFiles(
    manifests.clients(workdir),
    row_format.layout(store.shapes),
    names,
    jax.process_index(),
    jax.process_count(),
  )
  store.attach(files)
  return files


def check_shared(folder: Path) -> None:
  """Refuses processes that do not see one folder of files.

  Raises:
    ConfigError: in every process.
  """
  if not peers.joined():
    return
  first, probe = jax.process_index() == 0, folder / _PROBE
  # A new token, because a run that was killed may have left its probe; it is an
  # int32, which `largest` sends.
  token = agreement.largest(time.time_ns() % 2**31 if first else 0)
  if first:
    with errors.on_disk(folder):
      folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(probe, str(token))
  agreement.largest(0)  # the file is written
  seen = probe.is_file() and probe.read_text() == str(token)
  missing = agreement.largest(not seen)
  if first:
    probe.unlink()
  if missing:
    peers.leave()  # all of them refuse, so none must count as lost
    raise errors.ConfigError(
      f'not all processes see the files in {folder}',
      'execution.store',
      'use a work directory that they share, or set it to memory',
    )


def begin(files: ClientFiles, found: Index | None, kept: set[int]) -> None:
  """Continues from the index of a checkpoint, and deletes newer files.

  Args:
    files: of the run.
    found: index of the checkpoint; None if there is none.
    kept: segments that checkpoints name.
  """
  check_shared(files.folder)
  files.begin(found, kept)
  agreement.largest(0)  # no process writes before newer files are deleted


def restore(
  store: ClientStore,
  found: ClientState | Index,
  workdir: Path,
  names: Sequence[str],
) -> None:
  """Puts the states of a checkpoint into a store.

  Args:
    store: of the run; if it is in files, these have begun with the index.
    found: states or index of the checkpoint.
    workdir: of the run.
    names: of all clients.
  """
  if isinstance(found, ClientState):
    writes = not store.local or jax.process_index() == 0
    clients = np.arange(len(store))
    store.write(clients, found, np.full(len(store), writes))
  elif not store.local:
    layout = row_format.layout(store.shapes)
    files = ClientFiles(manifests.clients(workdir), layout, names)
    files.index = found
    store.rows.update({k: files[k] for k in files})


def publish(files: ClientFiles) -> None:
  """Sends the places of new rows to all processes, 57 bytes a row."""
  changed, moved = files.take_changed()
  if not peers.joined():
    return
  mine = changed + moved
  # A collective needs arrays of one size, so that shorter ones are padded.
  most = agreement.largest(len(mine))
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


def describe(files: ClientFiles) -> dict[str, Any]:
  """Returns the JSON part of a checkpoint: leaves, and sizes of segments."""
  return {
    'layout': files.layout,
    'segments': {
      client_files.name(s): files.path(s).stat().st_size
      for s in sorted(files.index.segments())
    },
  }
