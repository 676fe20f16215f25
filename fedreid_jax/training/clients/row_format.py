"""The bytes of the state of one client, and files of such rows.

A segment is a safetensors file with a tensor `CLIENT/LEAF` for every leaf of
every client in it. The package safetensors can read it.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.round.devices.client_store import Row
from fedreid_jax.training.files import structure

# Names of the types of arrays in safetensors files.
TYPES = {
  **{f'float{n}': f'F{n}' for n in (16, 32, 64)},
  **{f'int{n}': f'I{n}' for n in (8, 16, 32, 64)},
  **{f'uint{n}': f'U{n}' for n in (8, 16, 32, 64)},
  **{'bfloat16': 'BF16', 'bool': 'BOOL'},
}
DIGEST = 32  # bytes of a SHA-256


class Leaf(NamedTuple):
  """A leaf of the state of a client.

  Attributes:
    name: its path, joined by dots.
    dtype: name of its type.
    shape: without an axis of clients.
  """

  name: str
  dtype: str
  shape: tuple[int, ...]

  @property
  def nbytes(self) -> int:
    """Returns its size."""
    return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize


Layout = tuple[Leaf, ...]


def layout(shapes: Any) -> Layout:
  """Returns the leaves of a tree of arrays or shapes, in its order.

  Raises:
    ConfigError: for a type of arrays that files cannot hold.
  """
  leaves = tuple(
    Leaf(name, str(leaf.dtype), tuple(leaf.shape))
    for name, leaf in structure.by_path(shapes).items()
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


def pack(row: Row) -> bytes:
  """Returns the bytes of a row."""
  return b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in row)


def unpack(leaves: Layout, content: bytes) -> Row:
  """Returns the arrays of a row, which are read-only."""
  found, first = [], 0
  for leaf in leaves:
    part = content[first : first + leaf.nbytes]
    array = np.frombuffer(part, jnp.dtype(leaf.dtype))
    found.append(array.reshape(leaf.shape))
    first += leaf.nbytes
  return tuple(found)


def header(leaves: Layout, clients: Sequence[str]) -> bytes:
  """Returns the first part of a segment with the rows of clients in order."""
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


def write(
  path: Path, leaves: Layout, clients: Sequence[str], rows: Iterable[Row]
) -> Iterator[tuple[int, bytes]]:
  """Writes a segment, which gets its name when it is complete.

  Args:
    path: of the segment.
    leaves: of a row.
    clients: names of the clients.
    rows: of the clients, in the same order; one is in memory at a time.

  Yields:
    (offset in the file, SHA-256) of each row.

  Raises:
    ResourceError: when the disk is full or cannot be written.
  """
  partial = path.with_name(path.name + '.partial')
  try:
    with errors.on_disk(path):
      with partial.open('wb') as file:
        file.write(header(leaves, clients))
        for row in rows:
          content = pack(row)
          yield file.tell(), hashlib.sha256(content).digest()
          file.write(content)
      os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def sync(paths: Iterable[Path]) -> None:
  """Waits until files, and the names in their folders, are on the disk."""
  folders = set()
  for path in paths:
    with errors.on_disk(path):
      _sync(path)
    folders.add(path.parent)
  # A file that was renamed has its name after a loss of power only if its
  # folder is on the disk.
  for folder in folders:
    with errors.on_disk(folder):
      _sync(folder)


def _sync(path: Path) -> None:
  opened = os.open(path, os.O_RDONLY)
  try:
    os.fsync(opened)
  finally:
    os.close(opened)
