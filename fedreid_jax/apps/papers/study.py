"""Plans the runs that decide claims, and judges the claims by them.

docs/protocol.md describes how a claim is judged.
"""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.apps.papers import effects, figures, report
from fedreid_jax.apps.papers.cells import Cell, make_cell, results
from fedreid_jax.apps.papers.tables.declare import Arm, Claim, Models, Route
from fedreid_jax.config import recipes, validation
from fedreid_jax.training.files import atomic, recorder, run_files

# Average precision of the queries, `[Q]` in [0, 1] or NaN, by target.
Precision = dict[str, np.ndarray]
COLUMNS = (
  *('claim', 'source', 'published', 'base', 'arm'),
  *('effect, mAP', 'detectable', 'verdict', 'verdict, Holm'),
)
BY_TARGET = 'claim', 'target', 'measured, mAP', 'hierarchical, mAP'


class Trial(NamedTuple):
  """The runs of a claim with one seed."""

  seed: int
  # By route: (run of the arm, of its base).
  runs: Mapping[str, tuple[Cell, Cell]]
  starts: Sequence[Cell] = ()  # runs from whose models these start


class Judged(NamedTuple):
  """A claim with the mean mAP of both arms and their difference."""

  claim: Claim
  arm: float  # mAP in percent, NaN without finished runs
  base: float  # the same for the base
  found: effects.Effect | None  # None without a finished seed
  verdict: effects.Verdict
  targets: Mapping[str, effects.OfTarget]  # by 'route: target', if several


def plan(
  claims: Iterable[Claim],
  seeds: Sequence[int],
  folder: Path,
  changes: Sequence[str] = (),
) -> dict[str, list[Trial]]:
  """The trials of claims by name; runs of one configuration are shared.

  Raises:
    ConfigError: for a recipe or a field that does not exist.
  """

  @functools.cache  # half of the runs of all claims are those of others, too
  def run(recipe: str, own: tuple[str, ...], seed: int, start: str) -> Cell:
    fields = ','.join((*own, *changes, f'seed={seed}'))
    config = recipes.recipe(f'{recipe},{fields}', '')
    config.start_from = start
    return make_cell('', validation.validate(config), folder, {})

  def cell(label: str, recipe: str, route: Route, seed: int, start: str = ''):
    made = run(recipe, route.changes, seed, start)
    return made._replace(label=label)

  def trial(claim: Claim, seed: int) -> Trial:
    starts: list[Cell] = []

    def side(arm: Arm, route: Route) -> Cell:
      start = ''
      if arm.start:
        starts.append(cell(claim.name, arm.start, route, seed))
        start = str(starts[-1].workdir)
      return cell(claim.name, arm.recipe, route, seed, start)

    runs = {
      route.name: (side(claim.arm, route), side(claim.base, route))
      for route in claim.routes
    }
    return Trial(seed, runs, starts)

  return {
    claim.name: [trial(claim, seed) for seed in seeds[: claim.seeds]]
    for claim in claims
  }


def runs_of(trials: Mapping[str, Sequence[Trial]]) -> list[Cell]:
  """The runs of all trials: claim by claim, seed by seed."""
  found = [
    cell
    for own in trials.values()
    for trial in own
    for cell in (*trial.starts, *itertools.chain(*trial.runs.values()))
  ]
  # Runs that start from the models of another one come last; sorting is stable.
  return sorted(found, key=lambda cell: bool(cell.config.start_from))


def ended(trials: Sequence[Trial]) -> tuple[int, ...]:
  """The seeds of a claim for which all runs have ended."""
  return tuple(
    trial.seed
    for trial in trials
    if all(results(c) for pair in trial.runs.values() for c in pair)
  )


def precision(workdir: Path, models: Models) -> Precision:
  """The average precision of the queries of a run by target.

  Raises:
    FileNotFoundError: if the run ranked no queries.
    KeyError: if the run has no such models.
    IntegrityError: if a file of the run is damaged.
  """
  found: dict[str, dict[str, list[np.ndarray]]] = {}
  saved = run_files.precision(workdir, run_files.results(workdir))
  if not saved:
    raise FileNotFoundError(workdir / recorder.QUERIES)
  for key, queries in saved.items():
    model, target, _ = key.split('/')
    found.setdefault(model, {}).setdefault(target, []).append(queries)
  joined = {
    model: {target: np.concatenate(own) for target, own in targets.items()}
    for model, targets in found.items()
  }
  if models in ('global', 'concat', 'average'):
    return joined[models]
  clients = [own for m, own in joined.items() if m.startswith('client:')]
  if not clients:
    raise KeyError(models)
  if models == 'best_client':
    return max(clients, key=_mean)
  # The mean over the clients per query, so that queries stay paired.
  return {
    target: np.mean([own[target] for own in clients if target in own], axis=0)
    for target in dict.fromkeys(t for own in clients for t in own)
  }


def judge(claim: Claim, trials: Sequence[Trial]) -> Judged:
  """Judges a claim by trials, all of whose runs have ended."""
  differences, means = [], []
  for trial in trials:
    sides: tuple[Precision, Precision] = {}, {}
    for route, pair in trial.runs.items():
      for side, cell, arm in zip(
        sides, pair, (claim.arm, claim.base), strict=True
      ):
        own = precision(cell.workdir, arm.models)
        side.update({f'{route}: {target}': x for target, x in own.items()})
    # Clients may be tested on fewer targets than the global model.
    common = sides[0].keys() & sides[1].keys()
    differences.append({t: sides[0][t] - sides[1][t] for t in common})
    means.append([_mean({t: side[t] for t in common}) for side in sides])
  minus = {
    name
    for own in differences[:1]
    for name in own
    if name.rpartition(': ')[2] in claim.minus
  }
  found, targets = None, {}
  if differences:
    routes = {name: name.rpartition(': ')[0] for name in differences[0]}
    found = effects.effect(differences, minus, routes)
    if len(routes) > 1:
      targets = effects.by_target(differences)
  arm, base = 100.0 * np.mean(means, axis=0) if means else (np.nan, np.nan)
  verdict = effects.verdict(found, claim.claimed, claim.margin)
  return Judged(claim, float(arm), float(base), found, verdict, targets)


def _mean(own: Precision) -> float:
  # Targets have equal weights, whatever their numbers of queries.
  return float(np.mean([np.nanmean(x) for x in own.values()]))


def write(path: Path, judged: Sequence[Judged]) -> str:
  """Writes JSON, Markdown, which is returned, and a picture of any effects.

  `PATH_targets.md` has the effect on every target.
  """
  holm = _corrected(judged)
  recorder.write_json(
    path.with_suffix('.json'),
    [_row(j) | {'corrected': holm[j.claim.name]} for j in judged],
  )
  rows, bars, by_target = [], [], []
  for claim, arm, base, found, verdict, targets in judged:
    numbers = [''] * 4
    if found:
      numbers = [f'{base:.1f}', f'{arm:.1f}', *found.texts()]
      margin = claim.margin if claim.claimed == 'equal' else 0.0
      bars.append(figures.Bar(claim.text, found, verdict, margin))
    verdicts = verdict, holm[claim.name]
    rows.append(
      [claim.text, claim.source, claim.published, *numbers, *verdicts]
    )
    by_target += [
      [claim.text, target, f'{one.raw:+.1f}', one.text()]
      for target, one in targets.items()
    ]
  figures.write_effects(bars, path.with_suffix('.png'), 'difference in mAP')
  each = '\n'.join(report.markdown(BY_TARGET, by_target)) + '\n'
  atomic.write_text(path.with_name(f'{path.stem}_targets.md'), each)
  text = '\n'.join(report.markdown(COLUMNS, rows)) + '\n'
  atomic.write_text(path.with_suffix('.md'), text)
  return text


def _corrected(judged: Sequence[Judged]) -> dict[str, str]:
  """Returns the verdict of each claim among all claims of its paper."""
  papers: dict[str, list[Judged]] = {}
  for one in judged:
    papers.setdefault(one.claim.source.partition(',')[0], []).append(one)
  found: dict[str, str] = {}
  for own in papers.values():
    verdicts = effects.corrected(
      [(j.found, j.claim.claimed, j.claim.margin) for j in own]
    )
    found |= {j.claim.name: v for j, v in zip(own, verdicts, strict=True)}
  return found


def _row(one: Judged) -> dict[str, Any]:
  names = ('source', 'text', 'published', 'claimed', 'margin')
  row = {name: getattr(one.claim, name) for name in names}
  row |= {'claim': one.claim.name, 'verdict': one.verdict}
  if one.found:
    row |= {'arm': one.arm, 'base': one.base} | one.found._asdict()
    row['by_target'] = {t: x._asdict() for t, x in one.targets.items()}
  return row
