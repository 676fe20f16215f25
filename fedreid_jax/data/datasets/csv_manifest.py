"""Any images, listed in `manifest.csv`: path,identity,camera,modality,split.

Paths are relative to the folder. Identities and cameras may be words. Modality
is visible or infrared; split is one of `records.SPLITS`. The last three columns
are optional with `data.source=folder`, see `data.folder.folder_layout`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  MODALITIES,
  SPLITS,
  Dataset,
  Record,
)

MANIFEST = 'manifest.csv'
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


def rows(root: Path, columns: Sequence[str]) -> list[dict[str, str]]:
  """Lines of the manifest, with values by column, or raises DataError."""
  file = root / MANIFEST
  if not file.is_file():
    raise errors.DataError(f'no file {MANIFEST}', str(root), layout.HELP)
  try:
    # A byte-order mark would become part of the name of the first column.
    with open(file, encoding='utf-8-sig', newline='') as stream:
      table = csv.DictReader(stream)
      found = list(table)
  except (UnicodeDecodeError, csv.Error) as error:
    raise errors.DataError(str(error), str(file), 'save it as UTF-8') from error
  missing = [c for c in columns if c not in (table.fieldnames or ())]
  if missing:
    raise errors.DataError(
      f'no column {missing[0]!r}', str(file), f'columns: {",".join(columns)}'
    )
  # The first line of the file is the header.
  for number, row in enumerate(found, 2):
    _check(row, f'{file} line {number}')
  layout.require(root, (row['path'] for row in found))
  return found


def _check(row: dict[str, str], where: str) -> None:
  # `DictReader` stores surplus fields under None, and None for missing ones.
  if None in row or None in row.values():
    raise errors.DataError('wrong number of fields', where, 'fix the line')
  for column, choices in (('modality', MODALITIES), ('split', SPLITS)):
    if column in row and row[column] not in choices:
      raise errors.DataError(
        f'{column} {row[column]!r}', where, f'one of {", ".join(choices)}'
      )
  parts = row['path'].split('/')
  # A path must not lead out of the folder of the manifest.
  if not row['path'] or row['path'].startswith('/') or '..' in parts:
    raise errors.DataError(
      f'path {row["path"]!r}', where, 'give it relative to the manifest'
    )


def _numbers(words: list[str]) -> dict[str, int]:
  """Keeps words that are different numbers, or numbers them from 1."""
  unique = sorted(set(words))
  counted = {word: number for number, word in enumerate(unique, 1)}
  try:
    kept = {word: int(word) for word in unique}
  except ValueError:
    return counted
  # '1' and '01' are two persons, as they are with `data.source=folder`.
  return kept if len({*kept.values()}) == len(kept) else counted


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
