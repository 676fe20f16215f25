"""Reads tables of text as spreadsheets and scripts write them.

The text is UTF-8, or UTF-16 with a byte-order mark. The columns are separated
by commas, semicolons, tabs or bars, which the header shows, or as a first line
`sep=;` says. Upper and lower case of the header do not matter. Rows without any
value are skipped.

What looks alike must be equal. Values are therefore normalised: composed
letters (NFC), one blank in place of several or of a no-break space, no blanks
at the ends, and no invisible characters (soft hyphens, marks of direction,
joiners).
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedreid_jax import errors

SEPARATORS = ',;\t|'
_INVISIBLE = 'Cf'  # Unicode's category of characters without a shape
_UTF16 = b'\xff\xfe', b'\xfe\xff'
_UTF32 = b'\xff\xfe\0\0'  # begins as UTF-16
_SAVE = "save it as 'CSV UTF-8'"


class Row(NamedTuple):
  """One row, with normalised values by column."""

  line: int  # in the file, from 1
  values: dict[str, str]


def read(file: Path, columns: Sequence[str]) -> list[Row]:
  """Reads a table that has at least some columns, in lower case.

  Raises:
    DataError: for a file that is no such table or has no rows, or a row of
      another length.
  """
  lines = _lines(file, columns[0])
  header = next((row for _, row in lines if any(row)), [])
  named = [name.casefold() for name in header]
  for column in columns:
    if column not in named:
      raise errors.DataError(
        f'no column {column!r}; the first line is {", ".join(header)!r}',
        str(file),
        f'name the columns in the first line: {",".join(columns)}',
      )
  twice = [name for name in named if name and named.count(name) > 1]
  if twice:
    raise errors.DataError(
      f'two columns {twice[0]!r}', str(file), 'remove one of them'
    )
  rows = [
    Row(line, _by_column(named, row, f'{file} line {line}'))
    for line, row in lines
    if any(row)
  ]
  if not rows:
    what = f'{file.name} has no rows below the header'
    raise errors.DataError(what, str(file), 'list the images in it')
  return rows


def check_alike(values: Iterable[str], what: str, where: str) -> None:
  """Raises DataError for two values that are likely to be meant as one.

  They differ in case only, are one number (1, 01 and 1.0), or are written with
  other forms of letters and digits, such as full-width ones.
  """
  known: dict[str, str] = {}
  for value in values:
    other = known.setdefault(_alike(value), value)
    if other == value:
      continue
    how = 'look alike'
    if _number(other) and _number(value):
      how = 'are one number'
    elif other.lower() == value.lower():
      how = 'differ in case only'
    raise errors.DataError(
      f'{what} {other!r} and {value!r} {how}',
      where,
      'write them alike, or change one of them',
    )


def _alike(value: str) -> str:
  # Not `casefold`, for which Weiss and Weiß are one name.
  return _number(value) or unicodedata.normalize('NFKC', value).lower()


def _number(value: str) -> str:
  """The number that a value is, without zeros at its ends, or ''."""
  plain = unicodedata.normalize('NFKC', value)
  match = re.fullmatch(r'([+-]?)0*(\d+)(?:\.(\d*))?', plain, re.ASCII)
  if not match:
    return ''
  sign, whole, rest = match[1].strip('+'), match[2], (match[3] or '')
  return f'{sign}{whole}.{rest.rstrip("0")}'


def normalise(text: str) -> str:
  """Returns a value in the form in which equal ones are equal."""
  plain = ''.join(c for c in text if unicodedata.category(c) != _INVISIBLE)
  return ' '.join(unicodedata.normalize('NFC', plain).split())


def _text(file: Path) -> str:
  data = file.read_bytes()
  if data.startswith(b'PK'):
    raise errors.DataError('a spreadsheet and no text', str(file), _SAVE)
  marked = data.startswith(_UTF16) and not data.startswith(_UTF32)
  # Every second byte of UTF-16 without a mark is zero, and three of UTF-32.
  if b'\0' in data and not marked:
    what = 'not UTF-8, but UTF-16 without a byte-order mark, or UTF-32'
    raise errors.DataError(what, str(file), _SAVE)
  try:
    return data.decode('utf-16' if marked else 'utf-8-sig')
  except UnicodeDecodeError as error:
    raise errors.DataError(f'not UTF-8: {error}', str(file), _SAVE) from error


def _lines(file: Path, first: str) -> Iterator[tuple[int, list[str]]]:
  """Yields the number and the normalised fields of every row."""
  text = _text(file)
  start, *rest = re.split('\r\n|\r|\n', text, maxsplit=1)
  said = re.fullmatch(r'"?sep=(.)"?[;,\t]*', start, re.IGNORECASE)
  separator = said[1] if said else _separator(text, first)
  # Reads all line ends, those of old Macs as well.
  source = io.StringIO(''.join(rest) if said else text, newline=None)

  def fields(rows: Iterable[str]):
    return csv.reader(rows, delimiter=separator, skipinitialspace=True)

  table = fields(source)
  try:
    for row in table:
      # Some programs put whole rows into quotation marks.
      if len(row) == 1 and separator in row[0] and '\n' not in row[0]:
        row = next(fields(row))
      line = table.line_num + bool(said)
      if any('\n' in field for field in row):
        raise errors.DataError(
          'a line break within a field',
          f'{file} line {line}',
          'close the quotation mark before it',
        )
      yield line, [normalise(field) for field in row]
  except csv.Error as error:
    line = table.line_num + bool(said)
    raise errors.DataError(str(error), f'{file} line {line}', _SAVE) from error


def _separator(text: str, first: str) -> str:
  """The separator with which the header has the column `first`, and most."""
  header = next((line for line in text.splitlines() if line.strip()), '')

  def columns(separator: str) -> tuple[bool, int]:
    names = [
      normalise(name.strip().strip('"')).casefold()
      for name in header.split(separator)
    ]
    return first in names, len(names)

  return max(SEPARATORS, key=columns)


def _by_column(
  named: Sequence[str], row: Sequence[str], where: str
) -> dict[str, str]:
  size = len(named)
  # A separator may follow the last column.
  while size and not named[size - 1]:
    size -= 1
  if len(row) < size or any(row[size:]):
    raise errors.DataError(
      f'wrong number of fields: {len(row)} and not {size}',
      where,
      'fix the line, or put values with a separator into quotation marks',
    )
  return dict(zip(named[:size], row[:size], strict=True))
