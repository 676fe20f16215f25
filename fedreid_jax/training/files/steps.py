"""The saved steps of a run, for reading."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fedreid_jax import errors
from fedreid_jax.core import param_filter, types
from fedreid_jax.core.types import ClientState, Flat, ServerState
from fedreid_jax.training.clients import client_files, row_format
from fedreid_jax.training.clients.client_files import ClientFiles, Index
from fedreid_jax.training.clients.row_format import Layout, Leaf
from fedreid_jax.training.files import manifests, structure

# States of clients in a checkpoint, which are read without the model of the
# run.

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
  """Returns the personal parameters of each client.

  Args:
    states: leaves `[N, ...]` by name.
  """
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
  """Returns the leaves of rows that differ from the expected ones, as lines.

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


STATES = 'states.'  # prefix of the names of the server components' states


class Steps:
  """The steps in a folder of checkpoints."""

  def __init__(self, root: Path, config: Sequence[str] = ()):
    """Reads the steps of a folder.

    Args:
      root: folder of checkpoints.
      config: digests of the configuration, none for any.
    """
    self._root, self._config = root, config

  def steps(self) -> list[int]:
    """Returns the steps on disk, newest first, complete or not."""
    if not self._root.is_dir():
      return []
    names = [p.name for p in self._root.iterdir() if p.is_dir()]
    return sorted((int(n) for n in names if n.isdigit()), reverse=True)

  def restore_models(
    self, step: int, personal: bool = False
  ) -> tuple[types.Flat, Mapping[int, types.Flat], np.ndarray, dict[str, Any]]:
    """Restores the parts of models and nothing else.

    Args:
      step: a step that verifies.
      personal: whether to read personal parameters beside shared ones.

    Returns:
      (shared parameters `[G, ...]`, personal parameters by canonical index of
      the client, group of every client `[N]`, the JSON part). Parameters that
      were not read are {}. States in files do not have clients that never
      trained.
    """
    folder = self._root / str(step)
    # Empty items are not saved: a method that shares nothing has no 'model'.
    has_shared = (folder / 'model').is_dir()
    items = ['model'] if has_shared else []
    if personal or not has_shared:
      kinds = ('clients', 'rows')
      present = [kind for kind in kinds if (folder / kind).is_dir()]
      items += present or ([] if has_shared else ['clients'])
    found = self._read(step, ['server', *items])
    own: Mapping[int, types.Flat] = {}
    # Rows of many clients are read one by one, as they are needed.
    if 'rows' in found:
      own = Personal(self.files(step, Index(**found['rows'])))
    elif 'clients' in found:
      own = unstacked(found['clients'])
    shared = param_filter.flatten(found.get('model', {}))
    return shared, own, found['server']['groups'], found['host']

  def files(self, step: int, index: Index) -> ClientFiles:
    """Returns the files of the clients' states of a step, for reading."""
    described = manifests.described(self._root, step)
    files = ClientFiles(
      self._root / client_files.FOLDER,
      layout(described['rows']),
      described['run']['clients'],
    )
    files.index = index
    return files

  def segments(self) -> set[int]:
    """Returns the files of clients' states that the steps name, by number."""
    named = (manifests.segments(self._root, step) for step in self.steps())
    return set().union(*named)

  def restore_states(self, step: int) -> dict[str, np.ndarray]:
    """Restores the states of the server's components, by their names.

    The state of a component that is one array has the component's name; the
    leaves of other states are named by their paths.
    """
    return {
      name.removeprefix(STATES): leaf
      for name, leaf in self._read(step, ['server'])['server'].items()
      if name.startswith(STATES)
    }

  def verify(self, step: int) -> str | None:
    """Returns the first problem of a step, None if there is none."""
    return manifests.verify(self._root, step, self._config)

  def restore(
    self, step: int, server: ServerState, clients: ClientState
  ) -> tuple[ServerState, ClientState | Index, dict[str, Any]]:
    """Restores a step that verifies, on the host.

    Args:
      step: rounds done.
      server: a state with the expected shapes.
      clients: states of all clients, `[N, ...]`, with the expected shapes.

    Returns:
      (state of the server, states of the clients or the index of their files,
      the JSON part).

    Raises:
      IntegrityError: when the saved leaves, shapes or types are different.
    """
    in_files = (self._root / str(step) / 'rows').is_dir()
    kind = 'rows' if in_files else 'clients'
    expected: Any = clients
    if in_files:
      expected = Index.empty(len(server.groups))
    wanted = structure.items(server, expected)
    saved = self._read(step, [name for name, item in wanted.items() if item])
    differ = structure.differences(wanted, saved)
    if in_files:
      described = manifests.described(self._root, step)['rows']
      differ += differences(described, clients)
    if differ:
      raise errors.IntegrityError(
        'checkpoint of another model: ' + '; '.join(differ[:5]),
        str(self._root / str(step)),
        'use the configuration it was made with',
      )
    rest = structure.rebuild(
      {'groups': server.groups, 'states': server.states}, saved['server']
    )
    shared = param_filter.flatten(saved.get('model', {}))
    return (
      ServerState(shared=shared, **rest),
      structure.rebuild(expected, saved.get(kind, {})),
      saved['host'],
    )

  def _read(self, step: int, names: list[str]) -> dict[str, Any]:
    folder = self._root / str(step)
    standard = ocp.StandardCheckpointer()
    try:
      found: dict[str, Any] = {}
      for name in names:
        item = folder / name
        if not item.is_dir():
          raise errors.IntegrityError(
            f'no {name!r} in it', str(folder), 'use its own configuration'
          )
        meta = standard.metadata(item).item_metadata.tree  # pyright: ignore
        like = jax.tree.map(lambda m: np.zeros(m.shape, m.dtype), meta)
        found[name] = standard.restore(item, like)
      found['host'] = manifests.described(self._root, step)['run']
    finally:
      standard.close()
    return found
