"""Trees of arrays in a folder: the only module that uses Orbax.

It uses version 1 of Orbax's interface, which `orbax-checkpoint` 0.12 has as
`experimental.v1` and 1.0 will have as `orbax.checkpoint`. Every tree has a
folder of its own, below a folder that appears complete or not at all: Orbax
writes into a folder with another name, and renames it. Folders that version 0
of the interface wrote are read as well.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint.experimental import v1 as ocp

from fedreid_jax.core.types import Tree

# Orbax names the signals between its own threads by a counter of the process:
# of two threads that write at once, one waits for folders of the other.
_TURN = threading.Lock()


def write(folder: Path, trees: Mapping[str, Tree]) -> None:
  """Writes trees of arrays, by their names; returns when they are on the disk.

  All processes of a run call it with equal arrays, of which the first process
  writes one copy.

  Raises:
    OSError, ValueError: as Orbax and TensorStore raise them, the latter also
      for a disk that is full and for a folder that exists.
  """
  # Scalars of NumPy are no arrays for Orbax.
  arrays = {name: jax.tree.map(np.asarray, t) for name, t in trees.items()}
  with _TURN:
    ocp.save_checkpointables(os.fspath(folder), arrays)


def read(folder: Path, names: Iterable[str]) -> dict[str, Any]:
  """Reads trees as NumPy arrays; `names` are some of those that were written.

  Lists and named tuples come back as Orbax's plain containers.
  """
  with _TURN:
    written = ocp.checkpointables_metadata(os.fspath(folder)).metadata
    # Arrays of a device would be put onto the device that they came from.
    like = {
      name: jax.tree.map(lambda m: np.zeros(m.shape, m.dtype), written[name])
      for name in names
    }
    return ocp.load_checkpointables(os.fspath(folder), like) if like else {}


def partial(root: Path, name: str = '*') -> list[Path]:
  """Returns what interrupted writes of folders `root/name` have left."""
  return [*root.glob(f'{name}.orbax-checkpoint-tmp*')]
