"""Declares the tables and the claims of a paper, and the runs of both.

A table has rows with published numbers. A claim compares two arms, each a
recipe and the models of its runs that are tested. Both arms are trained on the
same routes with the same seeds, and are compared query by query.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.report import Line
from fedreid_jax.config import parsing, recipes, validation
from fedreid_jax.core import model_names

PRESETS = ('synthetic', 'smoke', 'paper')
ALL = 'all'  # key of the changes that apply to every preset
CURVE = 'The curve is `evaluation` in the results.json of each run.'
# Rates among which every method has its own.
RATES = '0.005', '0.01', '0.02', '0.05', '0.1'
# Number of seeds of a claim that is not a main one and needs runs that no other
# claim has.
SIDE_SEEDS = 3

Changes = Mapping[str, Sequence[str]]
Scores = Mapping[str, Mapping[str, float]]  # percentages by target and metric
Models = Literal['global', 'client', 'best_client', 'concat', 'average']


@dataclasses.dataclass(frozen=True)
class Row:
  """Runs whose mean is one row of a table, or one row per target.

  Attributes:
    label: name in the paper; rows with the same label have different targets.
    changes: KEY=VALUE pairs by preset ('smoke' defaults to 'synthetic'); the
      pairs of `ALL` apply to every preset.
    model: 'global', 'cluster', or 'local' for the model of the target's client.
    each: changes of each run of the row, by preset; by default one run.
    starts_from: label of an earlier row; a run starts from the finished run of
      that row with the same seed.
    factors: values of the fields of a sweep, as text.
    shown: names of the targets that the table shows, by preset; by default all.
  """

  label: str
  recipe: str  # `FILE[:key=value,...]`, after the preset
  changes: Changes = dataclasses.field(default_factory=dict)
  # Percentages by target and metric.
  published: Scores = dataclasses.field(default_factory=dict)
  model: str = 'global'
  each: Mapping[str, Sequence[Sequence[str]]] = dataclasses.field(
    default_factory=dict
  )
  starts_from: str = ''
  factors: Mapping[str, str] = dataclasses.field(default_factory=dict)
  shown: Changes = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of a paper, or the data of a figure.

  Attributes:
    kind: round of the published result of a global model: 'last', 'best' or
      'best_three'. The result of the last round is always shown as well.
    presets: presets of the recipes by preset of the table, if names differ.
    picture: kind of the picture of a figure, see `pictures.of_table`; '' for
      none.
    source: by preset, the client whose features the picture 'tsne' transforms.
  """

  id: str  # for example 'l2rw/table1'
  title: str  # subject of the comparison
  rows: Sequence[Row]  # in the paper's order
  # Changes of every row, applied before `Row.changes`.
  setting: Changes = dataclasses.field(default_factory=dict)
  kind: str = 'last'
  baseline: str = ''  # label to compare with, '' for none
  presets: Mapping[str, str] = dataclasses.field(default_factory=dict)
  note: str = ''  # facts that a reader needs for the comparison
  picture: str = ''
  source: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Arm(NamedTuple):
  """One side of a claim.

  Attributes:
    models: 'global'; 'client', the mean over the models of the clients;
      'best_client', the client's model with the highest mean over all targets
      of a seed, which favours this arm; 'concat', the clients' features in a
      row; 'average', the mean of their parameters.
    start: recipe of the run from whose models the runs of this arm start, with
      the same route and seed; empty for runs that start like all others.
  """

  recipe: str  # `NAME:PRESET[,key=value...]`
  models: Models = 'global'
  start: str = ''


class Route(NamedTuple):
  """Changes that select the training domains and the tested domains."""

  name: str
  changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of a paper about two methods.

  Attributes:
    claimed: 'greater', or 'equal' for methods that are near each other.
    margin: in mAP, the smallest gain that matters, or the largest difference
      between methods that are near each other.
    benchmark: kind of start and method, for a claim of `tables.unseen`.
    minus: targets whose effect is subtracted from the effect on the others, for
      a claim about the difference.
  """

  name: str  # on the command line and in files
  source: str  # paper and table
  text: str
  published: str  # the numbers of the paper
  arm: Arm  # method that the statement is about
  base: Arm  # method that it is compared with
  routes: Sequence[Route]  # training domains and targets of its trials
  claimed: Literal['greater', 'equal'] = 'greater'
  margin: float = 1.0
  first: bool = False  # a main claim, which `--first` selects
  benchmark: tuple[str, str] | None = None
  minus: tuple[str, ...] = ()
  seeds: int = 5  # largest number of seeds of its trials


SideClaim = functools.partial(Claim, seeds=SIDE_SEEDS)
NearClaim = functools.partial(SideClaim, claimed='equal', margin=3.0)


def route(sources: str, targets: str, *more: str) -> Route:
  """A route; names of domains are separated by spaces."""
  changes = (
    f'data.sources={tuple(sources.split())!r}',
    f'data.targets={tuple(targets.split())!r}',
  )
  return Route(sources.replace(' ', '+'), (*changes, *more))


# Nine domains. Each is a training domain in one route and unseen in another.
ROUTES = (
  route('plaza campus station', 'mall park market'),
  route('mall park market', 'harbour alley arcade'),
  route('harbour alley arcade', 'plaza campus station'),
)


def chosen(table: Table, only: str) -> list[Row]:
  """The rows with a label, or else those whose labels contain it.

  `only` may be several labels, or parts of labels, with semicolons between
  them. The result includes the baseline and the rows from which others start.

  Raises:
    ConfigError: if there is no such row.
  """
  labels = [row.label for row in table.rows]
  wanted: set[str] = set()
  for part in only.split(';'):
    # A label may be a part of others, such as DFH of SNR+DFH.
    exact = part in labels
    found = {x for x in labels if (part == x if exact else part in x)}
    if not found:
      raise errors.ConfigError(
        f'no row {part!r} in {table.id}',
        '--only',
        f'one of {sorted(set(labels))}',
      )
    wanted |= found
  wanted |= {row.starts_from for row in table.rows if row.label in wanted}
  return [r for r in table.rows if r.label in wanted | {table.baseline}]


def runs(
  row: Row, table: Table, preset: str, more: Sequence[str] = ()
) -> list[Any]:
  """The validated configurations of a row, without their seeds.

  If the row starts from another one, `start_from` is the label of that row.
  KEY=VALUE pairs in `more` are applied last.

  Raises:
    ConfigError: if a configuration is not valid, or a recipe does not exist.
  """
  configs = []
  start = (f'start_from={row.starts_from}',) if row.starts_from else ()
  for each in _of(row.each, preset) or ((),):
    config = recipes.recipe(row.recipe, table.presets.get(preset, preset))
    # Later changes override earlier ones: from the table to the command line.
    own = (*_of(table.setting, preset), *_of(row.changes, preset), *start)
    own = (*own, *each, *more)
    configs.append(validation.validate(parsing.change(config, own)))
  return configs


def _of(changes: Mapping[str, Sequence[Any]], preset: str) -> Sequence[Any]:
  own = changes.get(preset)
  # `smoke` uses the same built-in images as `synthetic`.
  if own is None and preset == 'smoke':
    own = changes.get('synthetic')
  return *changes.get(ALL, ()), *(own or ())


def annotate(table: Table, preset: str, lines: Sequence[Line]) -> list[Line]:
  """Selects the lines of the models of a table and adds published numbers."""
  kept = []
  for line in lines:
    rows = [
      row
      for row in table.rows
      if row.label == line.label
      and _is_of(row, line)
      and line.target in (_of(row.shown, preset) or (line.target,))
    ]
    numbers = dict(line.numbers)
    for row in rows:
      # Published numbers are of published data, which only this preset has.
      if preset == 'paper' and line.kind == _kind(row, table):
        found = row.published.get(line.target, {})
        numbers |= {f'{name} published': x for name, x in found.items()}
    if line.kind in {'last', *(_kind(row, table) for row in rows)} and rows:
      kept.append(line._replace(numbers=numbers))
  return kept


def _kind(row: Row, table: Table) -> str:
  # Where a table shows selected rounds, a client's model has its best round.
  if row.model == 'local' and table.kind != 'last':
    return 'own_best'
  return table.kind if row.model == 'global' else 'last'


def _is_of(row: Row, line: Line) -> bool:
  if row.model == 'local':
    return line.model == model_names.of_client(line.target)
  return line.model.partition(':')[0] == row.model


def read(text: str, columns: Sequence[str]) -> dict[str, dict[str, float]]:
  """Reads the numbers of a printed table, by name of the line and column.

  Names of lines may contain blanks, and '-' is a missing number.
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
  """The rows of a figure that shows a sweep."""
  rows = []
  for recipe, facts in itertools.product(
    sweep.recipes, list(grid.points(sweep.grid))
  ):
    pairs = [f'{key}={value}' for key, value in facts.items()]
    label = ' '.join(filter(None, (recipe.partition(':')[2], *pairs)))
    # The changes by preset are applied before the fields of the sweep.
    all_ = (*(changes or {}).get(ALL, ()), *pairs)
    own = {**(changes or {}), ALL: all_}
    rows.append(Row(label, recipe, own, factors=facts))
  return rows
