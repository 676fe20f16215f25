"""The saved steps of a run, for reading.

`manifest-STEP.json` has the SHA-256 of every file of a step. It is written
after the step, so that a step without a manifest is incomplete. A step does not
verify if one of its files differs, or if it belongs to another step or
configuration.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import trees
from fedreid_jax.core.types import ClientState, Flat, ServerState, Tree
from fedreid_jax.round.client_store import OnDemand
from fedreid_jax.training.files import client_files, orbax_files, sealed
from fedreid_jax.training.files.client_files import (
  ClientFiles,
  Index,
  Layout,
  Leaf,
)

FOLDER = 'checkpoints'  # in a work directory
DESCRIBED = 'host.json'  # in the folder of a step
# Prefixes of the names of personal parameters, and of the states of the
# server's components.
PERSONAL, STATES = 'personal.', 'states.'


def clients(workdir: Path) -> Path:
  """Returns the folder of the files of the clients' states."""
  return workdir / FOLDER / client_files.FOLDER


def files(workdir: Path) -> list[Path]:
  """Returns the folders of steps, complete or not, and their manifests."""
  return [*(workdir / FOLDER).glob('[0-9]*'), *complete(workdir)]


def complete(workdir: Path) -> list[Path]:
  """Returns the manifests of the steps that were saved completely."""
  return [*(workdir / FOLDER).glob('manifest-*.json')]


def manifest(root: Path, step: int) -> Path:
  """Returns the manifest of a step in a folder of checkpoints."""
  return root / f'manifest-{step}.json'


def digests(folder: Path) -> dict[str, str]:
  """Returns the SHA-256 of the files in a folder by their paths."""
  return {
    path.relative_to(folder).as_posix(): hashlib.sha256(
      path.read_bytes()
    ).hexdigest()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def _personal(leaves: Mapping[str, np.ndarray]) -> Flat:
  return {
    name.removeprefix(PERSONAL).replace('.', '/'): leaf
    for name, leaf in leaves.items()
    if name.startswith(PERSONAL)
  }


class Steps:
  """The steps in a folder of checkpoints."""

  def __init__(self, root: Path, config: Sequence[str] = ()):
    """Reads a folder; without digests of a configuration, it accepts any."""
    self._root, self._config = root, config

  def steps(self) -> list[int]:
    """Returns the steps on disk, newest first, complete or not."""
    if not self._root.is_dir():
      return []
    names = [p.name for p in self._root.iterdir() if p.is_dir()]
    return sorted((int(n) for n in names if n.isdigit()), reverse=True)

  def restore_models(
    self, step: int, personal: bool = False
  ) -> tuple[Flat, Mapping[int, Flat], np.ndarray, dict[str, Any]]:
    """Restores the parts of models and nothing else.

    Returns (shared parameters `[G, ...]`, personal parameters by canonical
    index, {} unless `personal`, group of every client `[N]`, the JSON part).
    States in files do not have clients that never trained.
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
    own: Mapping[int, Flat] = {}
    # Rows of many clients are read one by one, as they are needed.
    if 'rows' in found:
      files = self.files(step, Index(**found['rows']))
      names = [leaf.name for leaf in files.layout]
      own = OnDemand(
        dict.fromkeys(files),
        lambda k: _personal(dict(zip(names, files[k], strict=True))),
      )
    elif 'clients' in found:
      stacked = _personal(found['clients'])
      num = min((len(leaf) for leaf in stacked.values()), default=0)
      own = {k: {n: x[k] for n, x in stacked.items()} for k in range(num)}
    shared = trees.flatten(found.get('model', {}))
    return shared, own, found['server']['groups'], found['host']

  def files(self, step: int, index: Index) -> ClientFiles:
    """Returns the files of the clients' states of a step, for reading."""
    content = self._described(step)
    files = ClientFiles(
      self._root / client_files.FOLDER,
      _layout(content['rows']),
      content['run']['clients'],
    )
    files.index = index
    return files

  def segments(self) -> set[int]:
    """Returns the files of clients' states that the steps name, by number."""
    found: set[int] = set()
    for step in self.steps():
      try:
        rows = self._described(step).get('rows', {})
      except (OSError, ValueError):  # it does not verify
        continue
      names = rows.get('segments', {})
      found |= {client_files.number(Path(name)) for name in names}
    return found

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

  def restore(
    self, step: int, server: ServerState, clients: ClientState
  ) -> tuple[ServerState, ClientState | Index, dict[str, Any]]:
    """Restores a step that verifies, on the host: (server, clients, JSON part).

    The arguments have the expected shapes, `clients` `[N, ...]`. The result has
    the index of the clients' files, if there are files.

    Raises:
      IntegrityError: when the saved leaves, shapes or types are different.
    """
    in_files = (self._root / str(step) / 'rows').is_dir()
    expected: Any = Index.empty(len(server.groups)) if in_files else clients
    wanted = items(server, expected)
    saved = self._read(step, [name for name, item in wanted.items() if item])
    differ = _differences(wanted, saved)
    if in_files:
      written = {*_layout(self._described(step)['rows'])}
      one = jax.tree.map(lambda leaf: leaf[0], clients)
      differ += [
        f'clients/{leaf.name} of {leaf.dtype}{list(leaf.shape)} is in one only'
        for leaf in sorted(written ^ {*client_files.layout(one)})
      ]
    if differ:
      raise errors.IntegrityError(
        'checkpoint of another model: ' + '; '.join(differ[:5]),
        str(self._root / str(step)),
        'use the configuration it was made with',
      )
    rest = _rebuild(
      {'groups': server.groups, 'states': server.states}, saved['server']
    )
    shared = trees.flatten(saved.get('model', {}))
    return (
      ServerState(shared=shared, **rest),
      _rebuild(expected, saved.get('rows' if in_files else 'clients', {})),
      saved['host'],
    )

  def _read(self, step: int, names: list[str]) -> dict[str, Any]:
    folder = self._root / str(step)
    for name in names:
      if not (folder / name).is_dir():
        raise errors.IntegrityError(
          f'no {name!r} in it', str(folder), 'use its own configuration'
        )
    host = self._described(step)['run']
    return orbax_files.read(folder, names) | {'host': host}

  def _described(self, step: int) -> dict[str, Any]:
    """The JSON part of a step: its number, configuration, run and score."""
    folder = self._root / str(step)
    path = folder / DESCRIBED
    if not path.exists():  # of version 0 of Orbax's interface
      path = folder / 'host/metadata'
    found = json.loads(path.read_text())
    # A step of version 0.1 has only the part of the run. Its models can be
    # restored, but the run cannot be resumed.
    if 'run' not in found:
      found = {'step': step, 'config': None, 'run': found}
    run = found['run']
    if 'world' in run:  # the name of the source until version 0.2
      run['source'] = run.pop('world')
    return found

  def measured(self, step: int) -> dict[str, bytes]:
    """Returns the copies of the files of measurements of a step, by name.

    A step of an earlier version has none.
    """
    names = self._described(step)['run'].get(sealed.FILES, {})
    folder = self._root / str(step)
    return {name: (folder / name).read_bytes() for name in names}

  def score(self, step: int) -> float | None:
    """Returns the score of a step, None if it was not evaluated."""
    # Of version 0 of Orbax's interface.
    former = self._root / str(step) / 'metrics/metrics'
    if former.is_file():
      return json.loads(former.read_text())['mAP']
    return self._described(step).get('mAP')

  def verify(self, step: int) -> str | None:
    """Returns the first problem of a step, None if there is none."""
    path = manifest(self._root, step)
    try:
      expected = json.loads(path.read_text())
    except FileNotFoundError:
      return f'{path.name} is missing, so that it is not complete'
    except (OSError, ValueError):
      expected = None
    if not isinstance(expected, dict):
      return f'{path.name} is damaged'
    found = digests(self._root / str(step))
    for name in sorted(expected.keys() | found.keys()):
      if name not in found:
        return f'{name} is missing, or {path.name} was changed'
      if found[name] != expected.get(name):
        return f'{name} was changed, or {path.name} was'
    content = self._described(step)
    if content.get('step') != step:
      return f'it is step {content.get("step")}, renamed'
    own = content.get('config')  # None of a step of version 0.1
    if self._config and own is not None and own not in self._config:
      return 'it is of another configuration'
    # Only names and sizes: the content of a row is verified when it is read.
    for name, size in content.get('rows', {}).get('segments', {}).items():
      path = self._root / client_files.FOLDER / name
      if not path.is_file():
        return f'{client_files.FOLDER}/{name} is missing'
      if path.stat().st_size != size:
        return f'{client_files.FOLDER}/{name} has another size'
    return None


def items(server: ServerState, clients: Tree) -> dict[str, Tree]:
  """The items of a checkpoint but JSON; clients `[N, ...]` or their index."""
  kind = 'clients' if isinstance(clients, ClientState) else 'rows'
  rest = {'groups': server.groups, 'states': server.states}
  return {
    'model': trees.unflatten(jax.device_get(server.shared)),
    'server': client_files.named(rest),
    kind: client_files.named(clients),
  }


def _rebuild(like: Tree, saved: dict[str, np.ndarray]) -> Tree:
  """A tree of the structure of `like` with the leaves of `saved`."""
  # Saved leaves are found by path, whatever their order in the file.
  leaves = [np.array(saved[name]) for name in client_files.by_path(like)]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _layout(rows: dict[str, Any]) -> Layout:
  return tuple(
    Leaf(n, dtype, tuple(shape)) for n, dtype, shape in rows['layout']
  )


def _differences(wanted: dict[str, Tree], saved: dict[str, Any]) -> list[str]:
  """The leaves whose shape or type differs, one line each."""

  def kinds(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
      jax.tree_util.keystr(p, simple=True, separator='/'): (
        f'{np.asarray(leaf).dtype}{list(np.shape(leaf))}'
      )
      for p, leaf in leaves
    }

  here = kinds({k: saved[k] for k in wanted if k in saved})
  there = kinds({k: v for k, v in wanted.items() if v})
  return [
    f'{name} is {here.get(name, "absent")}, not {there.get(name, "there")}'
    for name in sorted(here.keys() | there.keys())
    if here.get(name) != there.get(name)
  ]
