"""The tables of all fields as Markdown, for the site.

`python -m fedreid_jax.config.reference` prints them, and `fedreid list fields`
the same as plain text.
"""

import inspect
import re
from typing import Any

from fedreid_jax.config import schema
from fedreid_jax.core import options

# Code stays as it is, and other letters must not be read as Markdown.
_SPECIAL = re.compile(r'`[^`]*`|[*_<|\[\]]')


def markdown() -> str:
  """Returns a Markdown table for every group of fields."""
  parts = []
  for group, declaration in _groups().items():
    title = f'`{group}`' if group else 'Top level'
    meaning = inspect.cleandoc(declaration.__doc__)
    parts.append(f'## {title}\n\n{meaning}\n\n{table(group)}\n')
  return '\n'.join(parts)


def _groups() -> dict[str, Any]:
  return schema.groups(schema.evaluators_of_package())


def table(group: str) -> str:
  """The Markdown table of the fields of one group, such as 'dfh'.

  Raises:
    KeyError: there is no such group.
  """
  lines = ['| field | default | allowed | meaning |', '|---|---|---|---|']
  for field in options.fields(_groups()[group]):
    cells = (f'`{field.default!r}`', f'`{field.allowed()}`', field.meaning)
    row = ' | '.join(cell.replace('|', '\\|') for cell in cells)
    lines.append(f'| `{field.name}` | {row} |')
  return '\n'.join(lines)


def escaped(text: str) -> str:
  """Returns plain text, in which `code` is code, as Markdown."""
  return _SPECIAL.sub(
    lambda one: one[0] if one[0].startswith('`') else f'\\{one[0]}', text
  )


def entries() -> list[str]:
  """Returns all fields as plain text, two lines per field."""
  return [
    f'  {name} = {field.default!r} ({field.allowed()})\n      {field.meaning}'
    for name, field in schema.fields(schema.evaluators_of_package()).items()
  ]


if __name__ == '__main__':
  print(markdown(), end='')
