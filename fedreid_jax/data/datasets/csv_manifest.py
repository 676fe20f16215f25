"""Any images, listed in `manifest.csv`: path,identity,camera,modality,split.

The dialects of the file are those of `csv_table`. Paths are relative to the
folder. Identities and cameras may be words. Modality is visible or infrared;
split is one of `records.SPLITS`. The last three columns are optional with
`data.source=folder`, see `data.folder.folder_layout`.
"""

import csv
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.data.datasets import csv_table, layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  MODALITIES,
  SPLITS,
  Dataset,
  Record,
)

MANIFEST = 'manifest.csv'
_TABLES = 'manifest.csv.txt', 'manifest.tsv', 'manifest.tab'
_SHEETS = 'manifest.xlsx', 'manifest.xls', 'manifest.ods', 'manifest.csv.xlsx'
COLUMNS = ('path', 'identity', 'camera', 'modality', 'split')


def read(root: Path) -> list[Record]:
  """Reads the manifest."""
  table = rows(root, COLUMNS)
  person = _numbers([row['identity'] for row in table])
  camera = _numbers([row['camera'] for row in table])
  return [
    Record(
      row['path'],
      person[row['identity']],
      camera[row['camera']],
      MODALITIES.index(row['modality']),
      row['split'],
    )
    for row in table
  ]


def file_of(root: Path) -> Path | None:
  """The manifest of a folder, in upper or lower case; None if it has none.

  Raises:
    DataError: for a table with the name of a manifest but for its end.
  """
  found = sorted(path for path in root.iterdir() if path.is_file())
  own = [path for path in found if path.name.lower() == MANIFEST]
  if own:
    return own[0]
  for path in found:
    if path.name.lower() in _TABLES:
      raise errors.DataError(
        f'{path.name} is not read', str(root), f'name it {MANIFEST}'
      )
    if path.name.lower() in _SHEETS:
      raise errors.DataError(
        f'{path.name} is not read',
        str(root),
        f"save it as 'CSV UTF-8' with the name {MANIFEST}",
      )
  return None


def rows(root: Path, columns: Sequence[str]) -> list[dict[str, str]]:
  """Lines of the manifest, with values by column, or raises DataError.

  Paths are those of the files on the disk: they may be written with `./`, with
  backslashes, or with letters that are composed otherwise. Modalities and
  splits may be in upper case. Images in the folders of devices are left out, as
  they are without a manifest.
  """
  file = file_of(root)
  if file is None:
    raise errors.DataError(f'no file {MANIFEST}', str(root), layout.HELP)
  table = csv_table.read(file, columns)
  for row in table:
    _check(row.values, f'{file} line {row.line}')
  found = [row.values for row in table if not _of_device(row.values['path'])]
  if not found:
    raise errors.DataError(
      f'{MANIFEST} lists images in folders of devices only',
      str(file),
      'list those of persons',
    )
  for column in ('identity', 'camera', 'domain'):
    by_domain: dict[str, list[str]] = defaultdict(list)
    for row in found:
      # Persons of two domains have nothing to do with each other.
      domain = row.get('domain', '') if column != 'domain' else ''
      by_domain[domain].append(row.get(column, ''))
    for values in by_domain.values():
      csv_table.check_alike(values, column, str(file))
  return [
    row | {'path': path}
    for row, path in zip(
      found, _located(root, [row['path'] for row in found]), strict=True
    )
  ]


def _of_device(path: str) -> bool:
  folders = path.replace('\\', '/').split('/')[:-1]
  return any(map(files.is_device_folder, folders))


def _check(row: dict[str, str], where: str) -> None:
  for column, choices in (('modality', MODALITIES), ('split', SPLITS)):
    if column not in row:
      continue
    row[column] = row[column].lower()
    if row[column] not in choices:
      raise errors.DataError(
        f'{column} {row[column]!r}', where, f'one of {", ".join(choices)}'
      )
  path = row['path']
  parts = path.replace('\\', '/').split('/')
  # A path must not lead out of the folder of the manifest.
  absolute = not parts[0] or re.match('[a-zA-Z]:', path)
  if not path or absolute or '..' in parts:
    raise errors.DataError(
      f'path {path!r}', where, 'give it relative to the manifest'
    )


def _located(root: Path, paths: Sequence[str]) -> list[str]:
  """Names of files on the disk, or raises DataError for missing ones."""
  plain = {path: posixpath.normpath(path) for path in paths}
  # A name may have a backslash on Linux, and is then found as it is.
  slashed = {
    path: posixpath.normpath(path.replace('\\', '/')) for path in paths
  }
  folders = {posixpath.dirname(p) for p in (*plain.values(), *slashed.values())}
  written = _by_form(
    name
    for folder in sorted(folders)
    # Unlike `Path.is_dir`, this is no error for a name that is too long.
    if os.path.isdir(root / folder)
    for name in files.list_files(root, folder)
  )
  if not all(plain[p] in written or slashed[p] in written for p in paths):
    # Folders on the disk may be written otherwise than in the manifest.
    written = _by_form(files.list_images(root, [])) | written
  found = {
    path: written.get(plain[path]) or written.get(slashed[path])
    for path in paths
  }
  missing = [path for path, name in found.items() if name is None]
  if missing:
    raise _missing(root, missing, slashed, written)
  return [found[path] or path for path in paths]


def _by_form(found: Iterable[str]) -> dict[str, str]:
  """Names by their normalised forms; a name that is one comes first."""
  names = [*found]
  return {csv_table.normalise(x): x for x in names} | {x: x for x in names}


def _missing(
  root: Path,
  missing: Sequence[str],
  slashed: Mapping[str, str],
  written: Mapping[str, str],
) -> errors.DataError:
  """The error of files that are not there, with its cause if it is known."""
  by_case = {name.casefold(): name for name in written.values()}
  for path in missing:
    near = by_case.get(slashed[path].casefold())
    if near:
      return errors.DataError(
        f'{path!r} is {near!r} on the disk: the case differs',
        str(root / MANIFEST),
        'write the path as the file is named',
      )
  return errors.DataError(
    f'{len(missing)} listed files are missing: ' + ', '.join(missing[:5]),
    str(root),
    f'give paths relative to the folder of {MANIFEST}',
  )


def _numbers(words: list[str]) -> dict[str, int]:
  """Keeps words that are all whole numbers, or numbers the words from 1."""
  unique = sorted(set(words))
  try:
    return {word: int(word) for word in unique}
  except ValueError:
    return {word: number for number, word in enumerate(unique, 1)}


def write(root: Path, photos: Photos) -> None:
  """Writes images and manifest.csv, with words for identities."""
  rows = []
  train = photos.halves()[0]
  for person, camera, shot in photos.views(2):
    path = f'images/person{person}/{camera}-{shot}.png'
    pictures.save(root, path, photos.visible[person, camera, shot])
    split = 'gallery' if shot else 'query'
    split = 'train' if person in train else split
    rows.append((path, f'person{person}', f'door{camera}', 'visible', split))
  with open(root / MANIFEST, 'w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows(rows)


DATASET = Dataset(
  name='csv',
  title='manifest.csv',
  read=read,
  counts={},
  protocol='market',
  page='your own',
  miniature=write,
)
