"""Writes the vectors of a folder of images, a batch at a time.

Of all images only the names are in memory. `vectors.py` describes the files.
"""

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

import fedreid_jax
from fedreid_jax import errors
from fedreid_jax.apps.deploy.search import vectors as vectors_lib
from fedreid_jax.data import files
from fedreid_jax.training.files import atomic, recorder
from fedreid_jax.training.snapshot import Snapshot


def folder_of(
  root: str | os.PathLike[str], where: str, skip: bool
) -> vectors_lib.Folder:
  """Lists the images of a folder and of its subfolders.

  Args:
    root: the folder.
    where: flag with the folder, for messages.
    skip: whether to leave out names that cannot be used.

  Raises:
    DataError: if there is no such folder, no image, or a name that cannot be
      used.
  """
  path = files.check_root(root, where)
  left_out: files.Bad = []
  try:
    names = files.list_images(path, left_out if skip else None)
  except errors.DataError as error:
    raise errors.DataError(
      error.what,
      error.where,
      f'{error.fix}, or leave such files out: --skip_unreadable',
    ) from error
  if not names:
    others = files.count_others(path, ())
    raise errors.DataError(
      f'no images but other files, {others}' if others else 'no images',
      str(path),
      f'names of images end in {", ".join(files.IMAGES)}',
    )
  return vectors_lib.Folder(path, names, left_out)


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
  for other in (path, vectors_lib.csv_of(path)):
    if other.exists() and not path.with_suffix('.json').exists():
      raise errors.ConfigError(
        'the file exists, and `fedreid embed` did not write it',
        str(other),
        'give another --out, or remove it',
      )
  atomic.check_writable(path)


def write(
  model: Snapshot,
  folder: vectors_lib.Folder,
  out: Path,
  *,
  modality: int | None = None,
  batch: int | None = None,
  skip: bool = False,
  advance: Callable[[int], None] = lambda more: None,
) -> vectors_lib.Vectors:
  """Writes the vectors of a folder of images and opens them.

  Args:
    model: model that embeds the images.
    folder: names of the images.
    out: `.npy` file.
    modality: of all images, 0 visible and 1 infrared, or None.
    batch: images of a step, None for `evaluation.batch`.
    skip: whether to leave out files that cannot be read.
    advance: called with the number of further files that are done.

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
  with errors.on_disk(out), _removed_on_failure(partial):
    kept, width = _write_rows(partial, parts, advance)
    if not kept:
      raise errors.DataError(
        f'no image can be read ({errors.counted(len(folder.names), "file")}): '
        + '; '.join(f'{name} ({why})' for name, why in left_out[:3]),
        str(folder.root),
        'give a folder of images',
      )
    advance(len(folder.names) - kept[-1] - 1)
    # The JSON file is deleted first and written last, so that a process that is
    # killed in between leaves no description of files that do not match.
    out.with_suffix('.json').unlink(missing_ok=True)
    os.replace(partial, out)
  names = [folder.names[row] for row in kept]
  atomic.write_text(vectors_lib.csv_of(out), _table(names))
  described = {
    'vectors': len(names),
    'width': width,
    'sample': vectors_lib.sample(np.lib.format.open_memmap(out, mode='r')),
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
    'fedreid_jax': fedreid_jax.__version__,
  }
  recorder.write_json(out.with_suffix('.json'), described)
  return vectors_lib.read(out)


def _write_rows(
  path: Path,
  parts: Iterator[tuple[np.ndarray, np.ndarray]],
  advance: Callable[[int], None],
) -> tuple[list[int], int]:
  """Writes the vectors of batches to a `.npy` file as they are computed.

  Args:
    path: path of the file.
    parts: (positions, vectors) of every batch.
    advance: called with the number of further positions.

  Returns:
    (positions of the rows, width of the vectors).
  """
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


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
  try:
    yield
  except BaseException:
    path.unlink(missing_ok=True)
    raise


def _write_header(file: BinaryIO, rows: int, width: int) -> None:
  """Writes the header of a `.npy` file, of one length for any `rows`."""
  # NumPy pads the number of rows, so that the header can be overwritten.
  header = {'descr': '<f4', 'fortran_order': False, 'shape': (rows, width)}
  np.lib.format.write_array_header_1_0(file, header)


def _table(names: list[str]) -> str:
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  table.writerow(vectors_lib.HEADER)
  table.writerows(enumerate(names))
  return text.getvalue()
