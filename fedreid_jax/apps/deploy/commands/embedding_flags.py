"""Common parts of `embed` and `search`: flags, the model, a progress bar."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import model_flags
from fedreid_jax.data.datasets.records import MODALITIES

if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.vectors import Folder, Vectors
  from fedreid_jax.training.snapshot import Snapshot

flags.adopt_module_key_flags(model_flags)
_BATCH = flags.DEFINE_integer(
  'batch', None, 'Images of a step (default: evaluation.batch).', 1
)
_SKIP = flags.DEFINE_bool(
  'skip_unreadable', False, 'Leave out images that cannot be read.'
)
_MODALITY = flags.DEFINE_enum(
  'modality',
  None,
  list(MODALITIES),
  'Modality of the images in the folder; models with modality-specific stages '
  'need it.',
)

SHOWN = 20  # names of unreadable files in a message


def say_model(model: 'Snapshot') -> None:
  """Prints the model, and a note if its evaluation had other moments."""
  print(errors.printable(f'model: {model.title}'))
  for note in model.notes:
    print(errors.folded(errors.printable(f'note: {note}')))
  given = model.config.evaluation
  if given.batch_stats != 'running':
    line = (
      'note: the evaluation of this run re-estimates the moments of batch '
      f'normalisation (evaluation.batch_stats={given.batch_stats}); embeddings '
      'use the running moments'
    )
    print(errors.folded(line))
  if given.camera_norm:
    line = (
      'note: the evaluation of this run normalises features by camera '
      '(evaluation.camera_norm); embeddings are not normalised'
    )
    print(errors.folded(line))


def modality(
  model: 'Snapshot', flag: flags.FlagHolder[str | None] = _MODALITY
) -> int | None:
  """The modality that a flag gives, 0 visible and 1 infrared.

  Raises:
    ConfigError: when the model needs a modality and none is given.
  """
  if flag.value is not None:
    return MODALITIES.index(flag.value)
  if model.has_modalities:
    raise errors.ConfigError(
      'the model has separate stages for visible and infrared images',
      'command line',
      f'give --{flag.name}={"|".join(MODALITIES)}',
    )
  return None


def folder(root: str, where: str, more: tuple[str, ...] = ()) -> 'Folder':
  """Lists the images of a folder and prints how many files are skipped.

  Files whose names end in one of `more` are listed as well.
  """
  from fedreid_jax.apps.deploy import vectors, video
  from fedreid_jax.data import files, heic

  found = vectors.folder_of(root, where, _SKIP.value, more)
  used = [*found.names, *(name for name, _ in found.left_out)]
  photographs, others = heic.split(files.list_others(found.root, used))
  videos, others = video.split(others)
  skipped = [heic.skipped(photographs)] if photographs else []
  for line in [*skipped, *([video.skipped(videos)] if videos else [])]:
    print(errors.printable(f'note: {line}'), file=sys.stderr)
  if aside := files.set_aside(found.root):
    print(f'note: {aside}', file=sys.stderr)
  if others:
    print(
      'note: skipped files whose names do not end as those of images: '
      f'{files.kinds(others)}',
      file=sys.stderr,
    )
  return found


def skips() -> bool:
  """Whether images that cannot be read are left out."""
  return _SKIP.value


@contextlib.contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
  """Shows a bar, and gives a function for the number of further files."""
  from rich import console, progress

  # The bar is for terminals only: a log would get a line per update.
  screen = console.Console(stderr=True)
  bar = progress.Progress(
    progress.TextColumn('{task.description}'),
    progress.BarColumn(),
    progress.MofNCompleteColumn(),
    progress.TimeElapsedColumn(),
    progress.TimeRemainingColumn(),
    console=screen,
    transient=True,
    disable=not screen.is_terminal,
  )
  with bar:
    task = bar.add_task(what, total=total)
    yield lambda more: bar.advance(task, more)


def write(
  model: 'Snapshot',
  images: 'Folder',
  out: Path,
  detected: dict[str, Any] | None = None,
  times: Mapping[str, float] = MappingProxyType({}),
) -> 'Vectors':
  """Writes the vectors of a folder and shows a progress bar.

  `detected` describes photographs of which the images are crops, and `times`
  has seconds of those from videos.

  Raises:
    DataError: for an image that cannot be read, without --skip_unreadable.
  """
  from fedreid_jax.apps.deploy import vectors

  kind = modality(model)
  number = errors.counted(len(images.names), 'image')
  print(f'embedding {number} of {images.root}', flush=True)
  with progress_bar('embedding', len(images.names)) as advance:
    try:
      found = vectors.write(
        model,
        images,
        out,
        modality=kind,
        batch=_BATCH.value,
        skip=_SKIP.value,
        advance=advance,
        detected=detected,
        times=times,
      )
    except errors.DataError as error:
      raise _explained(error) from error
  _say_left_out(found.folder.left_out, str(found.folder.root))
  return found


def queries(
  model: 'Snapshot', paths: list[Path], kind: int | None
) -> tuple[list[Path], np.ndarray]:
  """The queries that can be read, and their vectors.

  Raises:
    DataError: if none can be read, or one without --skip_unreadable.
  """
  left_out: list[tuple[str, str]] = []

  def skip(position: int, reason: str) -> None:
    left_out.append((str(paths[position]), reason))

  parts = model.embed_files(
    paths,
    None if kind is None else [kind] * len(paths),
    _BATCH.value,
    skip if _SKIP.value else None,
  )
  try:
    found = [*parts]
  except errors.DataError as error:
    raise _explained(error) from error
  _say_left_out(left_out, 'the queries')
  if not found:
    raise errors.DataError('no query can be read', '--query', 'give an image')
  rows = np.concatenate([rows for rows, _ in found])
  vectors = np.concatenate([vectors for _, vectors in found])
  return [paths[row] for row in rows], vectors


def _explained(error: errors.DataError) -> errors.DataError:
  """Names in an error the flag that leaves out unreadable files."""
  if _SKIP.value:
    return error
  remedy = 'repair or remove it, or leave such files out: --skip_unreadable'
  return errors.DataError(error.what, error.where, remedy)


def _say_left_out(left_out: list[tuple[str, str]], of: str) -> None:
  if not left_out:
    return
  names = [f'{name} ({why})' for name, why in left_out[:SHOWN]]
  if len(left_out) > SHOWN:
    names.append('...')
  line = f'{errors.counted(len(left_out), "file")} of {of} left out'
  print(errors.printable(f'note: {line}: {"; ".join(names)}'), file=sys.stderr)
