"""The record of a run: `metrics.jsonl`, with a JSON object on each line.

Every run writes it. Results and reports are made from it, so that a failure to
write it ends the run, unlike the failure of a tracker.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreid_jax.training.files import atomic, line_file
from fedreid_jax.training.tracking.tracker import Measured

FILE = 'metrics.jsonl'
EVENTS = {'round': 'train', 'evaluation': 'eval'}  # names in the file


def round_of(line: bytes) -> int | None:
  """Returns the round of a line, None if it is damaged."""
  try:
    value = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  round_ = value.get('round') if isinstance(value, dict) else None
  return round_ if type(round_) is int else None


class Writer:
  """Appends to `metrics.jsonl` in the work directory.

  Attributes:
    path: of the file.
  """

  def __init__(self, workdir: Path):
    self.path = workdir / FILE

  def rewind(self, round_: int) -> list[int]:
    """Drops lines of rounds that are computed again, and damaged lines.

    Returns:
      The numbers of the damaged lines, from 1.
    """
    if not self.path.exists():
      return []
    text, broken = line_file.kept(self.path, round_, round_of)
    atomic.write_text(self.path, text)
    return broken

  def event(self, round_: int, event: str, values: Mapping[str, Any]) -> None:
    """Appends one JSON object."""
    line = {'round': round_, 'event': event, **values}
    line_file.append(self.path, json.dumps(line) + '\n')

  def write(self, measured: Measured) -> None:
    """Appends a line for a round, or for each entry of an evaluation."""
    for values in measured.entries:
      self.event(measured.round, EVENTS[measured.kind], values)

  def close(self, error: BaseException | None) -> None:
    """Does nothing; the file is closed after each line."""
