"""Files that survive a process that is killed.

A file is replaced as a whole, or continued line by line, with a line for each
measurement. A run that is killed may leave an incomplete last line, and lines
of rounds after its last checkpoint. A resumed run drops both and computes these
rounds again.
"""

import os
from collections.abc import Callable
from pathlib import Path

from fedreid_jax import errors

RoundOf = Callable[[bytes], int | None]


def write_text(path: Path, text: str) -> None:
  """Writes a file atomically."""
  write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
  """Writes a file atomically."""
  # Shards of a sweep write one file from several processes.
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    with errors.on_disk(path):
      partial.write_bytes(content)
      os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def is_left(partial: Path) -> bool:
  """Returns whether the process that wrote a partial file is gone."""
  number = partial.name.split('.')[-2]
  if not number.isdigit():
    return False
  try:
    os.kill(int(number), 0)
  except ProcessLookupError:
    return True
  except (PermissionError, OverflowError):
    pass
  return False


def check_writable(path: Path) -> None:
  """Refuses a file that could not be written at the end.

  Raises:
    ResourceError: naming the path.
  """
  partial = path.with_name(path.name + '.partial')
  with errors.on_disk(path):
    partial.touch()
    partial.unlink()


def content(path: Path) -> bytes:
  """Returns the bytes of a file, none if it does not exist."""
  return path.read_bytes() if path.exists() else b''


def lines(content: bytes, round_of: RoundOf) -> list[tuple[str, int | None]]:
  """Returns (line, its round, None if unreadable) of all complete lines."""
  # Text after the last line end was not completely written.
  *found, _ = content.split(b'\n')
  return [(line.decode(errors='replace'), round_of(line)) for line in found]


def append(path: Path, text: str) -> None:
  """Appends complete lines to a file."""
  with errors.on_disk(path), path.open('a') as file:
    file.write(text)


def kept(
  content: bytes, round_: int, round_of: RoundOf
) -> tuple[str, list[int]]:
  """The text kept after a round, and numbers of unreadable lines, from 1."""
  found = lines(content, round_of)
  good = [line for line, own in found if own is not None and own <= round_]
  broken = [k for k, (_, own) in enumerate(found, 1) if own is None]
  return ''.join(f'{line}\n' for line in good), broken
