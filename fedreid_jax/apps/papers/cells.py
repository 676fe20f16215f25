"""Cells of a sweep: names of their folders, shards and results."""

import functools
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.config import parsing, schema
from fedreid_jax.config.configuration import Config
from fedreid_jax.data.benchmark import prepared
from fedreid_jax.training.files import recorder, run_files, sealed


class Cell(NamedTuple):
  """One run of a sweep."""

  # Row of the table, whose numbers are averages over the cells with this label.
  # These differ in their seeds and trials.
  label: str
  # Validated; `start_from` is the directory of another cell if this one starts
  # from the models of that one.
  config: Config
  workdir: Path  # cells with the same one are one run
  factors: Mapping[str, str]  # values of the varied fields, in columns
  trial: str = ''  # trial of a data set, '' if there are none

  @property
  def row(self) -> str:
    """The label with the trial."""
    return ', '.join(filter(None, (self.label, self.trial)))


def make_cell(
  label: str,
  config: Config,
  folder: Path,
  factors: Mapping[str, str],
  trial: str = '',
) -> Cell:
  """A cell whose work directory is named after its configuration."""
  # Only fields that differ from their defaults, so that a later version with
  # more fields finds finished runs.
  chosen = parsing.changed(schema.identity(config))
  start = Path(config.start_from)
  # The name without its parents, so that runs are found in a copy of the
  # folder.
  if config.start_from and start.parent == folder:
    chosen['start_from'] = start.name
  short = [key.rpartition('.')[2] + value for key, value in factors.items()]
  words = (config.name, *short, trial, f'seed{config.seed}')
  name = folder_name(words, [*chosen.items()])
  return Cell(label, config, folder / name, factors, trial)


@functools.cache
def _unreadable(root: str, spec: str) -> str:
  try:
    prepared.check_readable(root, spec)
  except errors.DataError as error:
    return f'{spec} ({error.what})'
  return ''


def lacking(config: Config) -> str:
  """The first data set of a run that cannot be read with the reason, or ''."""
  data = config.data
  if data.source != 'datasets':
    return ''
  specs = (*data.sources, *data.targets, *filter(None, [data.public]))
  return next(filter(None, (_unreadable(data.root, s) for s in specs)), '')


def folder_name(
  words: Iterable[str], identity: object, length: int = 80
) -> str:
  """The words, cut at a length, and a digest of `repr(identity)`."""
  # Names that are cut or equal differ by their digests.
  name = re.sub(r'[^\w.-]+', '_', '-'.join(filter(None, words)))[:length]
  return f'{name}-{parsing.digest(identity)}'


def take_shard(cells: Sequence[Cell], shard: str) -> list[Cell]:
  """Returns every N-th run from run I, counted from 0, for the shard 'I/N'.

  The shard '' has all runs. Of cells with the same directory the last is kept.

  Raises:
    ConfigError: if `shard` has another form.
  """
  runs = {str(cell.workdir): cell for cell in cells}
  match = re.fullmatch(r'(\d+)/(\d+)', shard or '0/1')
  if not match or int(match[1]) >= int(match[2]):
    raise errors.ConfigError(
      f'{shard!r} is not a shard', '--shard', 'give I/N with I below N'
    )

  # A run that starts from another one is in the shard of that one: another
  # process might not have finished it.
  def first(folder: str) -> str:
    start = runs[folder].config.start_from
    return first(start) if start in runs else folder

  order = list(dict.fromkeys(map(first, runs)))
  taken = {*order[int(match[1]) :: int(match[2])]}
  return [cell for folder, cell in runs.items() if first(folder) in taken]


def results(cell: Cell) -> dict[str, Any] | None:
  """The results of a finished run, None for an unfinished or damaged one."""
  found = results_in(cell.workdir) or {}
  done = found.get('rounds') == cell.config.rounds and 'summary' in found
  return found if done else None


def results_in(folder: Path) -> dict[str, Any] | None:
  """The results in a work directory, None without any.

  Damaged ones are none, with a `DamagedRecordWarning`: training the run again
  restores them, or says why it cannot.
  """
  if not (folder / recorder.RESULTS).exists():
    return None
  try:
    return run_files.results(folder)
  except errors.IntegrityError as error:
    text = f'{error.where} {error.what}; the run counts as not finished'
    warnings.warn(text, errors.DamagedRecordWarning, stacklevel=2)
    return None


def unchecked(cells: Sequence[Cell]) -> list[str]:
  """A line about the runs whose results have no digests, or no line."""
  found = {str(cell.workdir): results(cell) for cell in cells}
  ended = [own for own in found.values() if own]
  without = sum(sealed.FILES not in own for own in ended)
  if not without:
    return []
  runs = errors.counted(len(ended), 'run')
  return [f'note: {without} of {runs}: {sealed.UNCHECKED}']
