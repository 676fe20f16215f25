"""Vectors of a folder of images, in three files that belong together.

`NAME.npy` holds the vectors, float32 `[n, D]`, in the order of the file names,
which a CSV file lists (`csv_of`). `NAME.json` describes both and the model that
computed them. It is deleted first and written last: if it exists, the other two
are as it says.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.deploy import video
from fedreid_jax.data import files, heic, tracklets
from fedreid_jax.training import snapshot
from fedreid_jax.training.files import atomic, recorder
from fedreid_jax.training.snapshot import Snapshot
from fedreid_jax.version import __version__

HEADER = ('index', 'path')
TIME = 'time'  # a further column for frames of videos: seconds, or nothing
# Fields of the JSON file, and those of its model.
DESCRIBED = {
  *('vectors', 'width', 'sample', 'metric', 'modality', 'model', 'images'),
  *('left_out', 'fedreid_jax'),
}
MODEL = {'digest', 'recipe', 'name', 'round'}
AGAIN = 'make the files again with `fedreid embed`'
_COMPARED = 64  # rows whose hash shows that a file was replaced by another one


class Folder(NamedTuple):
  """The image files of a folder."""

  root: Path  # absolute
  names: list[str]  # paths of the images relative to it, sorted
  left_out: files.Bad  # names that cannot be used, and the reasons


class Vectors(NamedTuple):
  """Vectors of a folder of images."""

  rows: np.ndarray  # float32 `[n, D]`, memory-mapped
  folder: Folder  # the images; `left_out` has those without a vector
  described: dict[str, Any]  # content of the JSON file
  times: dict[str, float]  # of images from videos, seconds by name


def of_tracklets(stored: Vectors) -> Vectors:
  """Replaces the images of each folder, frames of a tracklet, by their mean.

  The first image of a folder stands for it.
  """
  rows, first = means_by_folder(stored.rows, stored.folder.names)
  names = [stored.folder.names[row] for row in first]
  times = {name: stored.times[name] for name in names if name in stored.times}
  described = stored.described | {'vectors': len(rows)}
  return Vectors(rows, stored.folder._replace(names=names), described, times)


def means_by_folder(
  rows: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, list[int]]:
  """Means of the vectors of each folder, and the rows of its first image."""
  numbers: dict[str, int] = {}
  folders = [name.rpartition('/')[0] for name in names]
  owner = np.array([numbers.setdefault(f, len(numbers)) for f in folders])
  first = np.unique(owner, return_index=True)[1]
  return tracklets.pooled(np.asarray(rows), owner)[first], first.tolist()


def csv_of(path: Path) -> Path:
  """Returns `paths.csv` for `vectors.npy`, `A-paths.csv` for `A.npy`."""
  own = '' if path.stem == 'vectors' else f'{path.stem}-'
  return path.with_name(f'{own}paths.csv')


def read(path: Path) -> Vectors:
  """Opens files that `write` wrote.

  Raises:
    DataError: when there is no such file.
    IntegrityError: for a file that is missing, changed, or of another set.
  """
  if not path.is_file():
    raise errors.DataError(
      'no such file', str(path), 'give a .npy file or a folder of images'
    )
  described = _described(path.with_suffix('.json'))
  try:
    rows = np.lib.format.open_memmap(path, mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), AGAIN
    ) from error
  shape = described['vectors'], described['width']
  if (
    rows.dtype != np.dtype('<f4')
    or rows.shape != shape
    or sample(rows) != described['sample']
  ):
    raise errors.IntegrityError(
      f'is not as {path.with_suffix(".json").name} describes it',
      str(path),
      AGAIN,
    )
  names, times = _names(csv_of(path), len(rows))
  folder = Folder(
    Path(described['images']),
    names,
    [(one['path'], one['reason']) for one in described['left_out']],
  )
  return Vectors(rows, folder, described, times)


def check_model(stored: Vectors, model: Snapshot, where: str) -> None:
  """Raises IntegrityError, with both names, for vectors of another model."""
  own = stored.described['model']
  if own['digest'] != model.digest:
    theirs = snapshot.title(own['recipe'], own['name'], own['round'])
    raise errors.IntegrityError(
      f'the vectors are of another model ({theirs}, {own["digest"][:8]}) than '
      f'the given one ({model.title}, {model.digest[:8]})',
      where,
      'embed the gallery with this model, or give the model of the vectors',
    )


def _names(path: Path, size: int) -> tuple[list[str], dict[str, float]]:
  """The paths in a CSV file with the indices 0 to `size` - 1, and times."""
  names: list[str] = []
  times: dict[str, float] = {}
  try:
    with path.open(encoding='utf-8', newline='') as file:
      lines = csv.reader(file)
      is_ours = tuple(next(lines, ())) in (HEADER, (*HEADER, TIME))
      for index, name, *time in lines:
        is_ours = is_ours and int(index) == len(names)
        names.append(name)
        if time and time[0]:
          times[name] = float(time[0])
  except (OSError, ValueError, csv.Error) as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), AGAIN
    ) from error
  if not is_ours or len(names) != size:
    raise errors.IntegrityError(
      f'does not list the {errors.counted(size, "vector")} in their order',
      str(path),
      AGAIN,
    )
  return names, times


def _described(path: Path) -> dict[str, Any]:
  try:
    found = json.loads(path.read_text())
    missing = DESCRIBED - found.keys() | MODEL - found['model'].keys()
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    reason = 'is missing' if not path.exists() else f'cannot be read: {error}'
    raise errors.IntegrityError(reason, str(path), AGAIN) from error
  if missing:
    raise errors.IntegrityError(f'has no {min(missing)}', str(path), AGAIN)
  return found


def sample(rows: np.ndarray) -> str:
  """The SHA-256 of up to `_COMPARED` evenly spaced rows."""
  # All rows of a large file would take long to read.
  places = np.linspace(0, len(rows) - 1, min(len(rows), _COMPARED))
  return hashlib.sha256(rows[places.astype(np.int64)].tobytes()).hexdigest()


def folder_of(
  root: str | os.PathLike[str],
  where: str,
  skip: bool,
  more: tuple[str, ...] = (),
) -> Folder:
  """Lists the images of a folder and of its subfolders.

  `where` is the flag with the folder, for messages. With `skip`, names that
  cannot be used are left out. Files whose names end in one of `more` are listed
  as well.

  Raises:
    DataError: for no such folder, no image, or a name that cannot be used.
  """
  path = files.check_root(root, where)
  left_out: files.Bad = []
  try:
    names = files.list_images(path, left_out if skip else None, more)
  except errors.DataError as error:
    raise errors.DataError(
      error.what,
      error.where,
      f'{error.fix}, or leave such files out: --skip_unreadable',
    ) from error
  if not names:
    others = files.list_others(path, ())
    remedies = [f'names of images end in {", ".join(files.image_ends())}']
    if found := heic.split(others)[0]:
      remedies.append(heic.skipped(found))
    if found := video.split(others)[0]:
      remedies.append(video.skipped(found))
    raise errors.DataError(
      files.nothing_in(path), str(path), '; '.join(remedies)
    )
  return Folder(path, names, left_out)


def check_out(path: Path) -> None:
  """Refuses a path that cannot be written, or files that `write` did not write.

  Raises:
    ConfigError: for a name without `.npy`, or files of another origin.
    ResourceError: for a folder that does not exist or cannot be written.
  """
  if path.suffix != '.npy' or path.stem.endswith('.'):
    raise errors.ConfigError(
      'the name does not end in .npy', str(path), 'give --out=FILE.npy'
    )
  for other in (path, csv_of(path)):
    if other.exists() and not path.with_suffix('.json').exists():
      raise errors.ConfigError(
        'the file exists, and `fedreid embed` did not write it',
        str(other),
        'give another --out, or remove it',
      )
  atomic.check_writable(path)


def write(
  model: Snapshot,
  folder: Folder,
  out: Path,
  *,
  modality: int | None = None,
  batch: int | None = None,
  skip: bool = False,
  advance: Callable[[int], None] = lambda more: None,
  detected: dict[str, Any] | None = None,
  times: Mapping[str, float] = MappingProxyType({}),
) -> Vectors:
  """Writes the vectors of a folder of images to a `.npy` file and opens them.

  Of all images only the names are in memory.

  Args:
    modality: of all images, 0 visible and 1 infrared, or None.
    batch: images of a step, None for `evaluation.batch`.
    skip: whether to leave out files that cannot be read.
    advance: called with the number of further files that are done.
    detected: of images that are crops, values for JSON about photographs.
    times: of images from videos, seconds by name.

  Raises:
    DataError: for a file that cannot be read, or none that can.
    ResourceError: when the files cannot be written.
  """
  left_out = list(folder.left_out)
  parts = model.embed_files(
    [os.path.join(folder.root, name) for name in folder.names],
    None if modality is None else np.full(len(folder.names), modality),
    batch,
    (lambda row, why: left_out.append((folder.names[row], why)))
    if skip
    else None,
  )
  # Vectors of an earlier call stay valid until the new ones are complete.
  partial = out.with_name(out.name + '.partial')
  try:
    with errors.on_disk(out):
      kept, width = _write_rows(partial, parts, advance)
      if not kept:
        raise errors.DataError(
          'no image can be read '
          f'({errors.counted(len(folder.names), "file")}): '
          + '; '.join(f'{name} ({why})' for name, why in left_out[:3]),
          str(folder.root),
          'give a folder of images',
        )
      advance(len(folder.names) - kept[-1] - 1)
      # The JSON file is deleted first and written last, so that a process that
      # is killed in between leaves no description of files that do not match.
      out.with_suffix('.json').unlink(missing_ok=True)
      os.replace(partial, out)
  finally:
    partial.unlink(missing_ok=True)
  names = [folder.names[row] for row in kept]
  atomic.write_text(csv_of(out), _table(names, times))
  described = {
    'vectors': len(names),
    'width': width,
    'sample': sample(np.lib.format.open_memmap(out, mode='r')),
    'metric': model.config.evaluation.metric,
    'modality': modality,
    'model': {
      'digest': model.digest,
      'recipe': model.config.name,
      'name': model.name,
      'round': model.step,
    },
    'images': str(folder.root),
    'left_out': [{'path': name, 'reason': why} for name, why in left_out],
    'fedreid_jax': __version__,
  } | ({'detected': detected} if detected else {})
  recorder.write_json(out.with_suffix('.json'), described)
  return read(out)


def _write_rows(
  path: Path,
  parts: Iterator[tuple[np.ndarray, np.ndarray]],
  advance: Callable[[int], None],
) -> tuple[list[int], int]:
  """Writes (positions, vectors) as they arrive; returns (positions, width)."""
  kept: list[int] = []
  width = done = 0
  with path.open('wb') as file:
    for rows, vectors in parts:
      if not kept:
        width = vectors.shape[1]
        _write_header(file, 0, width)
      file.write(np.ascontiguousarray(vectors, '<f4').data)
      kept += rows.tolist()
      advance(kept[-1] + 1 - done)
      done = kept[-1] + 1
    # The number of readable images is known only now.
    file.seek(0)
    _write_header(file, len(kept), width)
  return kept, width


def _write_header(file: BinaryIO, rows: int, width: int) -> None:
  """Writes the header of a `.npy` file, of one length for any `rows`."""
  # NumPy pads the number of rows, so that the header can be overwritten.
  header = {'descr': '<f4', 'fortran_order': False, 'shape': (rows, width)}
  np.lib.format.write_array_header_1_0(file, header)


def _table(names: list[str], times: Mapping[str, float]) -> str:
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  table.writerow([*HEADER, TIME] if times else HEADER)
  for row in enumerate(names):
    time = f'{times[row[1]]:.3f}' if row[1] in times else ''
    table.writerow([*row, time] if times else row)
  return text.getvalue()
