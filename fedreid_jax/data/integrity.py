"""Checks that files have not changed since they were written.

A JSON file holds a hash of itself. A large file is hashed in chunks by several
threads, and its hash is stored in another file. A large file is read again only
when its size, modification time or inode has changed since the last successful
check.
"""

import contextlib
import hashlib
import json
import os
from concurrent import futures
from pathlib import Path
from typing import Any

_CHUNK = 1 << 24  # bytes that a thread hashes at a time


def digest(*parts: Any) -> str:
  """SHA-256 of the JSON text of values, in hexadecimal digits."""
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def write(path: Path, content: dict[str, Any]) -> None:
  """Writes an object and its hash as JSON, atomically."""
  part = path.with_name(path.name + '.part')
  part.write_text(json.dumps({'seal': digest(content), 'content': content}))
  part.replace(path)


def read(path: Path) -> dict[str, Any]:
  """Reads a file of `write`; ValueError if changed, OSError if unreadable."""
  try:
    found = json.loads(path.read_bytes())
    if digest(found['content']) == found['seal']:
      return found['content']
  except (ValueError, TypeError, LookupError):
    pass
  raise ValueError(f'{path.name} is not as it was written')


def _sha256(path: Path) -> str:
  def one(start: int) -> bytes:
    with open(path, 'rb') as file:
      file.seek(start)
      return hashlib.sha256(file.read(_CHUNK)).digest()

  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    chunks = pool.map(one, range(0, path.stat().st_size, _CHUNK))
    return hashlib.sha256(b''.join(chunks)).hexdigest()


def add(path: Path) -> str:
  """Records that a file is complete, and returns its hash.

  The hash is the SHA-256 of the SHA-256 digests of its chunks.
  """
  sha = _sha256(path)
  _stamp(path).write_text(json.dumps(_looks(path, sha)))
  return sha


def check(path: Path, sha: str) -> None:
  """Compares a file with the result of `add`, and reads it only if necessary.

  A ValueError is raised for another hash, an OSError for an unreadable file.
  """
  # Reading a large file takes time. A disk that returns other bytes than were
  # written is not detected while size, time and inode are the same.
  looks = _looks(path, sha)
  with contextlib.suppress(OSError, ValueError):
    if json.loads(_stamp(path).read_bytes()) == looks:
      return
  if _sha256(path) != sha:
    raise ValueError(f'{path.name} is not as it was written')
  with contextlib.suppress(OSError):  # in a folder without write permission
    _stamp(path).write_text(json.dumps(looks))


def _stamp(path: Path) -> Path:
  return path.with_name(path.name + '.verified')


def _looks(path: Path, sha: str) -> list[Any]:
  status = path.stat()
  return [status.st_size, status.st_mtime_ns, status.st_ino, sha]
