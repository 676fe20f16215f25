"""Files that are replaced as a whole: a killed process leaves the old one."""

import os
from pathlib import Path

from fedreid_jax import errors


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


def check_writable(path: Path) -> None:
  """Refuses a file that could not be written at the end.

  Raises:
    ResourceError: naming the path.
  """
  partial = path.with_name(path.name + '.partial')
  with errors.on_disk(path):
    partial.touch()
    partial.unlink()
