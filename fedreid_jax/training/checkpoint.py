"""Checkpoints that are right or refused: Orbax and a digest.

Orbax writes a step aside and renames it, but has no checksum of its payload: a
flipped bit restores as wrong weights without an error. After every save the
SHA-256 of each file of the step goes into `manifest-STEP.json`; one of these
files says which step and which configuration it is of. A step without a
manifest, with a file that differs, or of another number or configuration does
not exist for a resume, which walks back to the newest step that verifies.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from fedreid_jax import errors
from fedreid_jax.core import param_filter, types
from fedreid_jax.core.types import ClientState, ServerState, Tree
from fedreid_jax.training import recorder

FOLDER = 'checkpoints'  # of a work directory
KEPT = 2  # newest steps kept, beside the best
PERSONAL = 'personal.'  # what names of leaves that stay begin with
STATES = 'states.'  # likewise of what the server's components keep


def _named(tree: Tree) -> dict[str, np.ndarray]:
  """Returns the leaves of any tree by a name that is a path of one part."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator='.').replace('/', '.'): (
      np.asarray(leaf)
    )
    for path, leaf in leaves
  }


def _items(server: ServerState, clients: ClientState) -> dict[str, Tree]:
  return {
    'model': param_filter.unflatten(jax.device_get(server.shared)),
    'server': _named({'groups': server.groups, 'states': server.states}),
    'clients': _named(clients),
  }


def _rebuild(like: Tree, named: dict[str, np.ndarray]) -> Tree:
  names = list(_named(like))
  structure = jax.tree.structure(like)
  return jax.tree.unflatten(structure, [np.array(named[n]) for n in names])


def files(workdir: Path) -> list[Path]:
  """Returns what there is of steps, whole or not, and of their manifests."""
  return [*(workdir / FOLDER).glob('[0-9]*'), *manifests(workdir)]


def manifests(workdir: Path) -> list[Path]:
  """Returns the manifests of the steps that were saved to the end."""
  return [*(workdir / FOLDER).glob('manifest-*.json')]


class Checkpoints:
  """The saved steps of one work directory."""

  def __init__(
    self, workdir: Path, config: str | None = None, read_only: bool = False
  ):
    """Opens `workdir/checkpoints`; the first save makes it.

    Args:
      workdir: of a run.
      config: digest of its configuration; steps of another do not verify.
      read_only: nothing will be saved or deleted.
    """
    self._workdir, self._config = workdir, config
    self._root = (workdir / FOLDER).resolve()
    self._options = ocp.CheckpointManagerOptions(
      best_fn=_map,
      read_only=read_only,
      enable_async_checkpointing=False,
      preservation_policy=None
      if read_only
      else checkpoint_managers.AnyPreservationPolicy(
        [
          checkpoint_managers.LatestN(KEPT),
          checkpoint_managers.BestN(
            n=1, get_metric_fn=_map, keep_checkpoints_without_metrics=False
          ),
        ]
      ),
    )
    self._manager: ocp.CheckpointManager | None = None

  @property
  def _open(self) -> ocp.CheckpointManager:
    if self._manager is None:
      if not self._options.read_only:
        self._root.mkdir(parents=True, exist_ok=True)
      self._manager = ocp.CheckpointManager(self._root, options=self._options)
    return self._manager

  def close(self) -> None:
    """Releases Orbax's resources; the next call opens them again."""
    if self._manager is not None:
      self._manager.close()
      self._manager = None

  def save(
    self,
    step: int,
    server: ServerState,
    clients: ClientState,
    host: dict[str, Any],
    score: float | None,
  ) -> None:
    """Saves the state after `step` rounds; done when it returns.

    Args:
      step: rounds done.
      server: on devices or on the host.
      clients: on the host.
      host: anything JSON.
      score: of the evaluation of this step, if there was one; called 'mAP' on
        disk whatever it is.

    Raises:
      ResourceError: when the disk does not take it.
    """
    items: dict[str, Any] = {
      name: ocp.args.StandardSave(item)  # pyright: ignore[reportCallIssue]
      for name, item in _items(server, clients).items()
      if item
    }
    described = {'step': step, 'config': self._config, 'run': host}
    items['host'] = ocp.args.JsonSave(described)  # pyright: ignore[reportCallIssue]
    self._check_room(server, clients)
    try:
      taken = self._open.save(
        step,
        args=ocp.args.Composite(**items),
        metrics=None if score is None else {'mAP': score},
      )
      self._open.wait_until_finished()
      if not taken:  # Orbax says so of a step it already has, and no more
        raise errors.IntegrityError(
          f'step {step} was saved by another process',
          str(self._root),
          'end every run that uses it, then start one of them again',
        )
      if jax.process_index() == 0:
        files = _digests(self._root / str(step))
        recorder.write_json(self._manifest(step), files)
        for stale in manifests(self._workdir):
          if not (self._root / stale.stem.removeprefix('manifest-')).exists():
            stale.unlink()
    except (OSError, ValueError) as error:  # TensorStore's are the latter
      reason = errors.disk_is_full(error)
      if not (reason or isinstance(error, OSError)):
        raise
      for partial in self._root.glob(f'{step}.orbax-checkpoint-tmp*'):
        shutil.rmtree(partial, ignore_errors=True)
      raise errors.ResourceError(
        f'checkpoint not written: {reason or error}',
        str(self._root),
        'make room, the same command resumes',
      ) from error

  def _check_room(self, server: ServerState, clients: ClientState) -> None:
    """Refuses a save the disk cannot hold before a part of it is written."""
    needed = sum(x.nbytes for x in jax.tree.leaves((server, clients)))
    free = shutil.disk_usage(self._workdir).free
    if needed > free:
      raise errors.ResourceError(
        f'checkpoint not written: it has {needed:,} bytes, {free:,} are free',
        str(self._root),
        'make room, the same command resumes',
      )

  def latest(self, say=print) -> int | None:
    """Returns the newest step that verifies, removing newer ones that do not.

    Args:
      say: told about every step that is passed over.

    Raises:
      IntegrityError: when steps were saved and none of them verifies; then
        nothing is removed.
    """
    damaged = []
    for step in self.steps():
      trouble = self.verify(step)
      if trouble is None:
        self._remove([bad for bad, _ in damaged])
        return step
      damaged.append((step, trouble))
      say(f'checkpoint {step} passed over: {trouble}')
    # Of a first save that was cut short, step 0 is all there is. Later ones
    # have older steps beside them until they are whole.
    if manifests(self._workdir) or any(step for step, _ in damaged):
      what = [f'{step}: {trouble}' for step, trouble in damaged[:1]]
      raise errors.IntegrityError(
        '; '.join(['no checkpoint verifies', *what]),
        str(self._root),
        'restore the files from a copy, or start again with --restart',
      )
    self._remove([step for step, _ in damaged])
    return None

  def _remove(self, steps: list[int]) -> None:
    """Deletes steps, so that Orbax takes their numbers again."""
    self.close()
    for step in steps:
      shutil.rmtree(self._root / str(step), ignore_errors=True)

  def steps(self) -> list[int]:
    """Returns the steps on disk, newest first, whole or not."""
    if not self._root.is_dir():
      return []
    names = [p.name for p in self._root.iterdir() if p.is_dir()]
    return sorted((int(n) for n in names if n.isdigit()), reverse=True)

  def best(self) -> int | None:
    """Returns the step with the highest score, None if none was evaluated."""
    return self._open.best_step()

  def find(self, which: str) -> int:
    """Returns the step 'latest', 'best' or a number stands for.

    Raises:
      ConfigError: when it is none of them.
      IntegrityError: when it is not there or does not verify.
    """
    if which not in ('latest', 'best') and not which.isdecimal():
      raise errors.ConfigError(
        f'unknown checkpoint {which!r}', '--checkpoint', 'latest, best or N'
      )
    steps = [s for s in self.steps() if self.verify(s) is None]
    step = None
    if which == 'latest':
      step = next(iter(steps), None)
    elif which == 'best':
      step = self.best() if steps else None
    elif int(which) in self.steps():
      step = int(which)
    if step is None:
      raise errors.IntegrityError(
        f'no checkpoint {which}', str(self._root), f'there are {steps}'
      )
    trouble = self.verify(step)
    if trouble is not None:
      raise errors.IntegrityError(
        f'checkpoint {step}: {trouble}', str(self._root), 'choose another'
      )
    return step

  def restore_models(
    self, step: int, personal: bool = False
  ) -> tuple[types.Flat, types.Flat, np.ndarray, dict[str, Any]]:
    """Restores what models are made of, and nothing else.

    Args:
      step: that verifies.
      personal: read the leaves that stay also where others travel.

    Returns:
      (leaves that travel `[G, ...]`, leaves that stay `[N, ...]`, group of
      every client `[N]`, the JSON part). Leaves that were not read are {}.
    """
    folder = self._root / str(step)
    travels = (folder / 'model').is_dir()
    items = ['model' if travels else 'clients']
    if travels and personal and (folder / 'clients').is_dir():
      items.append('clients')
    found = self._read(step, ['server', *items])
    stays = {
      name.removeprefix(PERSONAL).replace('.', '/'): leaf
      for name, leaf in found.get('clients', {}).items()
      if name.startswith(PERSONAL)
    }
    shared = param_filter.flatten(found.get('model', {}))
    return shared, stays, found['server']['groups'], found['host']

  def restore_slots(self, step: int) -> dict[str, np.ndarray]:
    """Restores what the server's components keep, by their names.

    Only what is one array each; other slots have paths for names.
    """
    return {
      name.removeprefix(STATES): leaf
      for name, leaf in self._read(step, ['server'])['server'].items()
      if name.startswith(STATES)
    }

  def verify(self, step: int) -> str | None:
    """Returns what is wrong with a step, None if nothing."""
    folder = self._root / str(step)
    try:
      expected = json.loads(self._manifest(step).read_text())
    except (OSError, ValueError):
      return 'it was not completed'
    if not isinstance(expected, dict):
      return 'its manifest is damaged'
    found = _digests(folder)
    for name in sorted(expected.keys() | found.keys()):
      if name not in found:
        return f'{name} is missing'
      if found[name] != expected.get(name):
        return f'{name} was changed'
    described = self._described(step)
    if described.get('step') != step:
      return f'it is step {described.get("step")}, renamed'
    if self._config not in (None, described.get('config')):
      return 'it is of another configuration'
    return None

  def _described(self, step: int) -> dict[str, Any]:
    return json.loads((self._root / str(step) / 'host/metadata').read_text())

  def restore(
    self, step: int, server: ServerState, clients: ClientState
  ) -> tuple[ServerState, ClientState, dict[str, Any]]:
    """Restores a step that verifies, on the host.

    Args:
      step: rounds done.
      server: a state of the right shapes.
      clients: likewise.

    Raises:
      IntegrityError: when what was saved has other leaves, shapes or types.
    """
    wanted = _items(server, clients)
    saved = self._read(step, [name for name, item in wanted.items() if item])
    differ = _differences(wanted, saved)
    if differ:
      raise errors.IntegrityError(
        'checkpoint of another model: ' + '; '.join(differ[:5]),
        str(self._root / str(step)),
        'use the configuration it was made with',
      )
    rest = _rebuild(
      {'groups': server.groups, 'states': server.states}, saved['server']
    )
    shared = param_filter.flatten(saved.get('model', {}))
    return (
      ServerState(shared=shared, **rest),
      _rebuild(clients, saved.get('clients', {})),
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
      found['host'] = self._described(step)['run']
    finally:
      standard.close()
    return found

  def _manifest(self, step: int) -> Path:
    return self._root / f'manifest-{step}.json'


def check_fits(found: types.Flat, model: types.Flat) -> None:
  """Refuses leaves of another model; some may be missing.

  Raises:
    IntegrityError: naming the leaves that differ.
  """
  different = [
    f'{n} is {list(x.shape)}, not {list(model[n].shape)}'
    if n in model
    else f'{n} is not in the model'
    for n, x in found.items()
    if n not in model or x.shape != model[n].shape
  ]
  if different:
    raise errors.IntegrityError(
      'checkpoint of another model: ' + '; '.join(different[:5]),
      'checkpoint',
      'use the configuration it was made with',
    )


def _map(metrics) -> float:
  return metrics['mAP']


def _digests(folder: Path) -> dict[str, str]:
  return {
    path.relative_to(folder).as_posix(): hashlib.sha256(
      path.read_bytes()
    ).hexdigest()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def _differences(wanted: dict[str, Tree], saved: dict[str, Any]) -> list[str]:
  """Returns how leaves differ, `name: found, expected`."""

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
