"""Hooks of the documentation site.

A page may have these comments, each on a line of its own:

  <!-- options: NAME -->     the table of the fields of a group or component
  <!-- deviations: NAME -->  deviations in the docstring of a component
  <!-- api: NAME -->         an entry for each name in `__all__` of a package

Formulas become MathML, which browsers draw without a script.
"""

import ast
import html
import importlib
import re
from pathlib import Path
from typing import Any

from fedreid_jax.config import reference

ROOT = Path(__file__).parents[2]
COMMENT = re.compile(r'^<!-- (options|deviations|api): (\w+) -->$', re.M)
# Formulas in docstrings are plain text and not Markdown, but code is code.
SPECIAL = re.compile(r'`[^`]*`|[*_<|\[\]]')
FORMULA = re.compile(
  r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)
# Markdown of notebooks is converted without arithmatex.
PARAGRAPH = re.compile(r'<p>.*?</p>', re.DOTALL)
DOLLARS = re.compile(r'\$\$(.+?)\$\$|\$(.+?)\$', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
  """Replaces the comments of a page."""
  made = {
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
  """Returns the table of the fields of a group, as docs/options.md has it."""
  return reference.table(name)


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
  return '\n\n'.join(SPECIAL.sub(_escaped, part.strip()) for part in parts)


def api(name: str) -> str:
  """Returns entries for mkdocstrings, one for each name in `__all__`."""
  package = importlib.import_module(name)
  return '\n\n'.join(f'::: {name}.{one}' for one in package.__all__)


def _escaped(found: re.Match[str]) -> str:
  return found[0] if found[0].startswith('`') else f'\\{found[0]}'


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
