"""Files of the vectors of a folder of images, as `embedding.write` writes them.

`NAME.npy` holds the vectors, float32 `[n, D]`, in the order of the file names,
which a CSV file lists (`csv_of`). `NAME.json` describes both and the model that
computed them. If it exists, the three files belong together.
"""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.training.snapshot import Snapshot

HEADER = ('index', 'path')
# Fields of the JSON file, and those of its model.
DESCRIBED = {
  *('vectors', 'width', 'sample', 'metric', 'modality', 'model', 'images'),
  *('left_out', 'fedreid_jax'),
}
MODEL = {'digest', 'recipe', 'name', 'round'}
AGAIN = 'make the files again with `fedreid embed`'
_COMPARED = 64  # rows whose hash shows that a file was replaced by another one


class Folder(NamedTuple):
  """The image files of a folder.

  Attributes:
    root: the folder, absolute.
    names: paths of the images relative to it, sorted.
    left_out: names that cannot be used, and the reasons.
  """

  root: Path
  names: list[str]
  left_out: files.Bad


class Vectors(NamedTuple):
  """Vectors of a folder of images.

  Attributes:
    rows: float32 `[n, D]`, memory-mapped.
    folder: the images; `left_out` has those without a vector.
    described: content of the JSON file.
  """

  rows: np.ndarray
  folder: Folder
  described: dict[str, Any]


def csv_of(path: Path) -> Path:
  """Returns the CSV file of vectors: `paths.csv` of `vectors.npy`."""
  own = '' if path.stem == 'vectors' else f'{path.stem}-'
  return path.with_name(f'{own}paths.csv')


def read(path: Path) -> Vectors:
  """Opens files that `embedding.write` wrote.

  Raises:
    DataError: when there is no such file.
    IntegrityError: when one of the files is missing, was changed, or belongs to
      another one.
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
  folder = Folder(
    Path(described['images']),
    _names(csv_of(path), len(rows)),
    [(one['path'], one['reason']) for one in described['left_out']],
  )
  return Vectors(rows, folder, described)


def check_model(stored: Vectors, model: Snapshot, where: str) -> None:
  """Refuses vectors that another model computed.

  Raises:
    IntegrityError: if the models differ; the message names both.
  """
  own = stored.described['model']
  if own['digest'] != model.digest:
    raise errors.IntegrityError(
      f'the vectors are of another model ({own["recipe"]}, {own["name"]}, '
      f'round {own["round"]}, {own["digest"][:8]}) than the work directory has '
      f'({model.config.name}, {model.name}, round {model.step}, '
      f'{model.digest[:8]})',
      where,
      'embed the gallery with this model, or give the model of the vectors',
    )


def _names(path: Path, size: int) -> list[str]:
  """Returns the paths in a CSV file with the indices 0 to `size` - 1."""
  names: list[str] = []
  try:
    with path.open(encoding='utf-8', newline='') as file:
      lines = csv.reader(file)
      is_ours = tuple(next(lines, ())) == HEADER
      for index, name in lines:
        is_ours = is_ours and int(index) == len(names)
        names.append(name)
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
  return names


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
  """Returns the SHA-256 of up to `_COMPARED` evenly spaced rows."""
  # All rows of a large file would take long to read.
  places = np.linspace(0, len(rows) - 1, min(len(rows), _COMPARED))
  return hashlib.sha256(rows[places.astype(np.int64)].tobytes()).hexdigest()
