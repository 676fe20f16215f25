"""Compares methods with a baseline: `fedreid compare`.

Every method is trained with the same seeds on the same data as the baseline,
and is compared with it query by query; `effects` has the estimate and its
interval. The interval of one target draws seeds and queries, that of all
targets draws targets, too.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import parsing, recipes, validation
from fedreid_jax.apps.papers.claims.declare import Models
from fedreid_jax.apps.papers.figures import effects as figure
from fedreid_jax.apps.papers.runs import effects, study
from fedreid_jax.apps.papers.runs.cells import Cell, make_cell, results
from fedreid_jax.training.files import atomic, recorder

ALL = 'all targets'
# Plus signs in a path before `.py` and behind the first colon separate nothing.
_METHOD = re.compile(
  r'(?P<recipe>[^:]*?\.py|[^+:]*)(?P<added>(?:\+[A-Za-z_][\w.]*)*)'
  r'(?P<fields>:.*)?',
  re.DOTALL,
)


class Row(NamedTuple):
  """A method and the baseline on a target, or on all of them.

  Attributes:
    label: the method.
    target: its name, or `ALL`.
    base: mAP of the baseline, mean over the seeds.
    arm: mAP of the method.
    found: the difference.
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
  # By `change`, because components bring fields of their own.
  made = parsing.change(made, [f'components={components!r}', f'seed={seed}'])
  return validation.validate(made)


def folder_name(methods: Sequence[str], arg: str) -> str:
  """Returns the name of the folder of a comparison.

  Comparisons of other methods, of another baseline or with another `arg` have
  other names, so that none overwrites the files of another one.
  """
  digest = hashlib.sha256(repr((*methods, arg)).encode()).hexdigest()
  names = re.sub(r'[^\w.-]+', '_', '-'.join(methods))[:60]
  return f'{names}-{digest[:8]}'


def plan(
  methods: Sequence[str], arg: str, seeds: Sequence[int], folder: Path
) -> list[Cell]:
  """Returns the runs, seed by seed, so that pairs are complete early.

  Raises:
    ConfigError: if a method is given twice, or is not valid.
  """
  if len({*methods}) < len(methods):
    raise errors.ConfigError(
      'a method is given twice', 'command line', 'give different methods'
    )
  return [
    make_cell(method, config(method, arg, seed), folder, {})
    for seed in seeds
    for method in methods
  ]


def compare(cells: Sequence[Cell], models: Models) -> list[Row]:
  """Returns the effects of all methods but the first one, the baseline.

  Only seeds whose runs have ended for all methods count, so that all effects
  are of the same seeds.

  Args:
    cells: of `plan`.
    models: models of a run that are compared.

  Raises:
    ConfigError: if the runs have no such models or no queries, or if two runs
      have different queries.
  """
  baseline, *labels = dict.fromkeys(cell.label for cell in cells)
  chosen = {(cell.label, cell.config.seed): cell for cell in cells}
  left_out = unfinished(cells)
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
  """Returns the methods whose run has not ended, of each seed with such a run.

  Args:
    cells: of `plan`.
  """
  found: dict[int, list[str]] = {}
  for cell in sorted(cells, key=lambda cell: cell.config.seed):
    if not results(cell):
      found.setdefault(cell.config.seed, []).append(cell.label)
  return found


def said(left_out: Mapping[int, Sequence[str]]) -> list[str]:
  """Returns the line on the seeds that do not count, none if all do."""
  seeds = [f'{seed} ({", ".join(runs)})' for seed, runs in left_out.items()]
  return [f'seeds left out, not ended: {"; ".join(seeds)}'] if seeds else []


def _precision(cell: Cell, models: Models) -> study.Precision:
  try:
    return study.precision(cell.workdir, models)
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
  """Returns a row for every target, and one for all of them if several."""
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
    baseline: the first method.
    rows: of `compare`.
    left_out: of `unfinished`.
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
  """Draws the effects, if there are any."""
  words = {'supported': 'higher', 'not supported': 'lower'}
  lines = []
  for row in rows:
    verdict = effects.verdict(row.found, 'greater', 0.0)
    text = f'{row.label}, {row.target}'
    lines.append(figure.Line(text, row.found, words.get(verdict, verdict), 0.0))
  figure.write(lines, path, f'difference from {baseline} in mAP')
