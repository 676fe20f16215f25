"""What readers have in common: folders, names, list files, `.mat` files."""

import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.core import archives
from fedreid_jax.data import files
from fedreid_jax.data.datasets.records import MODALITIES, Record

HELP = 'see docs/datasets.md for the tree'
# Folders of Market-1501, which other data sets have too.
BOXES = {
  'train': 'bounding_box_train',
  'query': 'query',
  'gallery': 'bounding_box_test',
}


def images(root: Path, below: str = '') -> list[str]:
  """Image files of a folder, sorted; raises DataError if there are none."""
  if not (root / below).is_dir():
    raise errors.DataError(f'no folder {below}', str(root), HELP)
  found = [
    name
    for name in files.list_files(root, below)
    if name.lower().endswith(files.IMAGES)
  ]
  if not found:
    what = files.nothing_in(root / below)
    raise errors.DataError(what, str(root / below), HELP)
  return found


def parse(pattern: str, name: str, root: Path) -> tuple[int, ...]:
  """Numbers in a file's name, the groups of a regular expression.

  A pattern without '/' is for the last part of the path. A DataError is raised
  when the name does not match.
  """
  own = name if '/' in pattern else name.rpartition('/')[2]
  match = re.fullmatch(pattern, own, re.IGNORECASE)
  if match is None:
    raise errors.DataError(
      f'{name!r} does not match {pattern!r}', str(root), 'remove or rename it'
    )
  return tuple(int(group) for group in match.groups())


def named(
  root: Path, below: str, pattern: str
) -> Iterator[tuple[str, *tuple[int, ...]]]:
  """Yields each image of a folder with the numbers that `parse` finds."""
  for name in images(root, below):
    yield name, *parse(pattern, name, root)


def check_camera(camera: int, cameras: range, name: str, root: Path) -> None:
  """Raises DataError for a camera that the data set does not have."""
  if camera not in cameras:
    raise errors.DataError(
      f'camera {camera} in {name!r}',
      str(root),
      f'cameras are {cameras[0]} to {cameras[-1]}',
    )


def from_names(
  root: Path, below: str, pattern: str, split: str, cameras: range
) -> list[Record]:
  """Reads images named by person and camera; DataError for other names."""
  records = []
  for name, person, camera in named(root, below, pattern):
    check_camera(camera, cameras, name, root)
    records.append(Record(name, person, camera, 0, split))
  return records


def from_boxes(
  root: Path, pattern: str, cameras: range, below: str = ''
) -> list[Record]:
  """Reads the folders `BOXES` after the prefix `below`, with '/' at its end."""
  return [
    record
    for split, folder in BOXES.items()
    for record in from_names(root, below + folder, pattern, split, cameras)
  ]


def side(direction: str, modality: int) -> str:
  """Split of the test images of a modality, 'query' or 'gallery'."""
  return 'query' if direction.startswith(MODALITIES[modality]) else 'gallery'


def lines(root: Path, name: str) -> Iterator[list[str]]:
  """Words of each line of a file; DataError if missing, empty or binary."""
  path = root / name
  try:
    text = path.read_text(encoding='utf-8')
  except FileNotFoundError:
    raise errors.DataError(f'no file {name}', str(root), HELP) from None
  except UnicodeDecodeError:
    raise errors.DataError('not a text file', str(path), HELP) from None
  rows = [line.split() for line in text.splitlines() if line.strip()]
  if not rows:
    raise errors.DataError('empty file', str(path), HELP)
  yield from rows


def identities(root: Path, name: str) -> list[int]:
  """Sorted identities of a list file; raises DataError for other words."""
  words = ' '.join(' '.join(row) for row in lines(root, name))
  try:
    return sorted(int(word) for word in words.replace(',', ' ').split())
  except ValueError as error:
    raise errors.DataError(str(error), str(root / name), HELP) from None


def require(root: Path, names: Iterable[str]) -> None:
  """Raises DataError with the first missing files of a list."""
  names = [*names]
  folders = {name.rpartition('/')[0] for name in names}
  present = {
    file
    for folder in sorted(folders)
    if (root / folder).is_dir()
    for file in files.list_files(root, folder)
  }
  missing = [name for name in names if name not in present]
  if missing:
    raise errors.DataError(
      f'{len(missing)} listed files are missing: ' + ', '.join(missing[:5]),
      str(root),
      'unpack the archive again',
    )


def matlab(
  root: Path, name: str, variable: str, simplify_cells: bool = False
) -> Any:
  """Reads a variable of MATLAB 4 to 7.2; raises DataError if it cannot."""
  from scipy import io

  path = root / name
  if not path.is_file():
    raise errors.DataError(f'no file {name}', str(root), HELP)
  try:
    archives.check_matlab(path)
    content = io.loadmat(
      path, variable_names=[variable], simplify_cells=simplify_cells
    )
    return content[variable]
  except KeyError:
    raise errors.DataError(f'no variable {variable}', str(path), HELP) from None
  except (
    *(ValueError, TypeError, NotImplementedError, OSError),
    zlib.error,
  ) as error:
    raise errors.DataError(
      f'cannot be read: {error}', str(path), 'unpack the archive again'
    ) from error
