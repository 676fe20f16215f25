"""Files with a line per measurement, which a resumed run continues exactly.

A run that is killed may leave an incomplete last line and lines of rounds after
its last checkpoint. A resumed run drops both and computes these rounds again.
"""

from collections.abc import Callable
from pathlib import Path

from fedreid_jax import errors

RoundOf = Callable[[bytes], int | None]


def read(path: Path, round_of: RoundOf) -> list[tuple[str, int | None]]:
  """Returns the lines of a file, none if it does not exist.

  Args:
    path: of the file.
    round_of: returns the round of a line, None if it cannot be read.

  Returns:
    (line, its round); an incomplete last line is left out.
  """
  if not path.exists():
    return []
  # Text after the last line end was not completely written.
  *lines, _ = path.read_bytes().split(b'\n')
  return [(line.decode(errors='replace'), round_of(line)) for line in lines]


def append(path: Path, text: str) -> None:
  """Appends complete lines to a file."""
  with errors.on_disk(path), path.open('a') as file:
    file.write(text)


def kept(path: Path, round_: int, round_of: RoundOf) -> tuple[str, list[int]]:
  """Returns the lines that a run resumed after a round keeps.

  Args:
    path: of the file.
    round_: last round to keep.
    round_of: as for `read`.

  Returns:
    (text of these lines, numbers of the lines that cannot be read, from 1).
  """
  found = read(path, round_of)
  lines = [line for line, own in found if own is not None and own <= round_]
  broken = [k for k, (_, own) in enumerate(found, 1) if own is None]
  return ''.join(f'{line}\n' for line in lines), broken
