"""Compares methods with a baseline, for `fedreid compare`.

Every method is trained with the same seeds on the same data as the baseline,
and is compared with it query by query; `effects` computes the effect and its
interval: over seeds and queries of one target, over seeds and targets of all.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.papers import effects, figures, report, study
from fedreid_jax.apps.papers.cells import Cell, make_cell, results
from fedreid_jax.apps.papers.tables.declare import Models
from fedreid_jax.config import parsing, recipes, validation
from fedreid_jax.training import named_models
from fedreid_jax.training.files import atomic, recorder, run_files

ALL = 'all targets'
ABOUT = (
  'effect: mean of the paired differences in mAP with its 95 % interval; '
  'detectable: the smallest effect that this design finds in 80 % of cases'
)
COLUMNS = (
  *('method', 'target', 'baseline', 'mAP'),
  *('effect', 'detectable', 'seeds'),
)


class Row(NamedTuple):
  """The effect of a method over the baseline on one target, or on all."""

  label: str  # method, as on the command line
  target: str  # name of the target, or `ALL`
  base: float  # mAP of the baseline in percent, mean over seeds
  arm: float  # mAP of the method in percent, mean over seeds
  found: effects.Effect  # arm minus base
  identical: bool = False  # the models of both are equal to the bit

  def cells(self) -> list[str]:
    """The texts of `COLUMNS`."""
    return [
      *(self.label, self.target, f'{self.base:.1f}', f'{self.arm:.1f}'),
      *(*self.found.texts(), str(self.found.seeds)),
    ]


def config(method: str, arg: str, seed: int) -> Any:
  """The configuration of `RECIPE[+COMPONENT...][:FIELD=VALUE,...]`.

  All methods have the same `arg`, `PRESET[,FIELD=VALUE,...]`.

  Raises:
    ConfigError: for an unknown recipe, component, preset or field.
  """
  made = recipes.recipe(method, arg)
  return validation.validate(parsing.change(made, [f'seed={seed}']))


def plan(
  methods: Sequence[str],
  args: Sequence[str],
  seeds: Sequence[int],
  folder: Path,
) -> list[Cell]:
  """Makes a cell per seed, route and method; routes are named by numbers.

  Raises:
    ConfigError: for equal methods or routes, or as `config`.
  """
  for what, given in (('method', methods), ('route', args)):
    if len({*given}) < len(given):
      raise errors.ConfigError(
        f'a {what} is given twice', 'command line', f'give different {what}s'
      )
  # Seed by seed, so that pairs are complete early.
  return [
    make_cell(method, config(method, arg, seed), folder, {})._replace(
      trial=str(number) if len(args) > 1 else ''
    )
    for seed in seeds
    for number, arg in enumerate(args, 1)
    for method in methods
  ]


def compare(
  cells: Sequence[Cell], models: Models, patterns: Sequence[str] = ()
) -> list[Row]:
  """The effects of all methods over the first one, the baseline.

  Args:
    cells: runs of `plan`; targets of all routes count alike.
    patterns: regular expressions; each has a row with the mean over the targets
      whose whole name it matches. Without any, each target has a row.

  Raises:
    ConfigError: without such models, queries or targets, or if queries differ.
  """
  baseline, *labels = dict.fromkeys(cell.label for cell in cells)
  trials = [*dict.fromkeys(cell.trial for cell in cells)]
  chosen = {(cell.label, cell.config.seed, cell.trial): cell for cell in cells}
  # Only seeds whose runs have ended for all methods: all effects are of the
  # same seeds.
  seeds = sorted({cell.config.seed for cell in cells} - {*unfinished(cells)})

  # The baseline is compared with every method, and is read once.
  @functools.cache
  def queries(label: str, seed: int) -> study.Precision:
    """Returns the queries of all routes."""
    return {
      f'{trial}: {target}' if trial else target: found
      for trial in trials
      for target, found in _precision(
        chosen[label, seed, trial], models
      ).items()
    }

  rows = []
  for label in labels if seeds else ():
    pairs = [
      tuple(queries(side, seed) for side in (label, baseline)) for seed in seeds
    ]
    same = all(map(_equal, *zip(*pairs, strict=True))) and all(
      _same_models(*(chosen[side, seed, trial] for side in (label, baseline)))
      for seed in seeds
      for trial in trials
    )
    rows += [
      row._replace(identical=same) for row in _rows(label, pairs, patterns)
    ]
  return rows


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
  return one.keys() == other.keys() and all(
    np.array_equal(one[name], other[name], equal_nan=True) for name in one
  )


def _same_models(one: Cell, other: Cell) -> bool:
  """Whether the last models of two runs are equal, if both have them."""
  try:
    found, known = (
      named_models.restore(
        run_files.checkpoints_of(cell.workdir), 'latest'
      ).models
      for cell in (one, other)
    )
  except errors.IntegrityError:  # published runs have no models
    return False
  return found.keys() == known.keys() and all(
    _equal(found[name], known[name]) for name in found
  )


def unfinished(cells: Sequence[Cell]) -> dict[int, list[str]]:
  """The methods of `plan` whose runs have not ended, by seed."""
  found: dict[int, list[str]] = {}
  for cell in sorted(cells, key=lambda cell: cell.config.seed):
    if not results(cell):
      found.setdefault(cell.config.seed, []).append(cell.label)
  return found


def said(left_out: Mapping[int, Sequence[str]]) -> list[str]:
  """A line about the seeds that do not count, or no line."""
  seeds = [f'{seed} ({", ".join(runs)})' for seed, runs in left_out.items()]
  return [f'seeds left out, not ended: {"; ".join(seeds)}'] if seeds else []


def notes(baseline: str, rows: Sequence[Row]) -> list[str]:
  """A line about each method whose models are those of the baseline."""
  same = dict.fromkeys(row.label for row in rows if row.identical)
  return [
    f'{label} and {baseline} are identical: their models are equal to the bit '
    'with every seed, so that the method changes nothing here'
    for label in same
  ]


def _precision(cell: Cell, models: Models) -> study.Precision:
  try:
    return study.precision(cell.workdir, models)
  # Runs of classification have results but no file of queries.
  except FileNotFoundError:
    raise errors.ConfigError(
      'the run ranks no queries',
      str(cell.workdir),
      'compare recipes of retrieval, or use `fedreid sweep --baseline`',
    ) from None
  except KeyError:
    raise errors.ConfigError(
      f'the run has no models {models!r}', str(cell.workdir), 'give --models'
    ) from None


def _rows(
  label: str,
  pairs: Sequence[tuple[study.Precision, ...]],
  patterns: Sequence[str],
) -> list[Row]:
  # Differences are taken query by query, so the queries have to be the same.
  first = pairs[0][0]
  shapes = {t: x.shape for t, x in first.items()}
  for side in (side for pair in pairs for side in pair):
    if {t: x.shape for t, x in side.items()} != shapes:
      raise errors.ConfigError(
        'the runs have different targets or queries',
        label,
        'give the methods the same data fields',
      )
  rows = []
  routes = {target: target.rpartition(': ')[0] for target in first}
  for name, targets in _groups([*first], patterns).items():
    differences = [
      {t: arm[t] - base[t] for t in targets} for arm, base in pairs
    ]
    means = [
      [
        # A query without a match is NaN.
        np.mean([np.nanmean(side[t]) for t in targets])
        for side in pair
      ]
      for pair in pairs
    ]
    arm, base = (float(100 * mean) for mean in np.mean(means, axis=0))
    found = effects.effect(differences, routes=routes)
    rows.append(Row(label, name, base, arm, found))
  return rows


def _groups(
  targets: Sequence[str], patterns: Sequence[str]
) -> dict[str, list[str]]:
  """The targets of each row, by its name."""
  if not patterns:
    alone = {target: [target] for target in targets}
    return alone | ({ALL: [*targets]} if len(targets) > 1 else {})
  groups = {}
  for pattern in patterns:
    try:
      groups[pattern] = [
        t for t in targets if re.fullmatch(pattern, t.rpartition(': ')[2])
      ]
    except re.error as error:
      raise errors.ConfigError(
        f'{pattern!r} is not a pattern: {error}',
        '--targets',
        "try '.*[+]noise'",
      ) from None
    if not groups[pattern]:
      raise errors.ConfigError(
        f'no target matches {pattern!r}',
        '--targets',
        f'there are {", ".join(targets)}',
      )
  return groups


def write(
  path: Path,
  baseline: str,
  rows: Sequence[Row],
  left_out: Mapping[int, Sequence[str]],
) -> None:
  """Writes `PATH.md`, `PATH.json` and, if there are effects, `PATH.png`."""
  recorder.write_json(
    path.with_suffix('.json'),
    [
      {
        **{'method': row.label, 'baseline': baseline, 'target': row.target},
        **{'base': row.base, 'arm': row.arm, **row.found._asdict()},
        **{'identical': row.identical, 'left_out': [*left_out]},
      }
      for row in rows
    ],
  )
  title = f'Compared with {baseline}; mAP in percent.'
  lines = report.markdown(COLUMNS, [row.cells() for row in rows])
  below = (ABOUT, *notes(baseline, rows), *said(left_out))
  text = '\n'.join((title, '', *lines, '', '.\n\n'.join((*below, ''))))
  atomic.write_text(path.with_suffix('.md'), text.rstrip() + '\n')
  # There is no claim here, only a direction.
  words = {'supported': 'higher', 'not supported': 'lower'}
  drawn = []
  for row in rows:
    verdict = effects.verdict(row.found, 'greater', 0.0)
    text = f'{row.label}, {row.target}'
    drawn.append(figures.Bar(text, row.found, words.get(verdict, verdict)))
  axis = f'difference from {baseline} in mAP'
  figures.write_effects(drawn, path.with_suffix('.png'), axis)
