"""An HTML file that needs no other file and no network."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

from fedreid_jax import errors

STYLE = """
:root { color-scheme: light dark; --line: #8a8f98; --back: #f3f4f6;
  --mark: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --back: #26292e; --mark: #8ec5ff; } }
* { box-sizing: border-box; }
body { font: 1rem/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
  max-width: 100rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.125rem; margin: 0 0 .75rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .75rem;
  margin: 0 0 1rem; font-size: .9rem; }
dt { font-weight: 600; }
dd { margin: 0; overflow-wrap: anywhere; }
nav ol { margin: 0 0 1rem; padding-left: 2rem; }
nav a { color: var(--mark); overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; }
  dd { margin: 0 0 .4rem; } }
"""


def document(title: str, body: str, style: str = '') -> str:
  """A page with inline style and pictures, whose first heading is the title."""
  # Pictures are data URLs. The policy allows no file from elsewhere.
  head = (
    '<meta http-equiv="Content-Security-Policy" content="default-src '
    "'none'; img-src data:; style-src 'unsafe-inline'\">\n"
    f'<style>{STYLE}{style}</style>'
  )
  return with_head(title, head, body)


def with_head(title: str, head: str, body: str) -> str:
  """Returns a page whose `head` has the style and the policy."""
  return (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{text(title)}</title>\n{head}\n</head>\n'
    f'<body>\n<main>\n<h1>{text(title)}</h1>\n{body}\n</main>\n</body>\n'
    '</html>\n'
  )


def text(value: Any) -> str:
  """Returns a value as escaped text on one line."""
  return html.escape(errors.printable(str(value)))


def prose(words: str) -> str:
  """Returns escaped text, in which `words` between backticks are code."""
  parts = text(words).split('`')
  if len(parts) % 2 == 0:  # a backtick without a partner is a letter
    return text(words)
  return ''.join(
    f'<code>{part}</code>' if number % 2 else part
    for number, part in enumerate(parts)
  )


def text_block(lines: str) -> str:
  """Returns lines of text as a preformatted block, escaped."""
  shown = '\n'.join(errors.printable(line) for line in lines.split('\n'))
  return f'<pre tabindex="0">{html.escape(shown)}</pre>\n'


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
  """Returns names and values as a description list."""
  rows = ''.join(
    f'<dt>{text(name)}</dt><dd>{prose(str(value))}</dd>'
    for name, value in pairs
  )
  return f'<dl>{rows}</dl>\n'


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """Returns a table that scrolls if it is wider than the page."""
  first = ''.join(f'<th scope="col">{text(name)}</th>' for name in header)
  others = ''.join(
    f'<tr>{"".join(f"<td>{text(cell)}</td>" for cell in row)}</tr>\n'
    for row in rows
  )
  return (
    '<div class="wide" tabindex="0"><table>\n'
    f'<thead><tr>{first}</tr></thead>\n<tbody>\n{others}</tbody>\n</table></div>\n'
  )


def figure(drawn: Any, alt: str) -> str:
  """A Matplotlib figure as a picture, described in words by `alt`."""
  stream = io.BytesIO()
  drawn.savefig(stream, format='png', dpi=130)
  code = base64.b64encode(stream.getvalue()).decode()
  width = int(drawn.get_size_inches()[0] * 96)
  return (
    f'<img src="data:image/png;base64,{code}" alt="{text(alt)}" '
    f'style="width:{width}px">\n'
  )


def section(anchor: str, title: str, content: str) -> str:
  """Returns a section with a heading that can be linked to."""
  return (
    f'<section aria-labelledby="{anchor}">\n'
    f'<h2 id="{anchor}">{text(title)}</h2>\n{content}</section>\n'
  )
