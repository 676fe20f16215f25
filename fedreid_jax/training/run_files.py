"""The files of a run: their configuration and their completeness.

A run writes `config.json` first, then `run.json`, then its measurements, and
its first checkpoint before it trains. So at any moment at which it is killed,
each existing file has the earlier ones beside it. A work directory in which a
file is missing was damaged: it is refused, and nothing in it is deleted.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flax import traverse_util

from fedreid_jax import errors
from fedreid_jax.training import checkpoint, manifests, recorder

CONFIG, DESCRIBED = 'config.json', 'run.json'
# In the order of writing; files of commands other than train come last.
WRITTEN = (
  *(CONFIG, 'splits-*.json', DESCRIBED, recorder.METRICS, recorder.QUERIES),
  recorder.RESULTS,
  *('evaluation-*.json', 'inversion.json'),
)
AGAIN = 'restore it from a copy, or start again with --restart'


def check(workdir: Path, resolved: Mapping[str, Any]) -> None:
  """Refuses a work directory of another configuration or with missing files.

  Args:
    workdir: where a run begins or is resumed.
    resolved: its configuration, as `config.json` holds it.

  Raises:
    ConfigError: naming the fields in which the configurations differ.
    IntegrityError: naming the missing file.
  """
  later = [workdir / recorder.METRICS, workdir / recorder.RESULTS]
  later += manifests.files(workdir)
  needed = (workdir / CONFIG, workdir / DESCRIBED)
  for k, path in enumerate(needed):
    if not path.exists() and any(p.exists() for p in (*needed[k:], *later)):
      raise errors.IntegrityError(
        f'{path.name} is missing', str(path.parent), AGAIN
      )
  trained = 0 if manifests.complete(workdir) else _rounds(workdir)
  if trained:
    raise errors.IntegrityError(
      f'no checkpoint is left of {trained} rounds that were trained',
      str(workdir / manifests.FOLDER),
      AGAIN,
    )
  if (workdir / CONFIG).exists():
    _check_same(workdir / CONFIG, resolved)


def _rounds(workdir: Path) -> int:
  """Returns the last recorded round."""
  lines = recorder.read_lines(workdir / recorder.METRICS)
  rounds = [round_ for _, round_ in lines if round_ is not None]
  if (workdir / recorder.RESULTS).exists():
    results = recorder.read_object(workdir / recorder.RESULTS)
    rounds += [n for n in [results.get('rounds')] if isinstance(n, int)]
  return max(rounds, default=0)


def _check_same(path: Path, resolved: Mapping[str, Any]) -> None:
  before = traverse_util.flatten_dict(recorder.read_object(path), sep='.')
  now = traverse_util.flatten_dict(resolved, sep='.')
  missing = sorted(now.keys() - before.keys())
  if missing:
    raise errors.IntegrityError(
      f'{path.name} has no {", ".join(missing[:5])}', str(path.parent), AGAIN
    )
  differ = [
    f'{key}: {before[key]!r} there, {now.get(key)!r} asked'
    for key in sorted(before)
    if before[key] != now.get(key)
  ]
  if differ:
    raise errors.ConfigError(
      'another configuration wrote it: ' + '; '.join(differ[:5]),
      str(path.parent),
      'choose another --workdir or start again with --restart',
    )


def digest(resolved: Mapping[str, Any]) -> str:
  """Returns the SHA-256 of a configuration, as `config.json` holds it."""
  text = json.dumps(resolved, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def checkpoints_of(workdir: Path) -> Iterator[checkpoint.Checkpoints]:
  """Opens the checkpoints of a run for reading.

  Those of another configuration than its `config.json` do not verify.
  """
  path = workdir / CONFIG
  config = digest(recorder.read_object(path)) if path.exists() else None
  saved = checkpoint.Checkpoints(workdir, config, read_only=True)
  with contextlib.closing(saved):
    yield saved


@contextlib.contextmanager
def begun(
  workdir: Path, restart: bool, check_lock: Callable[[], None]
) -> Iterator[None]:
  """Begins a run and deletes its files if it ends before a checkpoint.

  Args:
    workdir: locked by this process.
    restart: whether to delete the files of an earlier run.
    check_lock: raises if the lock is lost and the files belong to another run.
  """
  if restart:
    _clear(workdir)
  new = not (workdir / CONFIG).exists()
  try:
    yield
  except BaseException:
    with contextlib.suppress(errors.LockedError):
      check_lock()
      if new and not manifests.complete(workdir):
        _clear(workdir)
    raise


def _clear(workdir: Path) -> None:
  """Deletes the files of a run in reverse order of writing."""
  shutil.rmtree(workdir / manifests.FOLDER, ignore_errors=True)
  for pattern in reversed(WRITTEN):
    for path in (*workdir.glob(pattern), *workdir.glob(f'{pattern}.partial')):
      path.unlink()
