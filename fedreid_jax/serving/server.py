"""The server of the page, which only this computer can reach."""

import contextlib
import socket

import uvicorn
from starlette.types import ASGIApp

from fedreid_jax import errors

HOST = '127.0.0.1'
CONNECTIONS = 32  # more are refused: each may hold an upload in memory


def listen(port: int) -> socket.socket:
  """Returns a socket of this computer's own address.

  Connections wait until the server runs.

  Args:
    port: its number, 0 for any free one.

  Raises:
    ResourceError: for a port that is in use or not allowed.
  """
  found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  try:
    # A server that has just ended must not block the port.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((HOST, port))
    found.listen(CONNECTIONS)
  except OSError as error:
    found.close()
    raise errors.ResourceError(
      f'the port cannot be used: {(error.strerror or str(error)).lower()}',
      f'{HOST}:{port}',
      'give another --port, or --port=0 for any free one',
    ) from error
  return found


def address(of: socket.socket) -> str:
  """Returns the URL of a socket."""
  return f'http://{HOST}:{of.getsockname()[1]}/'


def make(app: ASGIApp) -> uvicorn.Server:
  """Returns the server of an application, which prints nothing."""
  return uvicorn.Server(
    uvicorn.Config(
      app,
      http='h11',
      loop='asyncio',
      ws='none',
      lifespan='off',
      log_config=None,
      log_level='critical',
      access_log=False,
      server_header=False,
      proxy_headers=False,
      limit_concurrency=CONNECTIONS,
    )
  )


def run(app: ASGIApp, at: socket.socket) -> None:
  """Serves an application until a signal ends the process."""
  with contextlib.closing(at):
    make(app).run(sockets=[at])
