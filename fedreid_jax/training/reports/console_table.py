"""Tables for a terminal of any width, in which nothing is cut.

Without a terminal, in a file or a pipe, they have the width of one of 80
columns.
"""

import itertools
from collections.abc import Collection, Sequence

from rich import box, console, measure, table, text

from fedreid_jax import errors

FULL = 10_000  # a width at which no table is cut


def show(
  screen: console.Console,
  title: str,
  columns: Sequence[str],
  rows: Sequence[Sequence[str]],
  facts: Collection[str] = (),
  caption: Sequence[str] = (),
) -> None:
  """Prints a table, or a block of lines for each row if it is too wide.

  Columns that `facts` names go into the caption if all rows agree.
  """
  lines = list(caption)
  kept = list(range(len(columns)))
  shared: list[str] = []
  for k, name in enumerate(columns):
    values = {row[k] for row in rows}
    if name in facts and len(values) == 1:
      kept.remove(k)
      shared.append(errors.printable(f'{name} {values.pop()}'))
  if shared:
    lines.insert(0, ', '.join(shared))
  names = [columns[k] for k in kept]
  cells = [[errors.printable(row[k]) for k in kept] for row in rows]
  if title:
    _print(screen, errors.printable(title))
  made = _table(names, cells)
  # Rich cuts cells of a table that is too wide, so its full width is needed.
  endless = screen.options.update(max_width=FULL)
  natural = measure.Measurement.get(screen, endless, made).maximum
  if natural <= screen.width:
    screen.print(made)
  else:
    for row in cells:
      _block(screen, names, row)
  for line in lines:
    _print(screen, line)


def markdown(content: str) -> None:
  """Prints Markdown with tables of a console."""
  screen = console.Console(highlight=False, emoji=False)
  kinds = itertools.groupby(
    content.splitlines(), lambda line: line.startswith('| ')
  )
  for is_table, lines in kinds:
    if is_table:
      header, _, *rows = (line[2:-2].split(' | ') for line in lines)
      show(screen, '', header, rows)
    else:
      _print(screen, '\n'.join(lines))


def _table(names: Sequence[str], cells: Sequence[Sequence[str]]) -> table.Table:
  # Two spaces between columns: a margin of one, and the line of the box.
  made = table.Table(
    box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
  )
  for k, name in enumerate(names):
    justify = 'left' if k == 0 else 'right'
    made.add_column(text.Text(name), justify=justify, no_wrap=True)
  for row in cells:
    made.add_row(*map(text.Text, row))
  return made


def _block(
  screen: console.Console, names: Sequence[str], row: Sequence[str]
) -> None:
  """Prints a row as its name and lines of 'column value', none cut.

  Empty cells are left out.
  """
  _print(screen, row[0])
  line = ''
  cells = zip(names[1:], row[1:], strict=True)
  for item in (f'{name} {cell}' for name, cell in cells if cell):
    if line and len(line) + 2 + len(item) > screen.width:
      _print(screen, line)
      line = ''
    line = f'{line}  {item}' if line else f'  {item}'
  if line:
    _print(screen, line)


def _print(screen: console.Console, line: str) -> None:
  folded = errors.folded(line, screen.width)
  screen.print(text.Text(folded, overflow='fold'))
