"""Output of a run: console lines, metrics.jsonl, results.json, queries.npz.

`metrics.jsonl` has a JSON object on each line. Results and reports are made
from it, so that a failure to write it ends the run, unlike that of a tracker.

A line has the names and the metrics of every client of a small cohort. For a
larger cohort it has the numbers of clients and a summary. On request the
metrics of a round are also in `client-metrics/ROUND.npz`: the array `client`
has the names, and every metric is an array of the same length.
"""

import functools
import io
import json
import os
import platform
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from rich import console, progress

from fedreid_jax import errors
from fedreid_jax.config.configuration import ClientMetrics
from fedreid_jax.core import archives
from fedreid_jax.evaluation import evaluator
from fedreid_jax.training import callbacks
from fedreid_jax.training.files import atomic, sealed
from fedreid_jax.training.reports import console_lines, console_table

METRICS, RESULTS, QUERIES = 'metrics.jsonl', 'results.json', 'queries.npz'
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
CLIENTS = 'client-metrics'  # in a work directory
CLIENT = 'client'
CLIENTS_FILE = 'clients_file'  # its digest in the row of the round
# Exceptions of NumPy's reader and of its decoders, and of a missing array.
DAMAGED = (
  *(OSError, ValueError, KeyError, EOFError),
  *(zipfile.BadZipFile, zlib.error),
)
LINES = 16  # clients of a round whose metrics `auto` writes into a line

Form = Literal['lines', 'files', 'summary']


def round_of(line: bytes) -> int | None:
  """Returns the round of a line, None if it is damaged."""
  try:
    value = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  round_ = value.get('round') if isinstance(value, dict) else None
  return round_ if type(round_) is int else None


def write_json(path: Path, value: Any) -> None:
  """Writes a JSON file atomically."""
  atomic.write_text(path, json.dumps(value, indent=2, sort_keys=True) + '\n')


def write_sealed(path: Path, value: Mapping[str, Any]) -> dict[str, Any]:
  """Writes an object with a digest of its own, which it returns."""
  found = sealed.seal(value)
  write_json(path, found)
  return found


def read_object(
  path: Path, *wanted: str, fix: str = 'start again with --restart'
) -> dict[str, Any]:
  """The object in a JSON file of a run, whose digest is verified if it has one.

  Raises:
    IntegrityError: when the file is damaged.
  """
  damaged = functools.partial(errors.IntegrityError, where=str(path), fix=fix)
  try:
    value = json.loads(path.read_text())
  except (OSError, ValueError, RecursionError) as error:
    raise damaged(f'cannot be read: {error}') from error
  if not isinstance(value, dict):
    raise damaged('is no JSON object')
  if not sealed.is_whole(value):
    raise damaged('was changed after it was written: its digest differs')
  for key in wanted:
    if key not in value:
      raise damaged(f'has no {key}')
  return value


def environment() -> dict[str, Any]:
  """Returns versions, devices and commit of this process."""
  try:
    commit = subprocess.run(
      ['git', 'describe', '--always', '--dirty'],
      cwd=Path(__file__).parent,
      capture_output=True,
      text=True,
      check=False,
    ).stdout.strip()
  except OSError:  # no git on this machine
    commit = ''
  return {
    'command': sys.argv,
    'commit': commit or None,
    'devices': [str(d.device_kind) for d in jax.devices()],
    'platform': platform.platform(),
    'processes': jax.process_count(),
    'python': platform.python_version(),
    'versions': {name: metadata.version(name) for name in PACKAGES},
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
  }


class Recorder(callbacks.Callback):
  """Writes files and lines of the console, in the first process of a run."""

  def __init__(self, workdir: Path, total_rounds: int, verbose: int = True):
    """Opens the record.

    With `verbose` it prints lines, tables and a progress bar, with 2 also all
    figures of a round.
    """
    self._all_figures = verbose > 1
    self._lines = workdir / METRICS
    self._results = workdir / RESULTS
    self._writes = jax.process_index() == 0
    self._total = total_rounds
    # Of the rows that this process wrote or kept, whatever is on the disk.
    self._rows = sealed.Growing()
    self._queries: bytes | None = None
    self._kept: bytes | None = None  # rows of an earlier start, to be written
    width = None if sys.stdout.isatty() else errors.WIDTH
    self._console = console.Console(
      quiet=not (self._writes and verbose),
      highlight=False,
      emoji=False,
      width=width,
    )
    self._bar = progress.Progress(
      progress.TextColumn('{task.description}'),
      progress.BarColumn(),
      progress.MofNCompleteColumn(),
      progress.TimeElapsedColumn(),
      progress.TimeRemainingColumn(),
      console=self._console,
      transient=True,
      disable=self._console.quiet or not self._console.is_terminal,
    )
    self._task = self._bar.add_task('rounds', total=total_rounds)
    self._rounds = 0  # that the bar shows

  def __enter__(self):
    self._bar.start()
    return self

  def __exit__(self, *exc):
    self._bar.stop()

  def resume(self, round_: int, copies: Mapping[str, bytes]) -> None:
    """Chooses what stays of the measurements of a run that was resumed.

    `results` may follow and `on_start` must, which writes the files: a run that
    is killed in between leaves a `results.json` that the files agree with.

    Args:
      round_: the checkpoint from which the run continues.
      copies: the files of that checkpoint, {} of an earlier version.
    """
    if not self._writes:
      return
    found = atomic.content(self._lines)
    first = copies.get(METRICS, b'')
    if not found.startswith(first):
      restored = f'{METRICS} was damaged, and its rows until round {round_} are'
      self._restored(self._lines, f'{restored} restored')
      found = first
    rest = found[len(first) :]
    text, broken = atomic.kept(rest, round_, round_of)
    for number in broken:
      number += first.count(b'\n')
      self.say(f'{METRICS}: line {number} cannot be read, left out')
    if METRICS in copies and text:
      # Nobody has checked rows behind those of the checkpoint.
      rows = errors.counted(text.count('\n'), 'row')
      self.say(f'{METRICS}: {rows} behind the checkpoint, left out')
      text = ''
    self._kept = first + text.encode()
    self._rows = sealed.Growing(self._kept)
    if round_ == self._total:
      path = self._results.with_name(QUERIES)
      there = path.read_bytes() if path.exists() else None
      self._queries = copies.get(QUERIES, None if copies else there)
      if self._queries is not None and self._queries != there:
        self._restored(path, f'{QUERIES} was damaged, and is restored')
    try:
      read_object(self._results)
    except errors.IntegrityError as error:
      again = f'{RESULTS} {error.what}; it is written again'
      self._restored(self._results, again)

  def _restored(self, path: Path, what: str) -> None:
    text = f'{what} from a checkpoint ({path.parent})'
    warnings.warn(text, errors.DamagedRecordWarning, stacklevel=3)

  def on_start(self, event: callbacks.Start) -> None:
    """Drops lines of rounds that are computed again, and damaged lines."""
    self._rounds = event.round
    self._bar.update(self._task, completed=event.round)
    rewind_clients(self._results.parent, event.kept)
    if self._kept is None:  # no checkpoint is left of an earlier start
      self._results.unlink(missing_ok=True)
    atomic.write_bytes(self._lines, self._kept or b'')
    queries = self._results.with_name(QUERIES)
    if self._queries is not None:
      atomic.write_bytes(queries, self._queries)
    else:  # those of fewer rounds than the run has now
      queries.unlink(missing_ok=True)

  def event(self, round_: int, event: str, values: Mapping[str, Any]) -> None:
    """Appends one JSON object to metrics.jsonl."""
    if self._writes:
      line = json.dumps({'round': round_, 'event': event, **values}) + '\n'
      atomic.append(self._lines, line)
      self._rows.add(line.encode())

  def files(self) -> dict[str, sealed.File]:
    """Returns the digests of the other files of measurements, by name."""
    if not self._writes:
      return {}
    found = {METRICS: self._rows.describe()}
    if self._queries is not None:
      found[QUERIES] = sealed.described(self._queries)
    return found

  def results(self, values: dict[str, Any]) -> dict[str, Any]:
    """Rewrites results.json, and returns its contents."""
    if not self._writes:
      return values
    return write_sealed(self._results, values | {sealed.FILES: self.files()})

  def queries(self, per_query: evaluator.PerQuery) -> None:
    """Writes the average precision of every query, 'MODEL/TARGET/TRIAL'."""
    arrays = {
      f'{model}/{target}/{trial}': precision
      for (model, target), trials in per_query.items()
      for trial, precision in enumerate(trials)
    }
    if self._writes:
      path = self._results.with_name(QUERIES)
      self._queries = write_arrays(path, arrays)

  def say(self, line: str) -> None:
    """Prints a line above the progress bar."""
    text = errors.folded(line, self._console.width)
    self._console.print(text, markup=False, soft_wrap=True)

  def phase(self, line: str) -> None:
    """Prints the phase that begins; a progress bar in a terminal times it."""
    self.say(line)
    short = line.partition(':')[0]
    self._bar.reset(self._task, description=short, completed=self._rounds)

  def on_round(self, event: callbacks.Round) -> None:
    """Records and prints one finished round."""
    values = event.metrics
    own: dict[str, Any] = {}
    if event.form == 'files':
      file = write_clients(self._results.parent, event.round, event.clients)
      own = {CLIENTS_FILE: sealed.described(file)}
    if event.form == 'lines':
      own = {'by_client': event.clients}
    self.event(event.round, 'train', {**values, **own})
    self._rounds = event.round
    # Without a refresh the line below is printed above the bar as it was.
    self._bar.update(
      self._task, description='rounds', completed=event.round, refresh=True
    )
    for line in console_lines.of_round(event, self._all_figures):
      self.say(line)

  def on_evaluation(self, event: callbacks.Evaluation) -> None:
    """Records and prints the entries of an evaluation."""
    for entry in event.entries:
      self.event(event.round, 'eval', {**entry, **entry['metrics']})
    for line in console_lines.of_evaluation(event.entries):
      self.say(line)

  def table(
    self,
    title: str,
    columns: list[str],
    rows: list[list[str]],
    facts: Collection[str] = (),
    caption: Sequence[str] = (),
  ) -> None:
    """Prints a table; see `console_table.show` for the arguments."""
    console_table.show(self._console, title, columns, rows, facts, caption)

  def evaluations(
    self,
    method: str,
    entries: list[dict[str, Any]],
    caption: Sequence[str] = (),
  ) -> None:
    """Prints evaluation entries as a table, sorted by target."""
    entries = console_lines.few(entries)
    # An evaluator may have metrics for only some of the targets.
    names = dict.fromkeys(name for e in entries for name in e['metrics'])
    metrics = [name for name in names if not name.endswith(console_lines.APART)]
    fields = ('target', 'protocol', 'direction', 'model', 'round')
    counts = ('queries', 'gallery', 'invalid_queries')
    distance = entries[0]['distance']
    kind = f'targets, %, {distance} distance' if distance else 'images, %'
    self.table(
      f'{method}: unseen {kind}',
      [*fields, *metrics, 'queries', 'gallery', 'invalid'],
      [
        [str(e[f]) for f in fields]
        + [_percent(e['metrics'], m) for m in metrics]
        + [str(e[c]) for c in counts]
        for e in sorted(entries, key=lambda e: e['target'])
      ],
      ('protocol', 'direction', 'queries', 'gallery', 'invalid'),
      caption,
    )
    rules = {e['target']: e['query'] for e in entries if e.get('query')}
    if len({*rules.values()}) == 1:
      rules = {'': rules.popitem()[1]}
    for target, rule in sorted(rules.items()):
      self.say(f'query{target and f" of {target}"}: {rule}')


def _percent(metrics: dict[str, float], name: str) -> str:
  if name not in metrics:
    return ''
  spread = metrics.get(f'{name}_std')
  return f'{metrics[name]:.2f}' + (f' ± {spread:.2f}' if spread else '')


def client_form(rule: ClientMetrics, clients: int) -> Form:
  """Returns where the metrics of the clients of a round are written."""
  # The size of a line must not grow with the cohort.
  if rule == 'auto':
    return 'summary' if clients > LINES else 'lines'
  return rule


def over_clients(
  clients: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, float]]:
  """Returns the minimum, median and maximum of each metric over the clients."""
  return {
    metric: {
      name: float(over([x[metric] for x in clients.values() if metric in x]))
      for name, over in (('min', min), ('median', np.median), ('max', max))
    }
    for metric in _metrics(clients)
  }


def _metrics(clients: Mapping[str, Mapping[str, float]]) -> list[str]:
  # Clients without labels have fewer.
  return [*dict.fromkeys(name for found in clients.values() for name in found)]


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> bytes:
  """Writes a file of NumPy arrays atomically, and returns its content."""
  file = io.BytesIO()
  np.savez_compressed(file, allow_pickle=False, **arrays)
  atomic.write_bytes(path, file.getvalue())
  return file.getvalue()


def read_arrays(
  path: Path,
  *wanted: str,
  digest: sealed.File | None = None,
  fix: str = sealed.RESTORE,
) -> dict[str, np.ndarray]:
  """The arrays in a file, of which the digest is verified if it is given.

  Raises:
    IntegrityError: when the file is damaged, or lacks an array.
  """
  if digest is not None:
    sealed.whole(path, digest, fix)
  try:
    saved = archives.read_npz(path)
    return {name: saved[name] for name in (*wanted, *saved)}
  except DAMAGED as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), 'restore it from a copy'
    ) from error


def write_clients(
  workdir: Path, round_: int, clients: Mapping[str, Mapping[str, float]]
) -> bytes:
  """Writes the metrics of the clients of a round, NaN where one has none.

  Returns the content of the file.
  """
  arrays: dict[str, np.ndarray] = {
    metric: np.array([x.get(metric, np.nan) for x in clients.values()])
    for metric in _metrics(clients)
  }
  arrays[CLIENT] = np.array([*clients], np.str_)
  folder = workdir / CLIENTS
  with errors.on_disk(folder):
    folder.mkdir(exist_ok=True)
  return write_arrays(folder / f'{round_}.npz', arrays)


def rewind_clients(workdir: Path, round_: int) -> None:
  """Deletes the files of rounds after `round_`, which are computed again."""
  for path in (workdir / CLIENTS).glob('*.npz'):
    if path.stem.isdigit() and int(path.stem) > round_:
      path.unlink()


def read_clients(
  workdir: Path, round_: int, digest: sealed.File | None = None
) -> dict[str, dict[str, float]]:
  """The metrics of the clients of a round, {} if there is no file.

  Raises:
    IntegrityError: when the file is damaged, or missing despite a digest.
  """
  path = workdir / CLIENTS / f'{round_}.npz'
  if digest is None and not path.exists():
    return {}
  # Checkpoints have no copies of these files.
  fix = 'restore it from a copy, or begin the run again with --restart'
  found = read_arrays(path, CLIENT, digest=digest, fix=fix)
  columns = {k: v.tolist() for k, v in found.items()}
  return {
    name: {
      metric: values[k]
      for metric, values in columns.items()
      if values[k] == values[k]  # not NaN
    }
    for k, name in enumerate(columns.pop(CLIENT))
  }
