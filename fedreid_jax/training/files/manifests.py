"""Manifests of checkpoints: the SHA-256 of every file of a step.

`manifest-STEP.json` is written after the step, so that a step without a
manifest is incomplete. A step does not verify if one of its files differs, or
if it belongs to another step or configuration.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreid_jax.training.clients import client_files

FOLDER = 'checkpoints'  # in a work directory


def clients(workdir: Path) -> Path:
  """Returns the folder of the files of the clients' states."""
  return workdir / FOLDER / client_files.FOLDER


def files(workdir: Path) -> list[Path]:
  """Returns the folders of steps, complete or not, and their manifests."""
  return [*(workdir / FOLDER).glob('[0-9]*'), *complete(workdir)]


def complete(workdir: Path) -> list[Path]:
  """Returns the manifests of the steps that were saved completely."""
  return [*(workdir / FOLDER).glob('manifest-*.json')]


def path(root: Path, step: int) -> Path:
  """Returns the manifest of a step in a folder of checkpoints."""
  return root / f'manifest-{step}.json'


def described(root: Path, step: int) -> dict[str, Any]:
  """Returns the JSON part of a step: its number, configuration and run."""
  found = json.loads((root / str(step) / 'host/metadata').read_text())
  # A step of version 0.1 has only the part of the run. Its models can be
  # restored, but the run cannot be resumed.
  if 'run' not in found:
    found = {'step': step, 'config': None, 'run': found}
  run = found['run']
  if 'world' in run:  # the name of the source until version 0.2
    run['source'] = run.pop('world')
  return found


def digests(folder: Path) -> dict[str, str]:
  """Returns the SHA-256 of the files in a folder by their paths."""
  return {
    path.relative_to(folder).as_posix(): hashlib.sha256(
      path.read_bytes()
    ).hexdigest()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def verify(root: Path, step: int, config: Sequence[str]) -> str | None:
  """Returns the first problem of a step, None if there is none.

  Args:
    root: folder of checkpoints.
    step: number of the step.
    config: digests of the configuration, none for any.
  """
  folder = root / str(step)
  try:
    expected = json.loads(path(root, step).read_text())
  except FileNotFoundError:
    return f'{path(root, step).name} is missing, so that it is not complete'
  except (OSError, ValueError):
    expected = None
  if not isinstance(expected, dict):
    return f'{path(root, step).name} is damaged'
  found = digests(folder)
  for name in sorted(expected.keys() | found.keys()):
    if name not in found:
      return f'{name} is missing, or {path(root, step).name} was changed'
    if found[name] != expected.get(name):
      return f'{name} was changed, or {path(root, step).name} was'
  content = described(root, step)
  if content.get('step') != step:
    return f'it is step {content.get("step")}, renamed'
  own = content.get('config')  # None of a step of version 0.1
  if config and own is not None and own not in config:
    return 'it is of another configuration'
  return _verify_rows(root, content)


def _verify_rows(root: Path, content: dict[str, Any]) -> str | None:
  """Returns the first problem of the files that a step names."""
  # Only names and sizes: the content of a row is verified when it is read.
  for name, size in content.get('rows', {}).get('segments', {}).items():
    path = root / client_files.FOLDER / name
    if not path.is_file():
      return f'{client_files.FOLDER}/{name} is missing'
    if path.stat().st_size != size:
      return f'{client_files.FOLDER}/{name} has another size'
  return None


def segments(root: Path, step: int) -> set[int]:
  """Returns the files of clients' states that a step names, by number."""
  try:
    rows = described(root, step).get('rows', {})
  except (OSError, ValueError):  # it does not verify
    return set()
  return {client_files.number(Path(name)) for name in rows.get('segments', {})}
