"""The table of all fields: `python -m fedreid_jax.config.reference > FILE`.

`docs/options.md` is its output. `--help` shows the same as plain text.
"""

import inspect

from fedreid_jax.config import schema
from fedreid_jax.core import options

INTRODUCTION = """# Options

All fields of a configuration. `--config.FIELD=VALUE` changes one on the command
line, `--config=RECIPE:PRESET,FIELD=VALUE` within the name of a recipe, and
`--set=FIELD=VALUE` in a saved run or a table. Values are Python literals or
plain words. This file is made by
`python -m fedreid_jax.config.reference > docs/options.md`.
"""


def markdown() -> str:
  """Returns a table for every group of fields."""
  parts = [INTRODUCTION]
  for group, declaration in schema.groups().items():
    title = f'`{group}`' if group else 'Top level'
    lines = [
      f'## {title}\n\n{inspect.cleandoc(declaration.__doc__)}\n',
      '| field | default | allowed | meaning |',
      '|---|---|---|---|',
    ]
    for field in options.fields(declaration):
      cells = (f'`{field.default!r}`', f'`{field.allowed()}`', field.meaning)
      row = ' | '.join(cell.replace('|', '\\|') for cell in cells)
      lines.append(f'| `{field.name}` | {row} |')
    parts.append('\n'.join(lines) + '\n')
  return '\n'.join(parts)


def text() -> str:
  """Returns all fields in plain text, two lines each."""
  return '\n'.join(
    f'  {name} = {field.default!r} ({field.allowed()})\n      {field.meaning}'
    for name, field in schema.fields().items()
  )


if __name__ == '__main__':
  print(markdown(), end='')
