"""Rows of clients in files: immutable segments, and an index of the live rows.

Every write of rows is one new segment, `SEQUENCE-PROCESS.safetensors`. The
index has the segment, the offset and the SHA-256 of the newest row of every
client. A checkpoint holds a copy of the index, so that older segments stay
while a kept checkpoint names them. The live rows of a segment of which less
than half is live are copied into the next one, and a segment that neither the
index nor a kept checkpoint names is deleted. A segment has a tensor
`CLIENT/LEAF` for every leaf of every client in it, and the package safetensors
can read it.
"""

import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core.types import Tree
from fedreid_jax.round.client_store import Row

FOLDER = 'clients'  # in the folder of the checkpoints
SUFFIX = '.safetensors'
NAME = re.compile(rf'\d+-\d+{re.escape(SUFFIX)}')
# A segment has the number `sequence * PROCESSES + process`: every process
# counts its segments without asking the others.
PROCESSES = 1 << 16
# Names of the types of arrays in safetensors files.
TYPES = {
  **{f'float{n}': f'F{n}' for n in (16, 32, 64)},
  **{f'int{n}': f'I{n}' for n in (8, 16, 32, 64)},
  **{f'uint{n}': f'U{n}' for n in (8, 16, 32, 64)},
  **{'bfloat16': 'BF16', 'bool': 'BOOL'},
}
DIGEST = 32  # bytes of a SHA-256


def by_path(tree: Tree) -> dict[str, Any]:
  """Returns the leaves of a tree, or their shapes, by paths joined by dots."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  text = functools.partial(jax.tree_util.keystr, simple=True, separator='.')
  return {text(path).replace('/', '.'): leaf for path, leaf in leaves}


def named(tree: Tree) -> dict[str, np.ndarray]:
  """Returns the leaves of a tree as NumPy arrays, by their paths."""
  return {name: np.asarray(leaf) for name, leaf in by_path(tree).items()}


class Leaf(NamedTuple):
  """A leaf of the state of a client."""

  name: str  # its path, joined by dots
  dtype: str
  shape: tuple[int, ...]  # without an axis of clients

  @property
  def nbytes(self) -> int:
    """Returns its size."""
    return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize


Layout = tuple[Leaf, ...]


def layout(shapes: Any) -> Layout:
  """The leaves of a tree of arrays or shapes, in its order.

  Raises:
    ConfigError: for a type of arrays that files cannot hold.
  """
  leaves = tuple(
    Leaf(name, str(leaf.dtype), tuple(leaf.shape))
    for name, leaf in by_path(shapes).items()
  )
  for leaf in leaves:
    if leaf.dtype not in TYPES:
      raise errors.ConfigError(
        f'{leaf.name} has type {leaf.dtype}, which files cannot hold',
        'execution.store',
        'set it to memory',
      )
  return leaves


def row_bytes(leaves: Layout) -> int:
  """Returns the size of a row."""
  return sum(leaf.nbytes for leaf in leaves)


def _pack(row: Row) -> bytes:
  return b''.join(np.asarray(leaf).tobytes() for leaf in row)


def _unpack(leaves: Layout, content: bytes) -> Row:
  """Returns read-only arrays."""
  found, first = [], 0
  for leaf in leaves:
    part = content[first : first + leaf.nbytes]
    array = np.frombuffer(part, jnp.dtype(leaf.dtype))
    found.append(array.reshape(leaf.shape))
    first += leaf.nbytes
  return tuple(found)


def _header(leaves: Layout, clients: Sequence[str]) -> bytes:
  """The first part of a segment with the rows of clients in order."""
  # `safetensors.numpy.save_file` orders tensors by type and name. Here all
  # leaves of a client follow each other, so that one read and one digest cover
  # them.
  entries, first = {}, 0
  for client in clients:
    for leaf in leaves:
      entries[f'{client}/{leaf.name}'] = {
        'dtype': TYPES[leaf.dtype],
        'shape': leaf.shape,
        'data_offsets': (first, first + leaf.nbytes),
      }
      first += leaf.nbytes
  text = json.dumps(entries, separators=(',', ':')).encode()
  # The format allows spaces after the header, which align the tensors.
  text += b' ' * (-len(text) % 8)
  return len(text).to_bytes(8, 'little') + text


def _write(
  path: Path, leaves: Layout, clients: Sequence[str], rows: Iterable[Row]
) -> Iterator[tuple[int, bytes]]:
  """Writes rows of clients, one in memory; yields (offset, SHA-256) of each."""
  partial = path.with_name(path.name + '.partial')
  try:
    with errors.on_disk(path):
      with partial.open('wb') as file:
        file.write(_header(leaves, clients))
        for row in rows:
          content = _pack(row)
          yield file.tell(), hashlib.sha256(content).digest()
          file.write(content)
      os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def _sync(paths: Iterable[Path]) -> None:
  """Waits until files, and the names in their folders, are on the disk."""
  files = [*paths]
  # A file that was renamed has its name after a loss of power only if its
  # folder is on the disk.
  for path in (*files, *{file.parent for file in files}):
    with errors.on_disk(path):
      opened = os.open(path, os.O_RDONLY)
      try:
        os.fsync(opened)
      finally:
        os.close(opened)


class Index(NamedTuple):
  """The newest row of every client."""

  segment: np.ndarray  # int64 `[N]`, -1: never written
  offset: np.ndarray  # of the first byte, int64 `[N]`
  digest: np.ndarray  # SHA-256 of its bytes, uint8 `[N, 32]`

  @classmethod
  def empty(cls, num_clients: int) -> 'Index':
    """Returns the index of a store without rows."""
    return cls(
      np.full(num_clients, -1, np.int64),
      np.zeros(num_clients, np.int64),
      np.zeros((num_clients, DIGEST), np.uint8),
    )

  def copy(self) -> 'Index':
    """Returns a copy, which later writes do not change."""
    return Index(*(array.copy() for array in self))

  def segments(self) -> dict[int, int]:
    """Returns the number of live rows of each segment."""
    numbers, counts = np.unique(
      self.segment[self.segment >= 0], return_counts=True
    )
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def name(segment: int) -> str:
  """Returns the file name of a segment."""
  return f'{segment // PROCESSES}-{segment % PROCESSES}{SUFFIX}'


def number(path: Path) -> int:
  """Returns the number of a segment."""
  sequence, _, process = path.name.removesuffix(SUFFIX).partition('-')
  return int(sequence) * PROCESSES + int(process)


class ClientFiles:
  """Rows of clients in a folder, as `round.client_store.Rows`.

  Since the last `take_changed`, this process wrote the rows of the clients
  `changed`, and copied the old rows of those in `moved` to another segment.
  """

  def __init__(
    self,
    folder: Path,
    layout: Layout,
    clients: Sequence[str],
    process: int = 0,
    processes: int = 1,
  ):
    """Opens a folder, which the first write creates."""
    self.folder, self.layout = folder, layout
    self.index = Index.empty(len(clients))
    self.changed, self.moved = set[int](), set[int]()
    self._clients = clients
    self._process, self._processes = process, processes
    self._size = row_bytes(layout)
    self._next, self._unsynced = 0, set[int]()
    self._unknown: set[int] = set()  # segments that no one else can read yet
    self._rows: dict[int, int] = {}  # of the segments of this process

  def __contains__(self, client: int) -> bool:
    return bool(self.index.segment[client] >= 0)

  def __iter__(self) -> Iterator[int]:
    return iter(np.flatnonzero(self.index.segment >= 0).tolist())

  def __len__(self) -> int:
    return int((self.index.segment >= 0).sum())

  def __getitem__(self, client: int) -> Row:
    if client not in self:
      raise KeyError(client)
    path = self.path(int(self.index.segment[client]))
    try:
      with path.open('rb') as file:
        file.seek(int(self.index.offset[client]))
        content = file.read(self._size)
    except OSError as error:
      raise self._damaged(client, path, str(error.strerror)) from error
    # A manifest has only the names and sizes of segments, so that a row is
    # verified when it is read.
    digest = hashlib.sha256(content).digest()
    if digest != self.index.digest[client].tobytes():
      raise self._damaged(client, path, 'was changed')
    return _unpack(self.layout, content)

  def _damaged(self, client: int, path: Path, why: str) -> Exception:
    return errors.IntegrityError(
      f'the state of client {self._clients[client]!r} cannot be used: {why}',
      str(path),
      'restore the file from a copy, choose a newer checkpoint if the run has '
      'gone on, or start again with --restart',
    )

  def path(self, segment: int) -> Path:
    """Returns the file of a segment."""
    return self.folder / name(segment)

  def update(self, rows: Mapping[int, Row]) -> None:
    """Writes a segment with new rows and the live rows of sparse segments.

    Raises:
      ResourceError: when the disk is full; the store is then unchanged.
    """
    if not rows:
      return
    chosen = [*rows, *self._sparse(rows)]
    segment = self._next * PROCESSES + self._process
    with errors.on_disk(self.folder):
      self.folder.mkdir(parents=True, exist_ok=True)
    written = _write(
      self.path(segment),
      self.layout,
      [self._clients[k] for k in chosen],
      (rows[k] if k in rows else self[k] for k in chosen),
    )
    # `_write` is a generator: the list completes the segment before the index
    # changes, so that a full disk leaves the store as it was.
    for client, (offset, digest) in zip(chosen, [*written], strict=True):
      self.index.segment[client] = segment
      self.index.offset[client] = offset
      self.index.digest[client] = np.frombuffer(digest, np.uint8)
    self._next += 1
    self._rows[segment] = len(chosen)
    self._unsynced.add(segment)
    self._unknown.add(segment)
    self.changed.update(rows)
    self.moved.update(chosen)
    self.moved -= self.changed
    # Other processes may read segments that were published, so that only a
    # checkpoint may delete those.
    self.sweep(self._rows.keys() - self._unknown)

  def take_changed(self) -> tuple[list[int], list[int]]:
    """Empties `changed` and `moved` and returns both, to be published."""
    taken = sorted(self.changed), sorted(self.moved)
    self.changed.clear()
    self.moved.clear()
    self._unknown.clear()
    return taken

  def _sparse(self, rows: Mapping[int, Row]) -> list[int]:
    """Live rows of segments of which less than half will be live."""
    new = np.isin(np.arange(len(self._clients)), [*rows])
    segment = np.where(new, -1, self.index.segment)
    live = Index(segment, *self.index[1:]).segments()
    # Rows of other processes' segments are unknown, and never sparse.
    sparse = [s for s, n in live.items() if 2 * n < self._rows.get(s, 0)]
    return np.flatnonzero(np.isin(segment, sparse)).tolist()

  def describe(self) -> dict[str, Any]:
    """Returns the JSON part of a checkpoint: leaves, and sizes of segments."""
    return {
      'layout': self.layout,
      'segments': {
        name(s): self.path(s).stat().st_size
        for s in sorted(self.index.segments())
      },
    }

  def sync(self) -> None:
    """Waits until all segments are on the disk, as a checkpoint requires."""
    # Not after every write: rounds after a checkpoint are repeated, so that
    # their segments are not needed after a loss of power.
    _sync(self.path(s) for s in sorted(self._unsynced))
    self._unsynced.clear()
    self._unknown.clear()

  def sweep(self, kept: Iterable[int]) -> None:
    """Deletes this process's segments that neither the index nor `kept` has."""
    for segment in self._rows.keys() - self.index.segments().keys() - {*kept}:
      with errors.on_disk(self.folder):
        self.path(segment).unlink(missing_ok=True)
      del self._rows[segment]
      self._unsynced.discard(segment)
      self._unknown.discard(segment)

  def begin(self, index: Index | None, kept: Iterable[int]) -> None:
    """Continues from an index, or starts; unused segments are deleted."""
    self.index = Index.empty(len(self._clients)) if index is None else index
    self.take_changed()
    self._unsynced.clear()
    kept = {*kept} | self.index.segments().keys()
    # Segments that no checkpoint names are of rounds that will be repeated, and
    # files with another suffix were not completely written.
    if self._process == 0:
      for path in self.folder.glob(f'*{SUFFIX}*'):
        if not NAME.match(path.name):
          continue  # a file of somebody else
        if path.suffix != SUFFIX or number(path) not in kept:
          path.unlink(missing_ok=True)
    self._next = 1 + max((s // PROCESSES for s in kept), default=-1)
    self._rows = {
      s: self._length(s)
      for s in kept
      if s % PROCESSES % self._processes == self._process
    }

  def _length(self, segment: int) -> int:
    path = self.path(segment)
    try:
      with path.open('rb') as file:
        first = 8 + int.from_bytes(file.read(8), 'little')
      return (path.stat().st_size - first) // self._size
    except OSError:  # of an older checkpoint, which does not verify
      return 0
