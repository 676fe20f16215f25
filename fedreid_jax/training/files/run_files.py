"""The work directory of a run: its lock, its files and their completeness.

A run writes `config.json` first, then its secret if it has one, then
`run.json`, then its measurements, and its first checkpoint before it trains. A
run that is killed at any moment therefore leaves no file without the earlier
ones. A work directory in which a file is missing is damaged: it is refused, and
nothing in it is deleted.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from fedreid_jax import errors
from fedreid_jax.config import load, schema
from fedreid_jax.config.configuration import Config
from fedreid_jax.core.options import Mark
from fedreid_jax.method import optimizers
from fedreid_jax.training import trackers
from fedreid_jax.training.files import (
  atomic,
  checkpoint,
  recorder,
  sealed,
  steps,
)

CONFIG, DESCRIBED = 'config.json', 'run.json'
CONFIG_DIGEST = 'config_sha256'  # in results.json
FROZEN = 'frozen.safetensors'  # only of runs with `training.whole_network`
SECRET = 'secret'  # only of runs with draws that must not be guessed
# In the order of writing, which `check` relies on; files of commands other than
# train come last.
WRITTEN = (
  *(CONFIG, SECRET, 'splits-*.json', DESCRIBED),
  *(recorder.METRICS, recorder.QUERIES, recorder.RESULTS),
  *(recorder.CLIENTS, FROZEN),
  *trackers.written(tuple(trackers.KINDS)),
  *('evaluation-*.json', 'modality-gap-*.json', 'inversion*.json'),
  *('audit-*.json', 'audit-*.png', 'audit-member-*'),
)
AGAIN = 'restore it from a copy, or start again with --restart'


class Lock(contextlib.ExitStack):
  """A locked work directory, until it is closed or the process ends.

  The lock is on the folder itself, or on a file in it where folders cannot be
  locked. The package filelock cannot replace this class: it locks files only,
  and does not check that the locked file is still at its path. Empty folders
  that were made for the lock are removed.
  """

  def __init__(self, workdir: Path):
    """Creates and locks a work directory.

    Raises:
      ResourceError: when the directory cannot be created or written.
      LockedError: when another process holds the lock.
    """
    super().__init__()
    made = [p for p in (workdir, *workdir.parents) if not p.exists()]
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      self.callback(_remove_empty, made, os.stat(workdir))
      if not os.access(workdir, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
      # A lock file could be deleted by hand, and a second run would lock a new
      # one. It is used only where folders cannot be locked, as on NFS.
      if not self._take(workdir, os.O_RDONLY):
        self._take(workdir / '.lock', os.O_RDWR | os.O_CREAT)
        self.callback(self._path.unlink, missing_ok=True)
    except BlockingIOError as error:
      self.close()
      raise errors.LockedError(
        'another run is using it',
        str(workdir),
        'wait, or choose another --workdir',
      ) from error
    except OSError as error:
      self.close()
      raise errors.ResourceError(
        f'cannot write: {error.strerror}',
        str(workdir),
        'choose another --workdir',
      ) from error

  def _take(self, path: Path, how: int) -> bool:
    """Returns False if folders cannot be locked."""
    file = os.open(path, how, 0o644)
    self.callback(os.close, file)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      # Any other error of a folder means that its file system cannot lock it.
      if isinstance(error, BlockingIOError) or not path.is_dir():
        raise
      return False
    self._path, self._file = path, file
    return True

  def check(self) -> None:
    """Checks that another process would find this lock at the path.

    Raises:
      LockedError: when the folder was moved, deleted or replaced.
    """
    try:
      there = os.path.samestat(os.stat(self._path), os.fstat(self._file))
    except FileNotFoundError:
      there = False
    if not there:
      raise errors.LockedError(
        'it was moved, deleted or replaced during this run',
        str(self._path),
        'end every run that uses it, then start one of them again',
      )


def _remove_empty(made: list[Path], before: os.stat_result) -> None:
  """Removes empty folders, the innermost first, whose state was `before`."""
  # Another folder at the path is of another run, and one that is not empty ends
  # the loop by an error.
  with contextlib.suppress(OSError):
    if made and os.path.samestat(os.stat(made[0]), before):
      for folder in made:
        folder.rmdir()


def check(
  workdir: Path, resolved: Mapping[str, Any], private: bool = False
) -> None:
  """Refuses a work directory of another configuration or with missing files.

  `private` is whether the method has a guarantee of privacy.

  Raises:
    ConfigError: naming the fields in which the configurations differ.
    IntegrityError: naming the missing file.
  """
  later = [workdir / recorder.METRICS, workdir / recorder.RESULTS]
  later += steps.files(workdir)
  needed = (workdir / CONFIG, workdir / DESCRIBED)
  for k, path in enumerate(needed):
    if not path.exists() and any(p.exists() for p in (*needed[k:], *later)):
      raise errors.IntegrityError(
        f'{path.name} is missing', str(path.parent), AGAIN
      )
  trained = 0 if steps.complete(workdir) else _rounds(workdir)
  if trained:
    raise errors.IntegrityError(
      f'no checkpoint is left of {errors.counted(trained, "round")} that '
      f'{"was" if trained == 1 else "were"} trained',
      str(workdir / steps.FOLDER),
      AGAIN,
    )
  if (workdir / CONFIG).exists():
    _check_same(workdir / CONFIG, resolved, private)


def _rounds(workdir: Path) -> int:
  """The last recorded round."""
  path = workdir / recorder.METRICS
  content = atomic.content(path)
  lines = atomic.lines(content, recorder.round_of)
  rounds = [round_ for _, round_ in lines if round_ is not None]
  if (workdir / recorder.RESULTS).exists():
    results = recorder.read_object(workdir / recorder.RESULTS)
    rounds += [n for n in [results.get('rounds')] if isinstance(n, int)]
  return max(rounds, default=0)


def _check_same(path: Path, resolved: Mapping[str, Any], private: bool) -> None:
  with _readable(path) as saved:
    _check_longer(saved, resolved, private)
    found: Any = traverse_util.flatten_dict(_settled(saved), sep='.')
  before: dict[str, Any] = dict(found)
  now: Any = traverse_util.flatten_dict(_settled(resolved), sep='.')
  # Only one of both may have them.
  for name, value in schema.later().items():
    usual = [*value] if isinstance(value, tuple) else value
    before.setdefault(name, usual)
    now.setdefault(name, usual)
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


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[dict[str, Any]]:
  """Yields a saved configuration; any error is that of a damaged file."""
  saved = recorder.read_object(path)
  try:
    yield saved
  except errors.FedReIDError:
    raise
  except Exception as error:  # a field may have a value of any JSON type
    raise errors.IntegrityError(
      f'is damaged: {type(error).__name__}: {error}', str(path), AGAIN
    ) from error


def _check_longer(
  saved: Mapping[str, Any], resolved: Mapping[str, Any], private: bool
) -> None:
  """Refuses more rounds than before if the rounds so far depended on them."""
  before, now = saved.get('rounds'), resolved['rounds']
  noise = _bound_by_noise(resolved)
  reason = noise or _bound_by_schedule(resolved)
  if not _goes_on(before, now) or not reason:
    return
  remedy = 'choose another --workdir, with start_from to begin with its models'
  if private:  # which may not start from trained models
    remedy = 'choose another --workdir, which trains all rounds anew'
  # Another schedule does not change the noise.
  if resolved['optim'].get('schedule') == 'step' and not noise:
    remedy = (
      f'add optim.schedule_rounds={before}, with which the rounds so far keep '
      f'their rates{_rate_after(resolved, int(before or 0))}, or {remedy}'
    )
  raise errors.ConfigError(
    f'a run of {errors.counted(int(before or 0), "round")} cannot go on to '
    f'{now}: {reason}',
    'rounds',
    remedy,
  )


def _rate_after(resolved: Mapping[str, Any], before: int) -> str:
  """Says how the rate goes on with a schedule of the rounds before."""
  optim = schema.default().optim
  optim.update({**resolved['optim'], 'schedule_rounds': before})
  rate = optimizers.schedule(optim, before)
  rates = np.asarray(rate(np.arange(before - 1, resolved['rounds'])))
  changed = np.flatnonzero(rates != rates[0])
  if not len(changed):
    return f' and the rate of round {before} stays'
  first = int(changed[0])
  return f' and the rate becomes {rates[first]:g} in round {before + first}'


def _goes_on(before: Any, now: int) -> bool:
  """Whether a run is asked for more rounds than before."""
  return isinstance(before, int) and before < now


def _settled(resolved: Mapping[str, Any]) -> dict[str, Any]:
  """A configuration with the rounds of its schedule, if it has any."""
  # A run of 20 rounds is the same as one of 20 rounds with schedule_rounds=20.
  optim = dict(resolved.get('optim') or {})
  if _bound_by_schedule(resolved):
    optim['schedule_rounds'] = resolved['rounds']
  return {**resolved, 'optim': optim}


def _bound_by_schedule(resolved: Mapping[str, Any]) -> str:
  """Why more rounds would have changed the rounds so far, or ''."""
  saved = resolved.get('optim') or {}
  if 'schedule' not in saved:
    return ''
  optim = optimizers.Optim(
    schedule=saved['schedule'],
    # The configuration of a run of an earlier version may lack these.
    milestones=saved.get('milestones', optimizers.Optim.milestones),
    schedule_rounds=saved.get('schedule_rounds', 0),
  )
  return optimizers.bound_to_rounds(optim)


def _bound_by_noise(resolved: Mapping[str, Any]) -> str:
  found = schema.in_use(ConfigDict(resolved), Mark.PER_RUN)
  why = 'chose the noise for the rounds of the run'
  return f'{found[0]} {why}' if found else ''


def digests(resolved: Mapping[str, Any]) -> tuple[str, ...]:
  """The SHA-256 of a configuration, as `config.json` holds it.

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


def _digests_in(path: Path) -> tuple[str, ...]:
  with _readable(path) as saved:
    load.check_plug_ins(saved, path)
    return digests(saved)


def checkpoints_of(workdir: Path) -> checkpoint.Checkpoints:
  """Returns the checkpoints of a run.

  Checkpoints of a configuration other than `config.json` do not verify.
  """
  path, config = workdir / CONFIG, ()
  if path.exists():
    config = _digests_in(path)
  return checkpoint.Checkpoints(workdir, config)


@contextlib.contextmanager
def begun(
  workdir: Path, restart: bool, check_lock: Callable[[], None]
) -> Iterator[None]:
  """Begins a run and deletes its files if it ends before a checkpoint."""
  new, foreign = not (workdir / CONFIG).exists(), frozenset[Path]()
  if new:  # its folders are not of a run, such as a user's own wandb/
    foreign = frozenset(path for path in workdir.iterdir() if path.is_dir())
  if restart:
    _clear(workdir, foreign)
    new = True
  for path in workdir.glob('*.partial'):
    if atomic.is_left(path):
      path.unlink(missing_ok=True)
  try:
    yield
  except BaseException:
    # Without the lock the files belong to another run, and none is deleted.
    with contextlib.suppress(errors.LockedError):
      check_lock()
      if new and not steps.complete(workdir):
        _clear(workdir, foreign)
    raise


def _clear(workdir: Path, foreign: frozenset[Path]) -> None:
  """Deletes the files of a run, except `foreign` folders of trackers."""
  shutil.rmtree(workdir / steps.FOLDER, ignore_errors=True)
  # In reverse order of writing: a killed deletion must not leave a file without
  # the earlier ones.
  for pattern in reversed(WRITTEN):
    # Partial files may have the number of a process.
    names = pattern, f'{pattern}.partial', f'{pattern}.[0-9]*.partial'
    for path in [path for name in names for path in workdir.glob(name)]:
      if path.is_symlink() or not path.is_dir():
        path.unlink()
      elif path not in foreign:
        shutil.rmtree(path)


class Recorded(NamedTuple):
  """The contents of the files of a run.

  `precision` is the average precision of every query of the last evaluation, in
  [0, 1] and NaN without a match, by 'MODEL/TARGET/TRIAL'; an unfinished run has
  none. `rounds` are those of metrics.jsonl, in order, with the metrics of
  clients that are in `client-metrics/`. `unchecked` says which of them have no
  digest, '' if all have one.
  """

  folder: Path
  config: Config
  results: dict[str, Any]  # of results.json
  described: dict[str, Any]  # of run.json
  rounds: list[dict[str, Any]]
  precision: dict[str, np.ndarray]
  unchecked: str = ''


def results(folder: Path, *wanted: str) -> dict[str, Any]:
  """The content of results.json, if all files that it names are whole.

  Raises:
    IntegrityError: if it is missing, or one of the files is damaged.
  """
  path = folder / recorder.RESULTS
  found = recorder.read_object(path, *wanted, fix=sealed.RESTORE)
  for name, digest in found.get(sealed.FILES, {}).items():
    sealed.whole(folder / name, digest)
  if CONFIG_DIGEST in found:
    if found[CONFIG_DIGEST] not in _digests_in(folder / CONFIG):
      raise errors.IntegrityError(
        'was changed after the run began: its digest differs',
        str(folder / CONFIG),
        AGAIN,
      )
  return found


def precision(folder: Path, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The average precision of the queries of a run with these results.

  An unfinished run, and one that ranked no queries, has none.

  Raises:
    IntegrityError: if the file is damaged.
  """
  path = folder / recorder.QUERIES
  if sealed.FILES not in found:  # of an earlier version
    return recorder.read_arrays(path) if path.exists() else {}
  digest = found[sealed.FILES].get(recorder.QUERIES)
  return recorder.read_arrays(path, digest=digest) if digest else {}


def read(folder: Path) -> Recorded:
  """Reads the files of a run, finished or not.

  Raises:
    IntegrityError: if there is no run, or a file is damaged.
  """
  config = load.load_saved(folder)
  found = results(folder, 'evaluation')
  described = recorder.read_object(folder / DESCRIBED)
  path = folder / recorder.METRICS
  content = atomic.content(path)
  rows = _rounds_of(content)
  rounds = [line for line in rows if line.get('event') == 'train']
  for line in rounds:
    digest = line.pop(recorder.CLIENTS_FILE, None)
    if clients := recorder.read_clients(folder, line['round'], digest):
      line['by_client'] = clients
  own = precision(folder, found)
  unchecked = _unchecked(found, content)
  return Recorded(folder, config, found, described, rounds, own, unchecked)


def _unchecked(found: Mapping[str, Any], content: bytes) -> str:
  if sealed.FILES not in found:
    return sealed.UNCHECKED
  size = found[sealed.FILES][recorder.METRICS]['bytes']
  later = [row['round'] for row in _rounds_of(content[size:])]
  if not later:
    return ''
  return (
    f'the rows of {recorder.METRICS} from round {later[0]} are later than the '
    'last digest and are not checked'
  )


def _rounds_of(content: bytes) -> list[dict[str, Any]]:
  found = atomic.lines(content, recorder.round_of)
  return [json.loads(line) for line, round_ in found if round_ is not None]
