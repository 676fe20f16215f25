"""The states of the clients of a run, with its checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.core.types import ServerState
from fedreid_jax.round.devices.client_store import ClientStore
from fedreid_jax.training.clients import client_rows
from fedreid_jax.training.clients.client_files import ClientFiles, Index
from fedreid_jax.training.files import checkpoint
from fedreid_jax.training.processes import agreement


class ClientStates:
  """Saves and restores a run with the states of its clients.

  Attributes:
    store: states of the clients.
    files: files of these states, None if they are in memory.
  """

  def __init__(
    self,
    store: ClientStore,
    saved: checkpoint.Checkpoints,
    names: Sequence[str],
    rule: str,
  ):
    """Chooses memory or files.

    Args:
      store: of the run, without rows.
      saved: checkpoints of the run.
      names: of all clients, `N`.
      rule: `execution.store`.
    """
    self.store, self._saved, self._names = store, saved, names
    self.files: ClientFiles | None = None
    if client_rows.on_disk(rule, store):
      self.files = client_rows.attach(store, saved.workdir, names)

  @property
  def notice(self) -> str:
    """Returns a line on the size of the files, '' if there are none."""
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
      client_rows.publish(self.files)

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
    agreement.largest(0)  # the first process has deleted older steps
    self.files.sweep(self._saved.segments())
    return path

  def restore(
    self, step: int | None, server: ServerState
  ) -> tuple[ServerState, dict[str, Any]]:
    """Restores the states of the clients, and returns the rest of a checkpoint.

    Args:
      step: of a checkpoint that verifies; None at the start of a run.
      server: a state with the expected shapes.

    Returns:
      (state of the server, the JSON part); `server` and {} at the start.

    Raises:
      IntegrityError: when the checkpoint is of another model.
      ConfigError: when the processes do not share a folder of files.
    """
    found, host = None, {}
    if step is not None:
      like = self.store.like()
      server, found, host = self._saved.restore(step, server, like)
    if self.files is not None:
      index = found if isinstance(found, Index) else None
      client_rows.begin(self.files, index, self._saved.segments())
    if found is not None:
      workdir = self._saved.workdir
      client_rows.restore(self.store, found, workdir, self._names)
    return server, host
