"""Messages between two programs of one computer, over a Unix socket.

A message is its length in eight bytes, big-endian, and its bytes. Only the user
who owns the socket can connect to it.
"""

# Flower starts a process for every message, which imports this module: imports
# of JAX or NumPy here would delay each of them.

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from fedreid_jax import errors

_LENGTH = 8
_LARGEST = 2**34  # bytes; a peer that is no such program may send any length
# Seconds without progress after which a peer is left, so that one that sends or
# reads nothing does not stop the site. Clients wait for training without limit.
SILENT_S = 60.0


def listen(path: Path) -> socket.socket:
  """A listening socket that only its owner can connect to.

  A socket on which no process listens is replaced.

  Raises:
    LockedError: when another process listens on the path.
    ResourceError: if creation fails; Linux allows paths of at most 107 bytes.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  # A file of a socket stays behind when its process is killed. Only a
  # connection shows whether a process listens.
  with contextlib.suppress(OSError), _connected(path):
    raise errors.LockedError(
      'another process listens on it', str(path), 'end it, or give another'
    )
  made = socket.socket(socket.AF_UNIX)
  try:
    # Only a socket is deleted: another file makes `bind` fail.
    if path.is_socket():
      path.unlink()
    # By umask, because another user could connect between `bind` and a chmod.
    before = os.umask(0o177)
    try:
      made.bind(str(path))
    finally:
      os.umask(before)
    made.listen()
  except OSError as error:
    made.close()
    raise errors.ResourceError(
      f'cannot listen: {error.strerror or error}',
      str(path),
      'give a shorter --socket in a folder of your own',
    ) from error
  return made


def serve(at: socket.socket, answer: Callable[[bytes], bytes]) -> None:
  """Answers one message of each connection, one after another, for ever."""
  while True:
    connection, _ = at.accept()
    connection.settimeout(SILENT_S)
    # A peer that leaves early must not end the service of the site.
    with connection, contextlib.suppress(OSError, EOFError):
      _send(connection, answer(_receive(connection)))


def ask(path: str, message: bytes) -> bytes:
  """Sends a message and returns the reply, or raises ResourceError."""
  try:
    with _connected(Path(path)) as connection:
      _send(connection, message)
      return _receive(connection)
  except (OSError, EOFError) as error:
    raise errors.ResourceError(
      f'the site does not answer: {error}', path, 'start fedreid site'
    ) from error


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
  with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(str(path))
    yield connection


def _send(connection: socket.socket, message: bytes) -> None:
  connection.sendall(len(message).to_bytes(_LENGTH, 'big'))
  # The other end may reply and close after the length of an empty message.
  if message:
    connection.sendall(message)


def _receive(connection: socket.socket) -> bytes:
  size = int.from_bytes(_read(connection, _LENGTH), 'big')
  if size > _LARGEST:
    raise EOFError(f'a message of {size} bytes')
  return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
  parts = bytearray()
  while len(parts) < size:
    # At most 1 MiB at a time: `recv` allocates as many bytes as it may read.
    part = connection.recv(min(size - len(parts), 2**20))
    if not part:
      raise EOFError('the connection ended')
    parts += part
  return bytes(parts)
