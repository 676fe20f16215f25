"""Output of a run: console lines, metrics.jsonl, results.json, queries.npz."""

import io
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich import console, progress, table

from fedreid_jax import errors
from fedreid_jax.evaluation import evaluator

METRICS, RESULTS = 'metrics.jsonl', 'results.json'
QUERIES = 'queries.npz'
# Suffixes of metrics without a column of their own.
APART = ('_std', '_before_neck', '_after_neck')
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def write_text(path: Path, text: str) -> None:
  """Writes a file atomically."""
  write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
  """Writes a file atomically."""
  partial = path.with_name(path.name + '.partial')
  try:
    with errors.on_disk(path):
      partial.write_bytes(content)
      os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
  """Writes a JSON file atomically."""
  write_text(path, json.dumps(value, indent=2, sort_keys=True) + '\n')


def read_object(path: Path, *wanted: str) -> dict[str, Any]:
  """Returns the object in a JSON file of a run.

  Args:
    path: of the file.
    *wanted: required keys.

  Raises:
    IntegrityError: when the file is damaged.
  """
  try:
    value = json.loads(path.read_text())
  except (OSError, ValueError, RecursionError) as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), 'start again with --restart'
    ) from error
  if not isinstance(value, dict):
    raise errors.IntegrityError(
      'is no JSON object', str(path), 'start again with --restart'
    )
  for key in wanted:
    if key not in value:
      raise errors.IntegrityError(
        f'has no {key}', str(path), 'start again with --restart'
      )
  return value


def read_lines(path: Path) -> list[tuple[str, int | None]]:
  """Returns the lines of a metrics.jsonl, none if the file does not exist.

  Returns:
    (line, its round); the round is None for a line that cannot be read. Text
    after the last line end was not completely written and is left out.
  """
  if not path.exists():
    return []
  *lines, _ = path.read_bytes().split(b'\n')
  return [(line.decode(errors='replace'), _round_of(line)) for line in lines]


def _round_of(line: bytes) -> int | None:
  try:
    value = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  round_ = value.get('round') if isinstance(value, dict) else None
  return round_ if type(round_) is int else None


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


class Recorder:
  """Writes the files of a work directory and the lines of the console.

  Only the first process of a run writes.
  """

  def __init__(self, workdir: Path, total_rounds: int, verbose: bool = True):
    """Opens the record of a run in an existing directory.

    Args:
      workdir: of the run.
      total_rounds: of the run.
      verbose: print lines and tables, and show a progress bar.
    """
    self._path = workdir / METRICS
    self._results = workdir / RESULTS
    self._writes = jax.process_index() == 0
    width = None if sys.stdout.isatty() else 140
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

  def __enter__(self):
    self._bar.start()
    return self

  def __exit__(self, *exc):
    self._bar.stop()

  def rewind(self, round_: int) -> None:
    """Drops lines of rounds after `round_`, and lines that cannot be read."""
    self._bar.update(self._task, completed=round_)
    if not self._writes or not self._path.exists():
      return
    kept = []
    for number, (line, found) in enumerate(read_lines(self._path), 1):
      if found is None:
        self.say(f'{self._path.name}: line {number} cannot be read, left out')
      elif found <= round_:
        kept.append(line + '\n')
    write_text(self._path, ''.join(kept))

  def event(self, round_: int, event: str, values: dict[str, Any]) -> None:
    """Appends one JSON object to metrics.jsonl."""
    if self._writes:
      line = {'round': round_, 'event': event} | values
      with errors.on_disk(self._path), self._path.open('a') as file:
        file.write(json.dumps(line) + '\n')

  def results(self, values: dict[str, Any]) -> None:
    """Rewrites results.json."""
    if self._writes:
      write_json(self._results, values)

  def queries(self, per_query: evaluator.PerQuery) -> None:
    """Writes the average precision of every query, 'MODEL/TARGET/TRIAL'."""
    arrays = {
      f'{model}/{target}/{trial}': precision
      for (model, target), trials in per_query.items()
      for trial, precision in enumerate(trials)
    }
    if self._writes:
      file = io.BytesIO()
      np.savez_compressed(file, allow_pickle=False, **arrays)
      write_bytes(self._results.with_name(QUERIES), file.getvalue())

  def say(self, line: str) -> None:
    """Prints a line above the progress bar."""
    self._console.print(line, markup=False, soft_wrap=True)

  def round(self, round_: int, rounds: int, values: dict[str, Any]) -> None:
    """Records and prints one finished round."""
    self.event(round_, 'train', values)
    self._bar.update(self._task, completed=round_)
    losses = '  '.join(
      f'{name} {value:.4g}'
      for name, value in values.items()
      if isinstance(value, float)
      and name not in ('seconds', 'lr')
      and not name.startswith('images_')
    )
    megabytes = (values['bytes_up'] + values['bytes_down']) / 1e6
    self.say(
      f'round {round_:>4}/{rounds}  {values["seconds"]:6.2f} s  '
      f'{values["images_per_second"]:7.0f} images/s  lr {values["lr"]:.4g}  '
      f'{megabytes:.1f} MB  {losses}'
    )
    if 'clusters' in values:
      clusters = (' + '.join(names) for names in values['clusters'].values())
      self.say(f'{"":>6}clusters: {" | ".join(clusters)}')

  def evaluated(self, entry: dict[str, Any]) -> None:
    """Records and prints one evaluation entry."""
    metrics = entry['metrics']
    self.event(entry['round'], 'eval', {**entry, **metrics})
    shown = '  '.join(
      f'{k} {v:.2f}' for k, v in metrics.items() if not k.endswith(APART)
    )
    self.say(f'{"":>6}{entry["target"]} {entry["model"]}: {shown}')

  def table(self, title: str, columns: list[str], rows: list[list[str]]):
    """Prints a table."""
    out = table.Table(title=title, title_justify='left')
    for k, column in enumerate(columns):
      out.add_column(column, justify='left' if k == 0 else 'right')
    for row in rows:
      out.add_row(*row)
    self._console.print(out)

  def evaluations(self, method: str, entries: list[dict[str, Any]]) -> None:
    """Prints evaluation entries as a table, sorted by target."""
    metrics = [m for m in entries[0]['metrics'] if not m.endswith(APART)]
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
    )


def _percent(metrics: dict[str, float], name: str) -> str:
  spread = metrics.get(f'{name}_std')
  return f'{metrics[name]:.2f}' + (f' ± {spread:.2f}' if spread else '')
