"""The states of the clients between rounds, by canonical index.

A row is the state of one client that was written. Rows are in memory, or in
files of the process that ran the client (`training.files.client_files`). A
client without a row has the state of `init_client`, which is computed when it
is read. The engine reads the states of a cohort before a round and writes those
of the valid clients after it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from fedreid_jax.core.types import ClientState, Flat

Row = tuple[np.ndarray, ...]  # leaves of a state, in the order of the tree
Key = TypeVar('Key')


class Rows(Protocol):
  """The rows that were written; a `dict` has this interface."""

  def __contains__(self, client: int, /) -> bool: ...

  def __getitem__(self, client: int, /) -> Row: ...

  def __iter__(self) -> Iterator[int]: ...

  def update(self, rows: Mapping[int, Row], /) -> None:
    """Adds or replaces the rows of some clients."""
    ...


class OnDemand(Mapping[Key, Flat]):
  """Variables of clients, or of models, which are read when needed."""

  def __init__(self, keys: Collection[Key], read: Callable[[Key], Flat]):
    """Reads nothing; `read` returns the variables of one of the keys."""
    self._keys, self._read = keys, read

  def __len__(self) -> int:
    return len(self._keys)

  def __iter__(self) -> Iterator[Key]:
    return iter(self._keys)

  def __contains__(self, key: object) -> bool:
    return key in self._keys  # that of `Mapping` would read the variables

  def __getitem__(self, key: Key) -> Flat:
    if key not in self._keys:
      raise KeyError(key)
    return self._read(key)


class ClientStore:
  """States of `N` clients.

  Attributes:
    shapes: shapes of the state of one client, a tree of `ShapeDtypeStruct`.
    rows: rows of the clients that were written.
    local: whether every process writes only the rows of the clients that it
      ran; otherwise every process has all rows.
  """

  def __init__(
    self,
    init: Callable[[int], ClientState],
    shapes: ClientState,
    num_clients: int,
    rows: Rows | None = None,
  ):
    """Starts with the given rows, or without rows.

    Args:
      init: returns the initial state of a client on the host.
      rows: rows in files that were written; None for rows in memory.
    """
    self.shapes, self._init, self._num = shapes, init, num_clients
    self.rows: Rows = {} if rows is None else rows
    self.local = rows is not None
    self._initial: dict[int, Row] = {}

  def __len__(self) -> int:
    return self._num

  @property
  def row_bytes(self) -> int:
    """Bytes of the state of one client."""
    return sum(
      x.size * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(self.shapes)
    )

  @property
  def personal(self) -> OnDemand[int]:
    """Personal parameters of all clients, by canonical index."""
    return OnDemand(range(self._num), lambda k: self.row(k).personal)

  def attach(self, rows: Rows) -> None:
    """Copies the rows in memory into files, and uses these from now on."""
    if self.rows:
      rows.update({k: self.rows[k] for k in self.rows})
    self.rows, self.local = rows, True
    self._initial.clear()

  def written(self) -> list[int]:
    """Returns the clients that have a row, in canonical order."""
    return sorted(self.rows)

  def row(self, client: int) -> ClientState:
    """Returns the state of one client, without a leading axis."""
    return self._tree(self._leaves(client))

  def read(
    self, clients: Sequence[int] | np.ndarray, here: np.ndarray | None = None
  ) -> ClientState:
    """Returns the states of clients, `[k, ...]`, new arrays on the host.

    Args:
      clients: indices of the clients, `[k]`; -1 for an arbitrary state.
      here: whether each state is needed, bool `[k]`, None for all; the others
        are arbitrary.
    """
    wanted = np.asarray(clients) >= 0
    if here is not None:
      wanted &= here
    shapes = jax.tree.leaves(self.shapes)
    found = [
      self._leaves(int(k)) if use else None
      for k, use in zip(clients, wanted, strict=True)
    ]
    some = next((row for row in found if row is not None), None)
    # No state is needed, so that no initial state is computed for its shape.
    if some is None:
      some = tuple(np.zeros(x.shape, x.dtype) for x in shapes)
    full = [some if row is None else row for row in found]
    stacked = [np.stack([row[i] for row in full]) for i in range(len(shapes))]
    return self._tree(stacked)

  def write(
    self,
    clients: Sequence[int] | np.ndarray,
    states: ClientState,
    valid: np.ndarray,
  ) -> None:
    """Replaces the states of the valid clients.

    Args:
      clients: indices of the clients, `[k]`.
      states: states on the host, `[k, ...]`.
      valid: whether to write each of them, bool `[k]`.
    """
    leaves: list[np.ndarray] = jax.tree.leaves(states)
    if leaves:
      # Copies: a view of one row would keep the arrays of all lanes.
      rows = {
        int(clients[i]): tuple(np.array(leaf[i]) for leaf in leaves)
        for i in np.flatnonzero(valid).tolist()
      }
      self.rows.update(rows)

  def stacked(self) -> ClientState:
    """Returns the states of all clients, `[N, ...]`."""
    return self.read(range(self._num))

  def like(self) -> ClientState:
    """Returns zeros of the shapes of `stacked`, which take no memory."""

    def zeros(leaf: Any) -> np.ndarray:
      shape = self._num, *leaf.shape
      return np.broadcast_to(np.zeros((), leaf.dtype), shape)

    return jax.tree.map(zeros, self.shapes)

  def copy(self) -> 'ClientStore':
    """Returns a store in memory with the same rows, which are not copied."""
    made = ClientStore(self._init, self.shapes, self._num)
    made.rows = {k: self.rows[k] for k in self.rows}
    made._initial = self._initial
    return made

  def _tree(self, leaves: Sequence[np.ndarray]) -> ClientState:
    structure: Any = jax.tree.structure(self.shapes)
    return jax.tree.unflatten(structure, leaves)

  def _leaves(self, client: int) -> Row:
    if client in self.rows:
      return self.rows[client]
    if client in self._initial:
      return self._initial[client]
    leaves = map(np.asarray, jax.tree.leaves(self._init(client)))
    row = tuple(leaves)
    # With rows in memory the federation is small enough to keep these as well.
    if not self.local:
      self._initial[client] = row
    return row
