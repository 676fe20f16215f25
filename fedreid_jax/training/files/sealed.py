"""Digests of the measurements of a run, so that damage is noticed.

A sealed JSON object has the SHA-256 of its other fields as `sha256`.
`results.json` is sealed, and its `files` has the size and the SHA-256 of the
other files of measurements. `metrics.jsonl` grows between two writes of
`results.json`: its digest is of the bytes that it had, and later rows are not
checked. A checkpoint has the same digests and a copy of these files, from which
a resumed run restores them. Files of earlier versions have no digests.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreid_jax import errors

DIGEST, FILES = 'sha256', 'files'
RESTORE = (
  'repeat the command that trained it, which restores it from a checkpoint'
)
UNCHECKED = (
  'the measurements so far are of a version without digests and are not checked'
)

File = dict[str, Any]  # 'bytes' and 'sha256'


class Growing:
  """The digest of a file to which rows are added."""

  def __init__(self, content: bytes = b''):
    self._bytes, self._digest = len(content), hashlib.sha256(content)

  def add(self, content: bytes) -> None:
    """Adds the bytes that were added to the file."""
    self._bytes += len(content)
    self._digest.update(content)

  def describe(self) -> File:
    """Returns the size and the digest so far."""
    return {'bytes': self._bytes, DIGEST: self._digest.hexdigest()}


def described(content: bytes) -> File:
  """Returns the size and the digest of a file."""
  return Growing(content).describe()


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an object with the digest of its other fields."""
  return {**value, DIGEST: _digest(value)}


def is_whole(value: Mapping[str, Any]) -> bool:
  """Whether an object from a file has its own digest, or none at all."""
  return DIGEST not in value or value[DIGEST] == _digest(value)


def _digest(value: Mapping[str, Any]) -> str:
  rest = {k: v for k, v in value.items() if k != DIGEST}
  # As read from a file, where all keys are text.
  read = json.loads(json.dumps(rest))
  return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def whole(path: Path, wanted: File, fix: str = RESTORE) -> bytes:
  """The content of a file, of which the first bytes have the given digest.

  Raises:
    IntegrityError: when it is missing, or its bytes are not those.
  """
  try:
    content = path.read_bytes()
  except OSError as error:
    what = f'cannot be read: {error.strerror}'
    if isinstance(error, FileNotFoundError):
      what = 'is missing'
    raise errors.IntegrityError(what, str(path), fix) from error
  size = wanted['bytes']
  if len(content) < size:
    what = f'{len(content):,} of {size:,} bytes are left'
    raise errors.IntegrityError(what, str(path), fix)
  if described(content[:size]) != wanted:
    what = 'was changed after it was written: its digest differs'
    raise errors.IntegrityError(what, str(path), fix)
  return content


def copy(files: Mapping[str, File], source: Path, target: Path) -> None:
  """Copies files that have their digests into the folder of a checkpoint.

  Raises:
    IntegrityError: when a file was changed while the run wrote it.
  """
  for name, wanted in files.items():
    content = whole(source / name, wanted)
    # Bytes behind those of the run are those of another writer.
    (target / name).write_bytes(content[: wanted['bytes']])
