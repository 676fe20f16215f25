"""Configurations of all combinations of recipes, fields, trials and seeds."""

import ast
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.config import parsing, recipes, schema, validation
from fedreid_jax.config.configuration import Config

FLAG = '--trials'
FIELDS = ('data.sources', 'data.targets')


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A sweep, as `get_sweep()` of a sweep file returns it."""

  about: str  # title of its table
  # `FILE[:key=value,...]`; the pairs are applied after the preset.
  recipes: Sequence[str]
  # Values by field; fields that change together are joined by `+`, and their
  # values are tuples.
  grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  arg: str = 'synthetic'  # `PRESET[,key=value...]` of every recipe
  seeds: Sequence[int] = (0, 1, 2)
  baseline: str = ''  # label or work directory
  # Trials of a data set as in `parse_trials`; each is a run, and the results of
  # a cell are means over them.
  trials: str = ''


class Point(NamedTuple):
  """One run of a sweep."""

  label: str  # runs with the same one are averaged
  facts: dict[str, str]  # values of the fields of the grid, as text
  config: Config
  trial: str = ''  # of a data set, '' if there are none


def of_sweep(sweep: Sweep) -> list[Point]:
  """Returns the validated runs of a sweep, or raises ConfigError."""
  makes: dict[str, Callable[[], Any]] = {}
  for spec in sweep.recipes:
    file, added, own = recipes.read(spec)
    name = '+'.join((Path(file).stem, *added))
    label = ' '.join((name, *filter(None, parsing.split(own, ','))))
    # Two recipes with one label would be averaged as if they were seeds.
    if label in makes:
      raise errors.ConfigError(
        f'{label} is given twice', 'recipes', 'give each recipe once'
      )
    makes[label] = functools.partial(recipes.recipe, spec, sweep.arg)
  return cells(makes, sweep)


def cells(makes: Mapping[str, Callable[[], Any]], sweep: Sweep) -> list[Point]:
  """All combinations of configurations, fields, trials and seeds.

  `makes` makes new configurations by label, in place of the recipes.

  Raises:
    ConfigError: if a run is not valid.
  """
  found = []
  for (name, make), facts, trial, seed in itertools.product(
    makes.items(),
    list(points(sweep.grid)),
    # One point with the trial '' where a sweep has no trials.
    parse_trials(sweep.trials) or [''],
    sweep.seeds,
  ):
    pairs = [f'{key}={value}' for key, value in facts.items()]
    config = validation.validate(
      parsing.change(schema.editable(make()), [*pairs, f'seed={seed}'])
    )
    if trial:
      if facts.keys() & {*FIELDS}:
        raise errors.ConfigError(
          f'the grid and {FLAG} change the same field',
          ', '.join(FIELDS),
          'leave it out of one of them',
        )
      config = validation.validate(with_trial(config, trial))
    label = ' '.join((name, *pairs))
    found.append(Point(label, facts, config, trial))
  return found


def identity(points: Sequence[Point]) -> list[str]:
  """The labels and fields of a sweep, which stays the same with more seeds."""
  found: dict[str, None] = {}
  for point in points:
    fields = parsing.changed(schema.identity(point.config)) | {'seed': 0}
    found[repr((point.label, point.trial, fields))] = None
  return [*found]


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, str]]:
  """Yields the field values of every point of a grid, as text.

  Raises:
    ConfigError: for wrong joined values, a repeated field or a seed.
  """
  axes = [[_together(key, v) for v in values] for key, values in grid.items()]
  for point in itertools.product(*axes):
    facts = dict(pair for pairs in point for pair in pairs)
    # A dictionary keeps one value of a field that two axes contain.
    if len(facts) < sum(map(len, point)) or 'seed' in facts:
      raise errors.ConfigError(
        f'{", ".join(grid)} has a field twice, or the seed',
        'grid',
        'give each field once, and use --seeds for seeds',
      )
    yield facts


def _together(key: str, value: Any) -> list[tuple[str, str]]:
  """The pairs (a, 1) and (b, 2) of `a+b` and `(1, 2)`, as text."""
  fields = key.split('+')
  if len(fields) == 1:
    return [(key, value if isinstance(value, str) else repr(value))]
  try:
    parts = ast.literal_eval(value) if isinstance(value, str) else value
    pairs = list(zip(fields, parts, strict=True))
  except (ValueError, SyntaxError, TypeError) as error:
    raise errors.ConfigError(
      f'{value!r} for {errors.counted(len(fields), "field")}',
      key,
      'use the form (1,300),(5,60)',
    ) from error
  return [pair for k, v in pairs for pair in _together(k, v)]


def parse(text: str) -> dict[str, list[str]]:
  """Parses `KEY=VALUE,VALUE;KEY=VALUE` as text, or raises ConfigError."""
  grid: dict[str, list[str]] = {}
  for part in filter(None, parsing.split(text, ';')):
    key, _, values = part.partition('=')
    key = key.strip()
    grid_values = [value.strip() for value in parsing.split(values, ',')]
    if not key or key in grid or '' in grid_values:
      raise errors.ConfigError(
        f'{part!r} is not a field with values',
        '--grid',
        "use the form 'key=value,value;key=value', with each key once",
      )
    grid[key] = grid_values
  return grid


def seeds(text: str) -> list[int]:
  """Parses seeds such as `0,1,2`, or raises ConfigError."""
  try:
    return [int(part) for part in text.split(',')]
  except ValueError as error:
    raise errors.ConfigError(
      f'{text!r} is not a list of numbers', '--seeds', 'use the form 0,1,2'
    ) from error


def parse_trials(text: str) -> list[str]:
  """The trials of `NAME[:option=value,...][;...]`.

  'regdb' has all ten splits of the persons of RegDB, over which published
  results are means; 'regdb:trial=1;regdb:trial=2' has two.

  Raises:
    ConfigError: for an unknown data set or option, or one without trials.
  """
  # Imported here: it takes most of a second, and few sweeps have trials.
  from fedreid_jax.data.datasets import registry

  found = []
  for spec in filter(None, map(str.strip, parsing.split(text, ';'))):
    dataset, _ = registry.parse(spec)
    known = dataset.options.get('trial', ())
    if not known:
      having = [n for n, d in registry.DATASETS.items() if 'trial' in d.options]
      raise errors.ConfigError(
        f'{dataset.name} has no trials', FLAG, f'one of {", ".join(having)}'
      )
    _, _, options = spec.partition(':')
    if any(part.startswith('trial=') for part in options.split(',')):
      found.append(spec)
    else:
      mark = ',' if options else ':'
      found += [f'{spec.rstrip(":")}{mark}trial={trial}' for trial in known]
  return found


def with_trial(config: Config, trial: str) -> Config:
  """Replaces the sources and the targets by a result of `parse_trials`.

  Raises:
    ConfigError: if the images are not those of published data sets.
  """
  if config.data.source != 'datasets' or not config.data.root:
    raise errors.ConfigError(
      f'{trial} is not read with data.source={config.data.source!r} and '
      f'data.root={config.data.root!r}',
      FLAG,
      "set data.root, and data.source='datasets' as the preset paper does",
    )
  data = replace(config.data, sources=(trial,), targets=(trial,))
  return replace(config, data=data)
