"""Printing of tables."""

from collections.abc import Iterable, Sequence

from rich import console, table


def rows(
  title: str, columns: Sequence[str], found: Iterable[Sequence[str]]
) -> None:
  """Prints a table with names in its first column and numbers in others."""
  out = table.Table(title=title)
  for place, column in enumerate(columns):
    out.add_column(column, justify='right' if place else 'left')
  for row in found:
    out.add_row(*row)
  console.Console(width=110).print(out)
