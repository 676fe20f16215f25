"""Requests that the server refuses, and headers that restrict the browser.

A page of another site can send requests to this computer.
"""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = 5.0  # in which a request from this computer arrives
# The name of the host shows whether a page of another site has given its name
# the address of this computer (DNS rebinding).
HOSTS = ('127.0.0.1', 'localhost')
POLICY = (
  "default-src 'none'; script-src 'self'; style-src 'self'; "
  "img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
  "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
  'Content-Security-Policy': POLICY,
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cache-Control': 'no-store',  # photographs of persons
}


class WithHeaders:
  """Adds `HEADERS` to all responses, also to those of errors."""

  def __init__(self, app: ASGIApp):
    """Keeps the application that responds."""
    self._app = app

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Responds to a request."""

    async def add(message: Message) -> None:
      if message['type'] == 'http.response.start':
        MutableHeaders(scope=message).update(HEADERS)
      await send(message)

    await self._app(scope, receive, add)


def check_origin(request: Request) -> None:
  """Refuses a request from a page of another site (request forgery).

  Raises:
    HTTPException: 403.
  """
  headers = request.headers
  # Programs other than browsers send neither of the two headers, so that the
  # defaults accept them.
  own = f'http://{headers["host"]}'
  site = headers.get('sec-fetch-site', 'same-origin')
  if headers.get('origin', own) != own or site not in ('same-origin', 'none'):
    raise HTTPException(403, 'Only the page of this server may send images.')


async def body(request: Request, limit: int) -> bytes:
  """Returns the body of a request, of at most `limit` bytes.

  Raises:
    HTTPException: 413 for a larger body, 400 for an empty one, 408 for one that
      takes more than `SECONDS`.
  """
  # The length that a request declares may be absent or wrong, so that the bytes
  # are counted as they arrive.
  found = bytearray()
  try:
    async with asyncio.timeout(SECONDS):
      async for part in request.stream():
        found += part
        if len(found) > limit:
          large = f'The file is larger than {limit >> 20} MiB.'
          raise HTTPException(413, large)
  except TimeoutError:
    raise HTTPException(408, 'The file did not arrive in time.') from None
  if not found:
    raise HTTPException(400, 'The file is empty.')
  return bytes(found)
