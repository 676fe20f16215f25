"""Hooks of the documentation site.

A page may have these comments, each on a line of its own:

  <!-- options: NAME -->     the table of the fields of a group or component
  <!-- deviations: NAME -->  deviations in the docstring of a component
  <!-- api: NAME -->         an entry for each name in `__all__` of a package
  <!-- reference: options --> (or `commands`, `errors`)  the whole reference

Formulas become MathML, which browsers draw without a script. mkdocs.yml
has words for the search of a page (`extra: search_words`) and its factor
(`search_boost`). Pages of results have no table of contents.
"""

import ast
import functools
import html
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import reference as fields

ROOT = Path(__file__).parents[2]
COMMENT = re.compile(
  r'^<!-- (options|deviations|api|reference): ([\w.]+) -->$', re.M
)
FORMULA = re.compile(
  r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)
# Markdown of notebooks is converted without arithmatex.
PARAGRAPH = re.compile(r'<p>.*?</p>', re.DOTALL)
DOLLARS = re.compile(r'\$\$(.+?)\$\$|\$(.+?)\$', re.DOTALL)


def on_page_markdown(
  markdown: str, page: Any = None, config: Any = None, **_: Any
) -> str:
  """Replaces the comments of a page, and adds what its place asks for."""
  if page is not None and config is not None:
    _add_meta(page, config['extra'])
  made = {
    'reference': reference,
    'options': options,
    'deviations': deviations,
    'api': api,
  }
  return COMMENT.sub(lambda found: made[found[1]](found[2]), markdown)


def on_page_content(content: str, page: Any, **_: Any) -> str:
  """Replaces the formulas of a page by MathML."""
  if page.file.src_uri.endswith('.ipynb'):
    return PARAGRAPH.sub(lambda text: DOLLARS.sub(_dollars, text[0]), content)
  return FORMULA.sub(
    lambda found: _mathml(found[3], block=found[2] == '['), content
  )


def options(name: str) -> str:
  """Returns the table of the fields of a group."""
  return fields.table(name)


def deviations(name: str) -> str:
  """Returns the sentences on deviations in the docstring of a component.

  Args:
    name: module of `fedreid_jax/algorithms/`.

  Raises:
    LookupError: the docstring does not speak of deviations.
  """
  path = ROOT / 'fedreid_jax' / 'algorithms' / f'{name}.py'
  text = ast.get_docstring(ast.parse(path.read_text())) or ''
  _, begin, rest = text.partition('Deviations from the paper')
  if not begin:
    raise LookupError(f'{path} states no deviations from the paper')
  text = ' '.join((begin + rest).split())
  parts = re.split(r'(?=Deviations from (?:the )?released code:)', text)
  # Formulas in docstrings are plain text and not Markdown.
  return '\n\n'.join(fields.escaped(part.strip()) for part in parts)


def api(name: str) -> str:
  """Returns entries for mkdocstrings, one for each name in `__all__`."""
  package = importlib.import_module(name)
  return '\n\n'.join(f'::: {name}.{one}' for one in package.__all__)


@functools.cache
def reference(name: str) -> str:
  """Returns the reference of 'options', 'commands' or 'errors'."""
  if name == 'options':
    return fields.markdown()
  return _commands() if name == 'commands' else exit_codes()


def _commands() -> str:
  # In another process, because the modules of commands define flags.
  module = 'fedreid_jax.cli.reference'
  return subprocess.run(
    [sys.executable, '-m', module],
    check=True,
    cwd=ROOT,
    stdout=subprocess.PIPE,
    text=True,
  ).stdout


def exit_codes() -> str:
  """Returns the table of the classes of errors and their exit codes."""
  rows = ['| code | class in `fedreid_jax.errors` | meaning |', '|---|---|---|']
  for one in sorted(_below(errors.FedReIDError), key=lambda o: o.exit_code):
    about = ' '.join((one.__doc__ or '').split())
    rows.append(f'| {one.exit_code} | `{one.__name__}` | {about} |')
  return '\n'.join(rows)


def _below(base: type[errors.FedReIDError]) -> list[type[errors.FedReIDError]]:
  # Commands have errors of their own below these.
  found = [
    one for one in base.__subclasses__() if one.__module__ == errors.__name__
  ]
  return [deeper for one in found for deeper in (one, *_below(one))]


def _add_meta(page: Any, extra: dict[str, Any]) -> None:
  name = page.file.src_uri
  if words := extra['search_words'].get(name):
    page.meta['tags'] = words
  if boost := extra['search_boost'].get(name):
    page.meta['search'] = {'boost': boost}
  # Wide tables need the place of the table of contents.
  if name == 'results.md' or name.startswith('results/'):
    page.meta.setdefault('hide', []).append('toc')


def _dollars(found: re.Match[str]) -> str:
  return _mathml(found[1] or found[2], block=bool(found[1]))


def _mathml(formula: str, block: bool) -> str:
  # Imported here, because the tests of the pages need no package of the site.
  converter = importlib.import_module('latex2mathml.converter')
  text = html.unescape(formula).strip()
  if not block:
    return converter.convert(text)
  # Browsers let an element around a formula scroll, but not the formula.
  math = converter.convert(text, display='block')
  return f'<div class="formula">{math}</div>'
