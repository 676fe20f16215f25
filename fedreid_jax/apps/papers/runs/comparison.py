"""Compares methods with a baseline, for `fedreid compare`.

Every method is trained with the same seeds on the same data as the baseline,
and is compared with it query by query; `effects` computes the effect and its
interval. The bootstrap of one target draws seeds and queries; for all targets
it draws targets, too.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.papers.claims.declare import Models
from fedreid_jax.apps.papers.figures import effects as figure
from fedreid_jax.apps.papers.runs import effects, study
from fedreid_jax.apps.papers.runs.cells import Cell, make_cell, results
from fedreid_jax.config import parsing, recipes, validation
from fedreid_jax.training.files import atomic, recorder

ALL = 'all targets'
# A plus sign in a path before `.py` or after the first colon is no separator.
_METHOD = re.compile(
  r'(?P<recipe>[^:]*?\.py|[^+:]*)(?P<added>(?:\+[A-Za-z_][\w.]*)*)'
  r'(?P<fields>:.*)?',
  re.DOTALL,
)


class Row(NamedTuple):
  """The effect of a method over the baseline on one target, or on all.

  Attributes:
    label: method, as on the command line.
    target: name of the target, or `ALL`.
    base: mAP of the baseline in percent, mean over the seeds.
    arm: mAP of the method in percent, mean over the seeds.
    found: effect, arm minus base.
  """

  label: str
  target: str
  base: float
  arm: float
  found: effects.Effect


def config(method: str, arg: str, seed: int) -> Any:
  """Returns the validated configuration of a method.

  Args:
    method: `RECIPE[+COMPONENT...][:FIELD=VALUE,...]`; the components are added
      to those of the recipe.
    arg: `PRESET[,FIELD=VALUE,...]` of all methods.
    seed: of the run.

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


def folder_name(methods: Sequence[str], arg: str) -> str:
  """Returns the name of the folder of a comparison."""
  # The digest separates comparisons whose names are cut or equal, which would
  # overwrite each other's files. Seeds do not count: more of them resume.
  digest = hashlib.sha256(repr((*methods, arg)).encode()).hexdigest()
  names = re.sub(r'[^\w.-]+', '_', '-'.join(methods))[:60]
  return f'{names}-{digest[:8]}'


def plan(
  methods: Sequence[str], arg: str, seeds: Sequence[int], folder: Path
) -> list[Cell]:
  """Returns a cell for every seed and method.

  Raises:
    ConfigError: if a method is given twice, or is not valid.
  """
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
  """Returns the effects of all methods over the first one, the baseline.

  Args:
    cells: result of `plan`.
    models: models of a run that are compared.

  Raises:
    ConfigError: if the runs have no such models or no queries, or if the
      queries of two runs differ.
  """
  baseline, *labels = dict.fromkeys(cell.label for cell in cells)
  chosen = {(cell.label, cell.config.seed): cell for cell in cells}
  left_out = unfinished(cells)
  # Only seeds whose runs have ended for all methods: all effects are of the
  # same seeds.
  seeds = sorted({cell.config.seed for cell in cells} - {*left_out})
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
  """Returns the methods whose runs have not ended, by seed.

  Args:
    cells: result of `plan`.
  """
  found: dict[int, list[str]] = {}
  for cell in sorted(cells, key=lambda cell: cell.config.seed):
    if not results(cell):
      found.setdefault(cell.config.seed, []).append(cell.label)
  return found


def said(left_out: Mapping[int, Sequence[str]]) -> list[str]:
  """Returns a line about the seeds that do not count, or no line."""
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
  except (KeyError, ValueError):
    raise errors.ConfigError(
      f'the run has no models {models!r}', str(cell.workdir), 'give --models'
    ) from None


def _rows(
  label: str, pairs: Sequence[tuple[study.Precision, ...]]
) -> list[Row]:
  """Returns a row for every target, and one for all if there are several."""
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
  groups = [[target] for target in first]
  rows = []
  for targets in [*groups, *([[*first]] if len(first) > 1 else [])]:
    differences = [
      {t: arm[t] - base[t] for t in targets} for arm, base in pairs
    ]
    arm, base = (
      float(
        100
        # A query without a match is NaN.
        * np.mean([np.nanmean(pair[k][t]) for pair in pairs for t in targets])
      )
      for k in (0, 1)
    )
    name = targets[0] if targets in groups else ALL
    rows.append(Row(label, name, base, arm, effects.effect(differences)))
  return rows


ABOUT = (
  'effect: mean of the paired differences in mAP with its 95 % interval; '
  'detectable: the smallest effect that this design finds in 80 % of cases'
)
COLUMNS = (
  'method',
  'target',
  'baseline',
  'mAP',
  'effect',
  'detectable',
  'seeds',
)


def cells_of(rows: Sequence[Row]) -> list[list[str]]:
  """Returns the cells of a table with `COLUMNS`."""
  return [
    [
      *(row.label, row.target, f'{row.base:.1f}', f'{row.arm:.1f}'),
      f'{row.found.mean:+.1f} [{row.found.low:+.1f}, {row.found.high:+.1f}]',
      *(f'{row.found.detectable:.1f}', str(row.found.seeds)),
    ]
    for row in rows
  ]


def write(
  path: Path,
  baseline: str,
  rows: Sequence[Row],
  left_out: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> None:
  """Writes `PATH.md` and `PATH.json`.

  Args:
    path: without a suffix.
    baseline: label of the first method.
    rows: result of `compare`.
    left_out: result of `unfinished`.
  """
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
  table = [COLUMNS, ['---'] * len(COLUMNS), *cells_of(rows)]
  lines = [f'| {" | ".join(line)} |' for line in table]
  title = f'Compared with {baseline}; mAP in percent.'
  notes = [f'{note}.' for note in (ABOUT, *said(left_out))]
  text = '\n'.join((title, '', *lines, '', '\n\n'.join(notes)))
  atomic.write_text(path.with_suffix('.md'), text + '\n')


def draw(path: Path, baseline: str, rows: Sequence[Row]) -> None:
  """Draws the effects to a file; without effects it writes nothing."""
  # There is no claim here, only a direction.
  words = {'supported': 'higher', 'not supported': 'lower'}
  lines = []
  for row in rows:
    verdict = effects.verdict(row.found, 'greater', 0.0)
    text = f'{row.label}, {row.target}'
    lines.append(figure.Line(text, row.found, words.get(verdict, verdict), 0.0))
  figure.write(lines, path, f'difference from {baseline} in mAP')
