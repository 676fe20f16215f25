"""The web application: a page, its uploads and the pictures of the gallery.

  GET  /               the page
  GET  /page.css       its style
  GET  /page.js        its program
  POST /search         the bytes of an image -> the nearest images, JSON;
                       ?part=LEFT,TOP,RIGHT,BOTTOM searches for a part of it
  GET  /gallery/ROW    a thumbnail of the gallery, JPEG
  GET  /gallery/ROW/large

The response to a request that fails is one line of plain text.
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

from fedreid_jax import errors
from fedreid_jax.apps.deploy import serving
from fedreid_jax.apps.deploy.search import search_page
from fedreid_jax.apps.deploy.serving import guards
from fedreid_jax.apps.deploy.serving.finder import Finder, Unreadable
from fedreid_jax.data.decoder import WHOLE, Part
from fedreid_jax.figures import html_page

MEBIBYTE = 1 << 20
# Images of the gallery are addressed by rows: no request contains a path.
_ROW = re.compile(r'\d{1,10}', re.ASCII)
_PART = re.compile(','.join([r'([01](?:\.\d{1,9})?)'] * 4), re.ASCII)


def make(
  finder: Finder,
  about: Sequence[tuple[str, str]],
  limit: int,
  failed: Callable[[Exception], str],
) -> ASGIApp:
  """Builds the application.

  Args:
    finder: search of the gallery.
    about: names and values that describe the search.
    limit: bytes of an upload.
    failed: called with an error of the program; returns the line that the
      response contains.
  """

  async def search(request: Request) -> Response:
    guards.check_origin(request)
    try:
      part = _part(request)
      data = await guards.body(request, limit)
    except ClientDisconnect:  # nobody reads the response
      return Response(status_code=400)
    try:
      # The search computes for long and would block other requests.
      return JSONResponse(await run_in_threadpool(finder.find, data, part))
    except Unreadable as error:
      status = 400 if error.is_image else 415
      reason = errors.printable(str(error))
      raise HTTPException(status, f'Not a usable image: {reason}.') from error

  def picture(request: Request) -> Response:
    row = request.path_params['row']
    if not _ROW.fullmatch(row) or int(row) >= len(finder):
      raise HTTPException(404, 'The gallery has no such image.')
    found = finder.picture(int(row), request.url.path.endswith('/large'))
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
      Route('/gallery/{row}/large', picture),
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
  # Outside of Starlette, whose error responses must have the headers, too.
  return guards.WithHeaders(app)


def _part(request: Request) -> Part:
  """Returns the part of the photograph that a request names.

  Raises:
    HTTPException: 400 for an invalid part.
  """
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
  """Returns the text of a file beside this module."""
  return resources.files(serving).joinpath(name).read_text('utf-8')
