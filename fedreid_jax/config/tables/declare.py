"""What a table of a paper is: rows, the runs behind them, published numbers."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import grid, parsing, recipes, validation
from fedreid_jax.sweeps.report import Line

PRESETS = ('synthetic', 'smoke', 'paper')
ALL = 'all'  # changes of every preset
CURVE = 'The curve is `evaluation` in the results.json of each run.'

Changes = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Row:
  """Runs whose mean is one row, or one a target.

  Attributes:
    label: as the paper calls it; rows of one label differ in their targets.
    recipe: `FILE[:key=value,...]`, what the recipe is given after its preset.
    changes: KEY=VALUE pairs by preset ('smoke' falls back on 'synthetic'), and
      under `ALL` those of every preset.
    published: percent, by target and metric.
    model: 'global', 'cluster', or 'local' for that of the target's own client.
    each: by preset, changes that make several runs of the row.
  """

  label: str
  recipe: str
  changes: Changes = dataclasses.field(default_factory=dict)
  published: Mapping[str, Mapping[str, float]] = dataclasses.field(
    default_factory=dict
  )
  model: str = 'global'
  each: Mapping[str, Sequence[Sequence[str]]] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of a paper, or what a figure of it is drawn from.

  Attributes:
    id: 'l2rw/table1'.
    title: what it compares.
    rows: in the paper's order.
    setting: changes of every row, before its own.
    kind: which figure of a global model the paper gives, 'last', 'best' (one
      round) or 'best_three'; with the latter two, of a client's own model it is
      its 'best' round's. The last round's is always beside it.
    baseline: label that the others are compared with, '' for none.
    presets: of the recipes, where they are not called as the table's.
    note: what a reader has to know to compare.
  """

  id: str
  title: str
  rows: Sequence[Row]
  setting: Changes = dataclasses.field(default_factory=dict)
  kind: str = 'last'
  baseline: str = ''
  presets: Mapping[str, str] = dataclasses.field(default_factory=dict)
  note: str = ''


def chosen(table: Table, only: str) -> list[Row]:
  """Returns the rows of a label, or else those whose label contains it.

  The baseline is always among them.

  Raises:
    ConfigError: when there is none.
  """
  labels = [row.label for row in table.rows]
  exact = only in labels
  wanted = {x for x in labels if (only == x if exact else only in x)}
  if not wanted:
    raise errors.ConfigError(
      f'no row {only!r} in {table.id}',
      '--only',
      f'one of {sorted(set(labels))}',
    )
  return [r for r in table.rows if r.label in wanted | {table.baseline}]


def runs(
  row: Row, table: Table, preset: str, more: Sequence[str] = ()
) -> list[Any]:
  """Returns the validated configurations of a row, without their seeds.

  Args:
    row: of the table.
    table: its table.
    preset: one of `PRESETS`.
    more: KEY=VALUE pairs, applied last.

  Raises:
    ConfigError: for one that is not valid, or a recipe there is not.
  """
  configs = []
  for each in _of(row.each, preset) or ((),):
    config = recipes.recipe(row.recipe, table.presets.get(preset, preset))
    own = (*_of(table.setting, preset), *_of(row.changes, preset), *each, *more)
    configs.append(validation.validate(parsing.change(config, own)))
  return configs


def _of(changes: Mapping[str, Sequence[Any]], preset: str) -> Sequence[Any]:
  own = changes.get(preset)
  if own is None and preset == 'smoke':
    own = changes.get('synthetic')
  return *changes.get(ALL, ()), *(own or ())


def annotate(table: Table, preset: str, lines: Sequence[Line]) -> list[Line]:
  """Keeps the models a table is about; adds what the paper has for them.

  The published numbers belong to the published data: other presets get none.
  """
  kept = []
  for line in lines:
    rows = [r for r in table.rows if r.label == line.label and _is_of(r, line)]
    numbers = dict(line.numbers)
    for row in rows:
      if preset == 'paper' and line.kind == _kind(row, table):
        found = row.published.get(line.target, {})
        numbers |= {f'{name} published': x for name, x in found.items()}
    if line.kind in {'last', *(_kind(row, table) for row in rows)} and rows:
      kept.append(line._replace(numbers=numbers))
  return kept


def _kind(row: Row, table: Table) -> str:
  """Returns which figure of a row the paper gives."""
  if row.model == 'local' and table.kind != 'last':
    return 'best'
  return table.kind if row.model == 'global' else 'last'


def _is_of(row: Row, line: Line) -> bool:
  if row.model == 'local':
    return line.model == f'client:{line.target}'
  return line.model.partition(':')[0] == row.model


def read(text: str, columns: Sequence[str]) -> dict[str, dict[str, float]]:
  """Reads numbers as a paper prints them: a name a line, then its columns.

  Args:
    text: a line a name, which may have blanks; '-' where there is no number.
    columns: names of the numbers.

  Returns:
    By name and column.
  """
  table = {}
  for line in text.strip().splitlines():
    words = line.split()
    label, values = words[: -len(columns)], words[-len(columns) :]
    table[' '.join(label)] = {
      column: float(value)
      for column, value in zip(columns, values, strict=True)
      if value != '-'
    }
  return table


def of_sweep(sweep: grid.Sweep, changes: Changes | None = None) -> list[Row]:
  """Returns the rows of a figure that shows a sweep.

  Args:
    sweep: what the figure shows.
    changes: by preset, applied before the sweep's own fields.
  """
  rows = []
  for recipe, facts in itertools.product(
    sweep.recipes, list(grid.points(sweep.grid))
  ):
    pairs = [f'{key}={value}' for key, value in facts.items()]
    label = ' '.join(filter(None, (recipe.partition(':')[2], *pairs)))
    all_ = (*(changes or {}).get(ALL, ()), *pairs)
    rows.append(Row(label, recipe, {**(changes or {}), ALL: all_}))
  return rows
