"""The web application: a page, its uploads and the pictures of the gallery.

  GET  /               the page
  GET  /page.css       its style
  GET  /page.js        its program
  POST /search         the bytes of an image -> the nearest images, JSON
  GET  /gallery/ROW    a thumbnail of the gallery, JPEG

An image of the gallery is addressed by its row, so that no request contains a
path. A failure is one line of plain text.
"""

import re
from collections.abc import Callable, Sequence
from importlib import resources

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
  JSONResponse,
  PlainTextResponse,
  Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from fedreid_jax import errors, serving
from fedreid_jax.figures import html_page, search_page
from fedreid_jax.serving import guards
from fedreid_jax.serving.finder import Finder, Unreadable

MEBIBYTE = 1 << 20
_ROW = re.compile(r'\d{1,10}', re.ASCII)


def make(
  finder: Finder,
  about: Sequence[tuple[str, str]],
  limit: int,
  failed: Callable[[Exception], str],
) -> ASGIApp:
  """Builds the application.

  Args:
    finder: searches the gallery.
    about: names and values that describe the search.
    limit: bytes of an upload.
    failed: called with an error of the program; returns the line to show.
  """

  async def search(request: Request) -> Response:
    guards.check_origin(request)
    try:
      data = await guards.body(request, limit)
    except ClientDisconnect:  # nobody reads the response
      return Response(status_code=400)
    try:
      return JSONResponse(await run_in_threadpool(finder.find, data))
    except Unreadable as error:
      status = 400 if error.is_image else 415
      reason = errors.printable(str(error))
      raise HTTPException(status, f'Not a usable image: {reason}.') from error

  def picture(request: Request) -> Response:
    row = request.path_params['row']
    if not _ROW.fullmatch(row) or int(row) >= len(finder):
      raise HTTPException(404, 'The gallery has no such image.')
    found = finder.picture(int(row))
    if found is None:
      raise HTTPException(404, 'The image cannot be read.')
    return Response(found, media_type='image/jpeg')

  async def unexpected(request: Request, error: Exception) -> Response:
    del request
    return PlainTextResponse(failed(error), 500)

  style = html_page.STYLE + search_page.STYLE + _file('page.css')
  app = Starlette(
    routes=[
      _fixed('/', _page(about, limit), 'text/html'),
      _fixed('/page.css', style, 'text/css'),
      _fixed('/page.js', _file('page.js'), 'text/javascript'),
      Route('/search', search, methods=['POST']),
      Route('/gallery/{row}', picture),
    ],
    middleware=[
      Middleware(
        TrustedHostMiddleware,
        allowed_hosts=list(guards.HOSTS),
        www_redirect=False,
      )
    ],
    exception_handlers={Exception: unexpected},
  )
  return guards.WithHeaders(app)


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
  """Returns the text of a file beside this module."""
  return resources.files(serving).joinpath(name).read_text('utf-8')
