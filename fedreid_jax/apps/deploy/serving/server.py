"""The server of the page, which only programs on this computer can reach."""

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedreid_jax import errors
from fedreid_jax.apps.deploy.serving import guards

HOST = '127.0.0.1'
CONNECTIONS = 32  # more are refused: each may hold an upload in memory
# Connections without a whole request. The oldest one is closed for a new one,
# so that clients that send half a request do not exclude others.
INCOMPLETE = CONNECTIONS // 2


class Protocol(H11Protocol):
  """HTTP with a limit of the time in which a request must be complete."""

  cycle: Any  # None before the first request, which uvicorn does not declare

  def connection_made(self, transport: asyncio.Transport) -> None:
    """Begins to wait for a request."""
    super().connection_made(transport)
    self._arm()
    waiting = [one for one in _by_age(self.connections) if one.is_incomplete]
    # A negative number would count from the end.
    for one in waiting[: max(len(waiting) - INCOMPLETE, 0)]:
      one.transport.abort()

  def connection_lost(self, exc: Exception | None) -> None:
    """Stops waiting."""
    self._timer.cancel()
    super().connection_lost(exc)

  def on_response_complete(self) -> None:
    """Begins to wait for another request."""
    super().on_response_complete()
    self._timer.cancel()
    self._arm()

  @property
  def is_incomplete(self) -> bool:
    """Whether the head or the body of a request has not arrived."""
    cycle = self.cycle
    return cycle is None or cycle.response_complete or cycle.more_body

  def _arm(self) -> None:
    # Uvicorn limits only the time between two requests.
    self.since = self.loop.time()
    self._timer = self.loop.call_later(guards.SECONDS, self._give_up)

  def _give_up(self) -> None:
    # The application responds to a late body itself (`guards.body`).
    if self.cycle is None or self.cycle.response_complete:
      self.transport.abort()


def _by_age(connections: Any) -> list[Protocol]:
  return sorted(connections, key=lambda one: one.since)


def listen(port: int) -> socket.socket:
  """Returns a socket of the loopback address.

  Args:
    port: number of the port, 0 for any free one.

  Raises:
    ResourceError: for a port that is in use or not allowed.
  """
  found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  try:
    # A server that has just ended must not block the port.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((HOST, port))
    # Connections wait from now on until the server runs.
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
  """Returns a server of an application that prints nothing."""
  return uvicorn.Server(
    uvicorn.Config(
      app,
      http=Protocol,
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
