"""Results of a search as one HTML file that contains its pictures."""

import functools
from collections.abc import Sequence
from pathlib import Path

from fedreid_jax.apps.deploy.search import thumbnail
from fedreid_jax.apps.deploy.search.image_search import Answer, Hit
from fedreid_jax.data import decoder
from fedreid_jax.figures import html_page

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


def page(
  answers: Sequence[Answer],
  about: Sequence[tuple[str, str]],
  max_pixels: int = decoder.MAX_PIXELS,
) -> str:
  """Returns an HTML page of queries and the images nearest to each.

  Args:
    answers: images nearest to the queries.
    about: names and values that describe the search.
    max_pixels: largest number of pixels of a file that is shown.
  """

  # A picture may be the answer to many queries.
  @functools.lru_cache(maxsize=1024)
  def image(path: Path) -> str | None:
    return thumbnail.data_url(path, max_pixels)

  def picture(path: Path, alt: str) -> str:
    url = image(path)
    if url is None:
      return f'<div class="gone" role="img" aria-label="{alt}">no picture</div>'
    return f'<img src="{url}" alt="{alt}">'

  def hit(rank: int, one: Hit) -> str:
    name, distance = html_page.text(one.name), f'{one.distance:.4f}'
    same = f'<span class="same">{SAME}</span>' if one.same else ''
    shown = picture(one.path, f'rank {rank}: {name}, distance {distance}')
    return (
      f'<li><figure>{shown}<figcaption>'
      f'<span class="rank">rank {rank}</span>'
      f'<span>distance {distance}</span><span>{_folded(name)}</span>{same}'
      '</figcaption></figure></li>'
    )

  def section(number: int, answer: Answer) -> str:
    name = html_page.text(str(answer.query))
    hits = '\n'.join(hit(k, one) for k, one in enumerate(answer.hits, 1))
    return (
      f'<section aria-labelledby="q{number}">\n'
      f'<h2 id="q{number}">Query {number}: {name}</h2>\n<div class="row">\n'
      f'<figure class="query">{picture(answer.query, f"query: {name}")}'
      '<figcaption><span class="rank">query</span>'
      f'<span>{html_page.text(answer.query.name)}</span></figcaption></figure>\n'
      f'<ol class="hits">\n{hits}\n</ol>\n</div>\n</section>'
    )

  sections = '\n'.join(section(k, one) for k, one in enumerate(answers, 1))
  body = f'{html_page.facts(about)}{_contents(answers)}{sections}'
  return html_page.document('Search results', body, STYLE)


def _contents(answers: Sequence[Answer]) -> str:
  """Returns links to the queries, or '' for a single one."""
  if len(answers) < 2:
    return ''
  links = ''.join(
    f'<li><a href="#q{k}">{html_page.text(str(one.query))}</a></li>'
    for k, one in enumerate(answers, 1)
  )
  return f'<nav aria-label="Queries"><ol>{links}</ol></nav>\n'


def _folded(name: str) -> str:
  """Returns a path that a narrow column breaks after a slash."""
  return name.replace('/', '/<wbr>')
