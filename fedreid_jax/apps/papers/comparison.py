"""Compares methods with a baseline, for `fedreid compare`.

Every method is trained with the same seeds on the same data as the baseline,
and is compared with it query by query; `effects` computes the effect and its
interval: over seeds and queries of one target, over seeds and targets of all.
"""

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
from fedreid_jax.training.files import atomic, recorder

ALL = 'all targets'
# A plus sign in a path before `.py` or after the first colon is no separator.
_METHOD = re.compile(
  r'(?P<recipe>[^:]*?\.py|[^+:]*)(?P<added>(?:\+[A-Za-z_][\w.]*)*)'
  r'(?P<fields>:.*)?',
  re.DOTALL,
)
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
  parts = _METHOD.fullmatch(method)
  if parts is None:
    raise recipes.missing(method)
  made = recipes.recipe(f'{parts["recipe"]}{parts["fields"] or ""}', arg)
  components = (*made.components, *parts['added'].split('+')[1:])
  # By `change`, because added components may declare fields.
  made = parsing.change(made, [f'components={components!r}', f'seed={seed}'])
  return validation.validate(made)


def plan(
  methods: Sequence[str], arg: str, seeds: Sequence[int], folder: Path
) -> list[Cell]:
  """Makes a cell per seed and method; raises ConfigError for equal methods."""
  if len({*methods}) < len(methods):
    raise errors.ConfigError(
      'a method is given twice', 'command line', 'give different methods'
    )
  # Seed by seed, so that pairs are complete early.
  return [
    make_cell(method, config(method, arg, seed), folder, {})
    for seed in seeds
    for method in methods
  ]


def compare(cells: Sequence[Cell], models: Models) -> list[Row]:
  """The effects of all methods over the first one, the baseline.

  Raises:
    ConfigError: without such models or queries, or if queries differ.
  """
  baseline, *labels = dict.fromkeys(cell.label for cell in cells)
  chosen = {(cell.label, cell.config.seed): cell for cell in cells}
  # Only seeds whose runs have ended for all methods: all effects are of the
  # same seeds.
  seeds = sorted({cell.config.seed for cell in cells} - {*unfinished(cells)})
  rows = []
  for label in labels if seeds else ():
    pairs = [
      tuple(
        _precision(chosen[side, seed], models) for side in (label, baseline)
      )
      for seed in seeds
    ]
    rows += _rows(label, pairs)
  return rows


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
  label: str, pairs: Sequence[tuple[study.Precision, ...]]
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
  groups = {target: [target] for target in first}
  if len(first) > 1:
    groups[ALL] = [*first]
  rows = []
  for name, targets in groups.items():
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
    rows.append(Row(label, name, base, arm, effects.effect(differences)))
  return rows


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
        'left_out': [*left_out],
      }
      for row in rows
    ],
  )
  title = f'Compared with {baseline}; mAP in percent.'
  lines = report.markdown(COLUMNS, [row.cells() for row in rows])
  notes = [f'{note}.' for note in (ABOUT, *said(left_out))]
  text = '\n'.join((title, '', *lines, '', '\n\n'.join(notes)))
  atomic.write_text(path.with_suffix('.md'), text + '\n')
  # There is no claim here, only a direction.
  words = {'supported': 'higher', 'not supported': 'lower'}
  drawn = []
  for row in rows:
    verdict = effects.verdict(row.found, 'greater', 0.0)
    text = f'{row.label}, {row.target}'
    drawn.append(figures.Bar(text, row.found, words.get(verdict, verdict)))
  axis = f'difference from {baseline} in mAP'
  figures.write_effects(drawn, path.with_suffix('.png'), axis)
