"""The files of a run: their configuration and their completeness.

A run writes `config.json` first, then its secret if it has one, then
`run.json`, then its measurements, and its first checkpoint before it trains. A
run that is killed at any moment therefore leaves no file without the earlier
ones. A work directory in which a file is missing is damaged: it is refused, and
nothing in it is deleted.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flax import traverse_util
from ml_collections import ConfigDict

from fedreid_jax import errors
from fedreid_jax.config import schema
from fedreid_jax.core.options import Mark
from fedreid_jax.method import optimizers
from fedreid_jax.training.files import (
  checkpoint,
  line_file,
  manifests,
  recorder,
)
from fedreid_jax.training.tracking import client_metrics, to_jsonl, trackers

CONFIG, DESCRIBED = 'config.json', 'run.json'
SECRET = 'secret'  # only of runs with draws that must not be guessed
# In the order of writing, which `check` relies on; files of commands other than
# train come last.
WRITTEN = (
  *(CONFIG, SECRET, 'splits-*.json', DESCRIBED),
  *(recorder.METRICS, recorder.QUERIES, recorder.RESULTS),
  client_metrics.FOLDER,
  *trackers.written(tuple(trackers.KINDS)),
  *('evaluation-*.json', 'modality-gap-*.json', 'inversion*.json'),
  *('audit-*.json', 'audit-*.png', 'audit-member-*'),
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
      f'no checkpoint is left of {errors.counted(trained, "round")} that '
      f'{"was" if trained == 1 else "were"} trained',
      str(workdir / manifests.FOLDER),
      AGAIN,
    )
  if (workdir / CONFIG).exists():
    _check_same(workdir / CONFIG, resolved)


def _rounds(workdir: Path) -> int:
  """Returns the last recorded round."""
  lines = line_file.read(workdir / recorder.METRICS, to_jsonl.round_of)
  rounds = [round_ for _, round_ in lines if round_ is not None]
  if (workdir / recorder.RESULTS).exists():
    results = recorder.read_object(workdir / recorder.RESULTS)
    rounds += [n for n in [results.get('rounds')] if isinstance(n, int)]
  return max(rounds, default=0)


def _check_same(path: Path, resolved: Mapping[str, Any]) -> None:
  saved = recorder.read_object(path)
  _check_longer(saved, resolved)
  found: Any = traverse_util.flatten_dict(_settled(saved), sep='.')
  before: dict[str, Any] = dict(found)
  now: Any = traverse_util.flatten_dict(_settled(resolved), sep='.')
  # A run may be resumed with more rounds; `_check_longer` refuses those that
  # would have changed the rounds so far.
  if _goes_on(before.get('rounds'), now['rounds']):
    before['rounds'] = now['rounds']
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


def _check_longer(saved: Mapping[str, Any], resolved: Mapping[str, Any]):
  """Refuses more rounds than before if the rounds so far depended on them."""
  before, now = saved.get('rounds'), resolved['rounds']
  reason = _bound_to_rounds(resolved)
  if not _goes_on(before, now) or not reason:
    return
  remedy = 'choose another --workdir, with start_from to begin with its models'
  if resolved['optim'].get('schedule') == 'step':
    remedy = (
      f'add optim.schedule_rounds={before}, so that the rate of round {before} '
      f'stays, or {remedy}'
    )
  raise errors.ConfigError(
    f'a run of {errors.counted(int(before or 0), "round")} cannot go on to '
    f'{now}: {reason}',
    'rounds',
    remedy,
  )


def _settled(resolved: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a configuration with the rounds of its schedule, if it has any."""
  # A run of 20 rounds is the same as one of 20 rounds with schedule_rounds=20.
  optim = dict(resolved.get('optim') or {})
  if _bound_by_schedule(resolved):
    optim['schedule_rounds'] = resolved['rounds']
  return {**resolved, 'optim': optim}


def _goes_on(before: Any, now: int) -> bool:
  """Returns whether a run is asked for more rounds than before."""
  return isinstance(before, int) and before < now


def _bound_to_rounds(resolved: Mapping[str, Any]) -> str:
  """Returns the reason why more rounds would have changed the rounds so far.

  It is '' if there is none.
  """
  return _bound_by_noise(resolved) or _bound_by_schedule(resolved)


def _bound_by_schedule(resolved: Mapping[str, Any]) -> str:
  optim = ConfigDict(resolved.get('optim') or {})
  return optimizers.bound_to_rounds(optim) if 'schedule' in optim else ''


def _bound_by_noise(resolved: Mapping[str, Any]) -> str:
  found = schema.in_use(ConfigDict(resolved), Mark.PER_RUN)
  why = 'chose the noise for the rounds of the run'
  return f'{found[0]} {why}' if found else ''


def digests(resolved: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the SHA-256 of a configuration, as `config.json` holds it.

  The first digest is saved with checkpoints. The others are accepted, because
  checkpoints of earlier versions have them.
  """
  forms = [resolved]
  # Without the number of rounds, so that a run can be resumed with more of
  # them, unless its noise was chosen for that number.
  if not _bound_by_noise(resolved):
    without_rounds = _settled(resolved)
    del without_rounds['rounds']
    forms = [without_rounds, resolved]
  texts = (json.dumps(form, sort_keys=True) for form in forms)
  return tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)


@contextlib.contextmanager
def checkpoints_of(workdir: Path) -> Iterator[checkpoint.Checkpoints]:
  """Opens the checkpoints of a run for reading.

  Checkpoints of a configuration other than `config.json` do not verify.
  """
  path = workdir / CONFIG
  config = digests(recorder.read_object(path)) if path.exists() else ()
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
  new, foreign = not (workdir / CONFIG).exists(), frozenset[Path]()
  if new:  # its folders are not of a run, such as a user's own wandb/
    foreign = frozenset(path for path in workdir.iterdir() if path.is_dir())
  if restart:
    _clear(workdir, foreign)
    new = True
  try:
    yield
  except BaseException:
    # Without the lock the files belong to another run, and none is deleted.
    with contextlib.suppress(errors.LockedError):
      check_lock()
      if new and not manifests.complete(workdir):
        _clear(workdir, foreign)
    raise


def _clear(workdir: Path, foreign: frozenset[Path]) -> None:
  """Deletes the files of a run in reverse order of writing.

  Args:
    workdir: of the run.
    foreign: folders of trackers that stay.
  """
  shutil.rmtree(workdir / manifests.FOLDER, ignore_errors=True)
  # A killed deletion must not leave a file without the earlier ones.
  for pattern in reversed(WRITTEN):
    # Partial files may have the number of a process.
    names = pattern, f'{pattern}.partial', f'{pattern}.[0-9]*.partial'
    for path in [path for name in names for path in workdir.glob(name)]:
      if path.is_symlink() or not path.is_dir():
        path.unlink()
      elif path not in foreign:
        shutil.rmtree(path)
