"""The states of the clients in a checkpoint, without the run that made them."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedreid_jax.core.types import ClientState, Flat
from fedreid_jax.training.clients import row_format
from fedreid_jax.training.clients.client_files import ClientFiles
from fedreid_jax.training.clients.row_format import Layout, Leaf

PREFIX = 'personal.'  # of the names of personal parameters


class Personal(Mapping[int, Flat]):
  """Personal parameters of the clients that have a row, read on demand."""

  def __init__(self, files: ClientFiles):
    self._files = files

  def __len__(self) -> int:
    return len(self._files)

  def __iter__(self) -> Iterator[int]:
    return iter(self._files)

  def __getitem__(self, client: int) -> Flat:
    row = self._files[client]
    names = [leaf.name for leaf in self._files.layout]
    return _personal(dict(zip(names, row, strict=True)))


def unstacked(states: Mapping[str, np.ndarray]) -> dict[int, Flat]:
  """Returns the personal parameters by client of states `[N, ...]` by name."""
  own = _personal(states)
  num = min((len(leaf) for leaf in own.values()), default=0)
  return {k: {name: leaf[k] for name, leaf in own.items()} for k in range(num)}


def _personal(leaves: Mapping[str, np.ndarray]) -> Flat:
  return {
    name.removeprefix(PREFIX).replace('.', '/'): leaf
    for name, leaf in leaves.items()
    if name.startswith(PREFIX)
  }


def layout(described: dict[str, Any]) -> Layout:
  """Returns the leaves of a row from the JSON part of a checkpoint."""
  return tuple(
    Leaf(name, dtype, tuple(shape))
    for name, dtype, shape in described['layout']
  )


def differences(described: dict[str, Any], states: ClientState) -> list[str]:
  """Returns the leaves of rows that are not as expected, one line each.

  Args:
    described: the JSON part of a checkpoint.
    states: with the expected shapes, `[N, ...]`.
  """
  saved = set(layout(described))
  one = jax.tree.map(lambda leaf: leaf[0], states)
  wanted = set(row_format.layout(one))
  return [
    f'clients/{leaf.name} of {leaf.dtype}{list(leaf.shape)} is in one only'
    for leaf in sorted(saved ^ wanted)
  ]
