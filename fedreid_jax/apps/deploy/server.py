"""A local web page that searches a gallery for a photograph.

  GET  /               the page
  GET  /page.css       its style
  GET  /page.js        its program
  POST /search         the bytes of an image -> the nearest images, JSON;
                       ?part=LEFT,TOP,RIGHT,BOTTOM searches for a part of it
  POST /why/ROW        the bytes of an image, with the same ?part= -> why it
                       matches an image of the gallery, JSON
  GET  /gallery/ROW    a thumbnail of the gallery, JPEG
  GET  /gallery/ROW/large

The response to a request that fails is one line of plain text. Only programs on
this computer can reach the server. Since a page of another site can send
requests to this computer, too, they are refused.
"""

import asyncio
import contextlib
import functools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedreid_jax import errors
from fedreid_jax.apps import deploy
from fedreid_jax.apps.deploy import explained, image_search
from fedreid_jax.apps.deploy.vectors import Folder
from fedreid_jax.data import decoder
from fedreid_jax.data.decoder import WHOLE, Part
from fedreid_jax.data.folder.folder_layout import Label
from fedreid_jax.evaluation.index import Gallery
from fedreid_jax.evaluation.strangers import Calibration
from fedreid_jax.figures import html_page
from fedreid_jax.training.snapshot import Snapshot

HOST = '127.0.0.1'
CONNECTIONS = 32  # more are refused: each may hold an upload in memory
# Connections without a whole request. The oldest one is closed for a new one,
# so that clients that send half a request do not exclude others.
INCOMPLETE = CONNECTIONS // 2
SECONDS = 5.0  # in which a request from this computer arrives
# The name of the host shows whether a page of another site has given its name
# the address of this computer (DNS rebinding). The whole header counts: what
# follows the first colon may be anything in a forged one.
HOSTS = re.compile(r'(127\.0\.0\.1|localhost)(:[0-9]{1,5})?', re.IGNORECASE)
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
MEBIBYTE = 1 << 20
KEPT = 1024  # thumbnails in memory
STRANGERS = 100  # images of the gallery that may be the control of a match
LARGE = 1600  # largest side of an enlarged image, pixels
# Images of the gallery are addressed by rows: no request contains a path.
_ROW = re.compile(r'\d{1,10}', re.ASCII)
_PART = re.compile(','.join([r'([01](?:\.\d{1,9})?)'] * 4), re.ASCII)


class Settings(NamedTuple):
  """Settings of a search."""

  k: int  # number of images to find
  modality: int | None  # of the queries, 0 visible and 1 infrared
  labels: Mapping[str, Label]  # known identities and cameras by image names
  strangers: Calibration | None = None  # with whom hits are compared
  # Photographs and boxes of crops by their names.
  origins: Mapping[str, str] = MappingProxyType({})
  apart: image_search.Apart = image_search.TOGETHER  # what is left out
  gallery_modality: int | None = None


class Unreadable(Exception):
  """An upload that is not a usable image, or not in the format of one."""

  def __init__(self, reason: str, is_image: bool):
    super().__init__(reason)
    self.is_image = is_image


class Unexplained(Exception):
  """A match that cannot be explained, because an image is missing."""


class Finder:
  """Search for an uploaded photograph, which no file stores.

  Several threads can call the methods.
  """

  def __init__(
    self, model: Snapshot, gallery: Gallery, folder: Folder, settings: Settings
  ):
    """Compiles the search of vectors `[P, D]`, labelled with their rows."""
    self._model, self._gallery, self._settings = model, gallery, settings
    self._names, self._root = folder.names, folder.root.resolve()
    self._decoder = model.config.data.decoder()
    # The locks bound the memory of many simultaneous requests, each of which
    # would decode a picture.
    self._one_query = threading.Lock()
    self._pictures = threading.Semaphore(os.cpu_count() or 1)
    self._thumbnail = functools.lru_cache(KEPT)(self._read)
    self._compile()

  def __len__(self) -> int:
    return len(self._names)

  def find(
    self, data: bytes, part: decoder.Part = decoder.WHOLE
  ) -> dict[str, Any]:
    """Values for JSON about the images that are nearest to an uploaded one.

    They are 'query', a URL that contains the thumbnail; 'hits', the nearest
    first, with 'row', 'name', 'distance', 'same' (whether the file has the
    bytes of the query), 'identity' and 'camera' ('' if unknown),
    'similarity' (1 - distance) for the cosine distance, 'strangers' ('1 of 92')
    if such distances are known, and 'origin' of a crop; and 'seconds'.

    Raises:
      Unreadable: for bytes that are not a usable image.
    """
    started = time.monotonic()
    with self._one_query:
      pixels = self._decoded(data, part)
      url = image_search.data_url(data, self._decoder.max_pixels, part)
      vectors = self._embedded(pixels)

      def chosen(number: int, rows: np.ndarray, distances: np.ndarray):
        hits = image_search.hits(
          self._root,
          self._names,
          rows,
          distances,
          functools.partial(self._has_bytes, data),
          self._settings.strangers,
          self._settings.origins,
        )
        return image_search.spread(hits, self._settings.apart)

      k = self._settings.k
      (hits,) = image_search.nearest(self._gallery, vectors, k, chosen, k)
    shown = [self._described(hit) for hit in hits]
    seconds = time.monotonic() - started
    return {'query': url, 'hits': shown, 'seconds': seconds}

  def explain(
    self, data: bytes, part: decoder.Part, row: int
  ) -> dict[str, Any]:
    """Values for JSON that say why an uploaded image matches one of a row.

    `explained.describe` has their names.

    Raises:
      Unreadable: for bytes that are not a usable image.
      Unexplained: if the image of the row, or those of all strangers, cannot be
        read.
      ConfigError: for a model that cannot explain.
    """
    with self._one_query:
      query, match = self._decoded(data, part), self._pixels(row)
      if match is None:
        raise Unexplained('The image cannot be read.')
      stranger = self._stranger(query, row)
      if stranger is None:
        raise Unexplained('The gallery has no image of a stranger to compare.')
      pixels = np.stack([query, match, stranger])
      other = self._settings.gallery_modality or 0
      kinds = [self._settings.modality or 0, other, other]
      found = self._model.explain(pixels, kinds)
    return explained.describe(pixels, found)

  def _pixels(self, row: int) -> np.ndarray | None:
    path = self._inside(self._root / self._names[row])
    with contextlib.suppress(OSError, ValueError):
      return path and decoder.decode(path.read_bytes(), self._decoder)
    return None

  def _stranger(self, query: np.ndarray, row: int) -> np.ndarray | None:
    """The image least similar to a query, of `STRANGERS` over the gallery.

    It has another known identity than the image of the row, or none. An image
    whose file cannot be read is passed over.
    """
    size = min(STRANGERS, len(self))
    rows = np.linspace(0, len(self) - 1, size).astype(int)
    vector = self._embedded(query)[0]
    vectors = np.asarray(self._gallery.vectors[rows])
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
    own = self._label(self._names[row]).identity
    for other in rows[np.argsort(vectors @ vector / lengths, kind='stable')]:
      identity = self._label(self._names[other]).identity
      if other == row or own and identity == own:
        continue
      found = self._pixels(int(other))
      if found is not None:
        return found
    return None

  def picture(self, row: int, large: bool = False) -> bytes | None:
    """Encodes the thumbnail of an image of the gallery as JPEG.

    The sides of a `large` one are up to `LARGE`, and it is not cached. The
    result is None for a file that cannot be read or is outside the gallery's
    folder.
    """
    with self._pictures:
      return self._read(row, LARGE) if large else self._thumbnail(row)

  def _read(self, row: int, side: int = image_search.SIDE) -> bytes | None:
    path = self._inside(self._root / self._names[row])
    return path and image_search.thumbnail(path, self._decoder.max_pixels, side)

  def _inside(self, path: Path) -> Path | None:
    """The resolved path of a file, None if it is outside the folder."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
      # A name with `..` or a symbolic link may lead outside.
      target = path.resolve(strict=True)
      if target.is_relative_to(self._root) and target.is_file():
        return target
    return None

  def _has_bytes(self, data: bytes, path: Path) -> bool:
    with contextlib.suppress(OSError):
      file = self._inside(path)
      return (
        file is not None
        # Most files have another size and need not be read.
        and file.stat().st_size == len(data)
        and file.read_bytes() == data
      )
    return False

  def _decoded(self, data: bytes, part: decoder.Part) -> np.ndarray:
    try:
      decoder.open_image(data, self._decoder.max_pixels).close()
    except OSError as error:
      raise Unreadable(str(error), is_image=False) from error
    except ValueError as error:
      raise Unreadable(str(error), is_image=True) from error
    try:
      return decoder.decode(data, self._decoder, part)
    except ValueError as error:
      raise Unreadable(str(error), is_image=True) from error

  def _compile(self) -> None:
    """Searches for a black image: no user should wait for the compilation."""
    shape = self._decoder.height, self._decoder.width, self._decoder.channels
    vectors = self._embedded(np.zeros(shape, np.uint8))
    self._gallery.search(vectors, min(self._settings.k, len(self._gallery)))

  def _embedded(self, pixels: np.ndarray) -> np.ndarray:
    """The vector of an image, float32 `[1, D]`."""
    kind = self._settings.modality
    kinds = None if kind is None else [kind]
    # A batch of the evaluation is padded and takes as long as if it were full.
    return self._model.embed(pixels[None], kinds, batch=1)

  def _label(self, name: str) -> Label:
    return self._settings.labels.get(name, Label('', ''))

  def _described(self, hit: image_search.Hit) -> dict[str, Any]:
    label = self._label(hit.name)
    found = {
      'row': hit.row,
      'name': hit.name,
      'distance': hit.distance,
      'same': hit.same,
      'identity': label.identity,
      'camera': label.camera,
    }
    if self._gallery.metric == 'cosine':
      found['similarity'] = 1 - hit.distance
    if hit.strangers:
      found['strangers'] = hit.strangers
    if hit.origin:
      found['origin'] = hit.origin
    return found


def make_app(
  finder: Finder,
  about: Sequence[tuple[str, str]],
  limit: int,
  failed: Callable[[Exception], str],
) -> ASGIApp:
  """Builds the application; an upload has at most `limit` bytes.

  `failed` gets an error of the program and returns the line of the response.
  """

  async def answered(
    request: Request, answer: Callable[..., dict[str, Any]], *about: Any
  ) -> Response:
    try:
      part = _part(request)
      data = await _body(request, limit)
    except ClientDisconnect:  # nobody reads the response
      return Response(status_code=400)
    try:
      # The computation is long and would block other requests.
      return JSONResponse(await run_in_threadpool(answer, data, part, *about))
    except Unreadable as error:
      status = 400 if error.is_image else 415
      reason = errors.printable(str(error))
      raise HTTPException(status, f'Not a usable image: {reason}.') from error
    except Unexplained as error:
      raise HTTPException(404, str(error)) from error

  async def search(request: Request) -> Response:
    _check_origin(request)
    return await answered(request, finder.find)

  async def why(request: Request) -> Response:
    _check_origin(request)
    row = _row(request, len(finder))
    try:
      return await answered(request, finder.explain, row)
    except errors.ConfigError as error:
      reason = errors.printable(error.what)
      raise HTTPException(501, f'No explanation: {reason}.') from error

  def picture(request: Request) -> Response:
    row = _row(request, len(finder))
    found = finder.picture(row, request.url.path.endswith('/large'))
    if found is None:
      raise HTTPException(404, 'The image cannot be read.')
    return Response(found, media_type='image/jpeg')

  async def unexpected(request: Request, error: Exception) -> Response:
    del request
    return PlainTextResponse(failed(error), 500)

  style = html_page.STYLE + image_search.STYLE + _file('page.css')
  app = Starlette(
    routes=[
      _fixed('/', _page(about, limit), 'text/html'),
      _fixed('/page.css', style, 'text/css'),
      _fixed('/page.js', _file('page.js'), 'text/javascript'),
      Route('/search', search, methods=['POST']),
      Route('/why/{row}', why, methods=['POST']),
      Route('/gallery/{row}', picture),
      Route('/gallery/{row}/large', picture),
    ],
    exception_handlers={Exception: unexpected},
  )
  # Outside of Starlette, whose error responses must have the headers, too.
  return _WithHeaders(app)


def _row(request: Request, size: int) -> int:
  """The row that a request names; 404 if the gallery has none."""
  row = request.path_params['row']
  if not _ROW.fullmatch(row) or int(row) >= size:
    raise HTTPException(404, 'The gallery has no such image.')
  return int(row)


def _part(request: Request) -> Part:
  """The part of the photograph that a request names; 400 if invalid."""
  text = request.query_params.get('part')
  if text is None:
    return WHOLE
  match = _PART.fullmatch(text)
  if match:
    left, top, right, bottom = map(float, match.groups())
    if left < right <= 1 and top < bottom <= 1:
      return left, top, right, bottom
  raise HTTPException(400, 'The part is not four fractions of the image.')


def _fixed(path: str, text: str, kind: str) -> Route:
  return Route(path, lambda _: Response(text, media_type=kind))


def _page(about: Sequence[tuple[str, str]], limit: int) -> str:
  head = (
    '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="page.css">\n'
    '<script src="page.js" defer></script>'
  )
  form = _file('form.html').replace('LIMIT', str(limit))
  return html_page.with_head(
    'Search the gallery', head, f'{html_page.facts(about)}{form}'
  )


def _file(name: str) -> str:
  return resources.files(deploy).joinpath('page', name).read_text('utf-8')


class _WithHeaders:
  """Adds `HEADERS` to all responses, and refuses other names of the host."""

  def __init__(self, app: ASGIApp):
    self._app = app

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    async def add(message: Message) -> None:
      if message['type'] == 'http.response.start':
        MutableHeaders(scope=message).update(HEADERS)
      await send(message)

    app = self._app
    if scope['type'] == 'http':
      hosts = Headers(scope=scope).getlist('host')
      if len(hosts) != 1 or not HOSTS.fullmatch(hosts[0]):
        app = PlainTextResponse('Another name of this computer.', 400)
    await app(scope, receive, add)


def _check_origin(request: Request) -> None:
  """Refuses, with 403, a page of another site (request forgery)."""
  headers = request.headers
  # Programs other than browsers send neither of the two headers, so that the
  # defaults accept them.
  own = f'http://{headers["host"]}'
  site = headers.get('sec-fetch-site', 'same-origin')
  if headers.get('origin', own) != own or site not in ('same-origin', 'none'):
    raise HTTPException(403, 'Only the page of this server may send images.')


async def _body(request: Request, limit: int) -> bytes:
  """Reads the body; 413 if too long, 400 if empty, 408 after `SECONDS`."""
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


class _Protocol(H11Protocol):
  """HTTP with a limit of the time in which a request must be complete."""

  cycle: Any  # None before the first request, which uvicorn does not declare

  def connection_made(self, transport: asyncio.Transport) -> None:
    super().connection_made(transport)
    self._arm()
    connections: Any = self.connections  # whose type uvicorn does not declare
    by_age = sorted(connections, key=lambda one: one.since)
    waiting = [one for one in by_age if one.is_incomplete]
    # A negative number would count from the end.
    for one in waiting[: max(len(waiting) - INCOMPLETE, 0)]:
      one.transport.abort()

  def connection_lost(self, exc: Exception | None) -> None:
    self._timer.cancel()
    super().connection_lost(exc)

  def on_response_complete(self) -> None:
    super().on_response_complete()
    self._timer.cancel()
    self._arm()

  @property
  def is_incomplete(self) -> bool:
    cycle = self.cycle
    return cycle is None or cycle.response_complete or cycle.more_body

  def _arm(self) -> None:
    # Uvicorn limits only the time between two requests.
    self.since = self.loop.time()
    self._timer = self.loop.call_later(SECONDS, self._give_up)

  def _give_up(self) -> None:
    # The application responds to a late body itself (`_body`).
    if self.cycle is None or self.cycle.response_complete:
      self.transport.abort()


def listen(port: int) -> socket.socket:
  """A socket of the loopback address; port 0 is any free one.

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
  """The URL of a socket."""
  return f'http://{HOST}:{of.getsockname()[1]}/'


def make_server(app: ASGIApp) -> uvicorn.Server:
  """A server of an application that prints nothing."""
  return uvicorn.Server(
    uvicorn.Config(
      app,
      http=_Protocol,
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
    make_server(app).run(sockets=[at])
