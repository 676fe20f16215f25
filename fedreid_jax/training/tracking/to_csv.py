"""Metrics as a CSV file, with a line for each number."""

import csv
import io

from fedreid_jax.training import callbacks
from fedreid_jax.training.files import atomic, line_file
from fedreid_jax.training.tracking.tracker import Measured

FILE = 'metrics.csv'
# A table with a column for each metric would have to be rewritten whenever a
# metric appears, such as those of a client that takes part for the first time.
HEADER = ('round', 'metric', 'value')


def round_of(line: bytes) -> int | None:
  """Returns the round of a line, -1 for the header, None if it is damaged."""
  try:
    (row,) = csv.reader([line.decode()])
    if tuple(row) == HEADER:
      return -1
    round_, _, value = row
    float(value)
    return int(round_)
  except (ValueError, csv.Error):
    return None


class Writer:
  """Writes `metrics.csv` in the work directory."""

  def __init__(self, start: callbacks.Start):
    self._path = start.workdir / FILE
    kept = line_file.kept(self._path, start.kept, round_of)[0]
    atomic.write_text(self._path, kept or _text([HEADER]))

  def write(self, measured: Measured) -> None:
    """Appends a line for each number."""
    rows = [(measured.round, *item) for item in measured.scalars.items()]
    line_file.append(self._path, _text(rows))

  def close(self, error: BaseException | None) -> None:
    """Does nothing; the file is closed after each round."""


def _text(rows: list) -> str:
  text = io.StringIO()
  csv.writer(text, lineterminator='\n').writerows(rows)
  return text.getvalue()
