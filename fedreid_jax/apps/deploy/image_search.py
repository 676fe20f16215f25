"""Images of a gallery that are nearest to query images, and a page of them."""

import base64
import filecmp
import functools
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fedreid_jax.data import decoder
from fedreid_jax.evaluation.index import MISSING, Gallery
from fedreid_jax.evaluation.strangers import Calibration
from fedreid_jax.figures import html_page

SIDE = 320  # largest side, pixels; a page shows it at half of it
SAME = 'same file'

STYLE = """
.row { display: grid; gap: 1rem; grid-template-columns: 11rem 1fr;
  align-items: start; }
ol.hits { list-style: none; margin: 0; padding: 0; display: grid; gap: .65rem;
  grid-template-columns: repeat(auto-fill, minmax(7.75rem, 1fr)); }
figure { margin: 0; padding: .4rem; background: var(--back);
  border: 2px solid transparent; border-radius: .4rem; height: 100%; }
figure.query { border-color: var(--mark); height: auto; }
figure img, .gone { display: flex; width: 100%; height: 10rem;
  object-fit: contain; align-items: center; justify-content: center;
  text-align: center; font-size: .85rem; }
.gone { border: 1px dashed var(--line); }
figcaption { margin-top: .4rem; font-size: .8rem; }
figcaption span { display: block; overflow-wrap: anywhere; }
.rank { font-weight: 600; }
.same { color: var(--mark); font-weight: 600; }
@media (max-width: 40rem) {
  .row { grid-template-columns: 1fr; }
  ol.hits { grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); }
  figure.query { max-width: 11rem; } }
"""


class Hit(NamedTuple):
  """An image of the gallery."""

  name: str  # path relative to the folder of the gallery
  path: Path
  distance: float  # to the query
  same: bool  # whether this is the file of the query, or has the same bytes
  strangers: str = ''  # '1 of 92' are as near at most, '' if not known
  origin: str = ''  # of a crop, its photograph and box
  row: int = MISSING  # of its vector


class Apart(NamedTuple):
  """Images of videos that are shown once for each moment.

  An image is left out if a nearer one of the same video is less than `seconds`
  before or after it.
  """

  seconds: float
  times: Mapping[str, float]  # of images from videos, seconds by name


TOGETHER = Apart(0.0, MappingProxyType({}))


class Answer(NamedTuple):
  """The images nearest to a query, the nearest first."""

  query: Path
  hits: list[Hit]


def search(
  gallery: Gallery,
  root: Path,
  names: list[str],
  vectors: np.ndarray,
  queries: Sequence[Path],
  k: int,
  exclude_same_file: bool = False,
  strangers: Calibration | None = None,
  origins: Mapping[str, str] = MappingProxyType({}),
  apart: Apart = TOGETHER,
) -> list[Answer]:
  """The k nearest images of every query, or all of a smaller gallery.

  An approximate index may find fewer.

  Args:
    gallery: vectors of the images, `[P, D]`, labelled with their rows.
    names: paths of the images relative to `root`, `P`.
    vectors: of the `Q` queries, float32 `[Q, D]`.
    exclude_same_file: whether to leave out images with the bytes of the query.
    strangers: distances of strangers, with which hits are compared.
    origins: photographs and boxes of crops by their names.
    apart: which images of videos are left out.
  """

  def chosen(
    number: int, rows: np.ndarray, distances: np.ndarray
  ) -> Iterator[Hit]:
    same = functools.partial(_same, queries[number])
    found = hits(root, names, rows, distances, same, strangers, origins)
    for hit in spread(found, apart):
      if not (hit.same and exclude_same_file):
        yield hit

  asked = k + exclude_same_file
  found = nearest(gallery, vectors, k, chosen, asked)
  return [Answer(*one) for one in zip(queries, found, strict=True)]


def nearest(
  gallery: Gallery,
  vectors: np.ndarray,
  k: int,
  chosen: Callable[[int, np.ndarray, np.ndarray], Iterator[Hit]],
  asked: int,
) -> list[list[Hit]]:
  """The k nearest images of every query that are chosen, or all of them.

  Args:
    vectors: of the `Q` queries, float32 `[Q, D]`.
    chosen: `(query, rows, distances) -> hits`, the nearest first.
    asked: number of images from which is chosen first; it grows as needed.
  """
  asked, wanted = min(asked, len(gallery)), min(k, len(gallery))
  while True:
    rows, distances, _ = gallery.search(vectors, asked)
    answers = [
      list(itertools.islice(chosen(number, found, near), wanted))
      for number, (found, near) in enumerate(zip(rows, distances, strict=True))
    ]
    # An approximate index may have no more.
    if asked == len(gallery) or all(
      len(answer) == wanted or MISSING in found
      for answer, found in zip(answers, rows, strict=True)
    ):
      return answers
    asked = min(2 * asked, len(gallery))


def spread(found: Iterable[Hit], apart: Apart) -> Iterator[Hit]:
  """Leaves out images of moments that a nearer image has shown."""
  seen: dict[str, list[float]] = {}
  for hit in found:
    time = apart.times.get(hit.name)
    if time is not None:
      # The frames of a video are in a folder of its name.
      moments = seen.setdefault(hit.name.rpartition('/')[0], [])
      if any(abs(time - one) < apart.seconds for one in moments):
        continue
      moments.append(time)
    yield hit


def hits(
  root: Path,
  names: list[str],
  rows: np.ndarray,
  distances: np.ndarray,
  same: Callable[[Path], bool],
  strangers: Calibration | None = None,
  origins: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Hit]:
  """Yields hits of rows int64 `[k]` at distances float32 `[k]`.

  Rows that an approximate index has not found, `MISSING`, are left out.
  """
  for row, distance in zip(rows.tolist(), distances, strict=True):
    if row == MISSING:
      continue
    name, near = names[row], float(distance)
    path, origin = root / name, origins.get(name, '')
    text = strangers.text(near) if strangers else ''
    yield Hit(name, path, near, same(path), text, origin, row)


def _same(query: Path, other: Path) -> bool:
  try:
    return os.path.samefile(query, other) or filecmp.cmp(
      query, other, shallow=False
    )
  except OSError:  # the images of stored vectors may be gone
    return query.resolve() == other


def thumbnail(
  source: Path | bytes,
  max_pixels: int = decoder.MAX_PIXELS,
  side: int = SIDE,
  part: decoder.Part = decoder.WHOLE,
) -> bytes | None:
  """The thumbnail of a file with sides up to `side`, None if unreadable.

  A file of more than `max_pixels` pixels is not decoded.
  """
  try:
    with decoder.open_image(source, max_pixels) as image:
      # A draft decodes a JPEG file at a lower resolution, of which a small part
      # would have too few pixels.
      if part == decoder.WHOLE:
        image.draft('RGB', (side, side))
      image = decoder.cut(ImageOps.exif_transpose(image), part)
      image = decoder.opaque(image).convert('RGB')
      image.thumbnail((side, side), Image.Resampling.BICUBIC)
      return _jpeg(image)
  except (OSError, SyntaxError, ValueError):
    return None


def _jpeg(image: Image.Image) -> bytes:
  stream = io.BytesIO()
  image.save(stream, 'JPEG', quality=80)
  return stream.getvalue()


def data_url(
  source: Path | bytes,
  max_pixels: int = decoder.MAX_PIXELS,
  part: decoder.Part = decoder.WHOLE,
) -> str | None:
  """The thumbnail as a `data:` URL, None if it cannot be read."""
  found = thumbnail(source, max_pixels, part=part)
  return None if found is None else _url(found)


def array_url(pixels: np.ndarray) -> str:
  """Pixels, uint8 `[rows, columns, 3]`, as a `data:` URL."""
  return _url(_jpeg(Image.fromarray(pixels)))


def _url(jpeg: bytes) -> str:
  return f'data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}'


def page(
  answers: Sequence[Answer],
  about: Sequence[tuple[str, str]],
  max_pixels: int = decoder.MAX_PIXELS,
) -> str:
  """An HTML page of queries and the images nearest to each.

  A file of more than `max_pixels` pixels is not shown.
  """

  # A picture may be the answer to many queries.
  @functools.lru_cache(maxsize=1024)
  def image(path: Path) -> str | None:
    return data_url(path, max_pixels)

  def picture(path: Path, alt: str) -> str:
    url = image(path)
    if url is None:
      return f'<div class="gone" role="img" aria-label="{alt}">no picture</div>'
    return f'<img src="{url}" alt="{alt}">'

  def hit(rank: int, one: Hit) -> str:
    name, distance = html_page.text(one.name), f'{one.distance:.4f}'
    same = f'<span class="same">{SAME}</span>' if one.same else ''
    strangers = (
      f'<span>strangers as near: {one.strangers}</span>'
      if one.strangers
      else ''
    )
    origin = f'<span>{html_page.text(one.origin)}</span>' if one.origin else ''
    # A narrow column breaks a path after a slash.
    folded = name.replace('/', '/<wbr>')
    shown = picture(one.path, f'rank {rank}: {name}, distance {distance}')
    return (
      f'<li><figure>{shown}<figcaption>'
      f'<span class="rank">rank {rank}</span>'
      f'<span>distance {distance}</span>{strangers}<span>{folded}</span>'
      f'{origin}{same}'
      '</figcaption></figure></li>'
    )

  def section(number: int, answer: Answer) -> str:
    name = html_page.text(str(answer.query))
    nearest = '\n'.join(hit(k, one) for k, one in enumerate(answer.hits, 1))
    return (
      f'<section aria-labelledby="q{number}">\n'
      f'<h2 id="q{number}">Query {number}: {name}</h2>\n<div class="row">\n'
      f'<figure class="query">{picture(answer.query, f"query: {name}")}'
      '<figcaption><span class="rank">query</span>'
      f'<span>{html_page.text(answer.query.name)}</span></figcaption></figure>\n'
      f'<ol class="hits">\n{nearest}\n</ol>\n</div>\n</section>'
    )

  sections = '\n'.join(section(k, one) for k, one in enumerate(answers, 1))
  contents = _contents(answers) if len(answers) > 1 else ''
  body = f'{html_page.facts(about)}{contents}{sections}'
  return html_page.document('Search results', body, STYLE)


def _contents(answers: Sequence[Answer]) -> str:
  links = ''.join(
    f'<li><a href="#q{k}">{html_page.text(str(one.query))}</a></li>'
    for k, one in enumerate(answers, 1)
  )
  return f'<nav aria-label="Queries"><ol>{links}</ol></nav>\n'
