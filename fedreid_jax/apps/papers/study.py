"""Judges claims by their runs, and writes the tables of a study.

docs/protocol.md describes how a claim is judged.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.apps.papers import effects, figures, rates, report
from fedreid_jax.apps.papers.planning import Plan, Search, Trial, ended
from fedreid_jax.apps.papers.tables.declare import Claim, Models
from fedreid_jax.core import model_names
from fedreid_jax.data import validation
from fedreid_jax.training.files import recorder, run_files

# Average precision of the queries, `[Q]` in [0, 1] or NaN, by target.
Precision = dict[str, np.ndarray]
COLUMNS = (
  *('claim', 'source', 'published', 'base', 'arm', 'rates'),
  *('effect, mAP', 'detectable', 'alone', 'verdict', 'seeds'),
)
BY_TARGET = 'claim', 'target', 'measured, mAP', 'hierarchical, mAP'
EQUAL = 'claim', 'rate of both', 'base', 'arm', 'effect, mAP', 'seeds'
RATES = 'method', 'training domains', 'chosen', 'held-out mAP by rate'
NO_SEARCH = 'no person is held out: the rate of the recipe'


class Judged(NamedTuple):
  """A claim with the mean mAP of both arms and their difference."""

  claim: Claim
  arm: float  # mAP in percent, NaN without finished runs
  base: float  # the same for the base
  found: effects.Effect | None  # None without a finished seed
  alone: effects.Verdict  # without Holm's correction
  targets: Mapping[str, effects.OfTarget]  # by 'route: target', if several
  rates: str  # of the base and of the arm, by route if they differ


def precision(workdir: Path, models: Models) -> Precision:
  """The average precision of the queries of a run by target.

  Held-out persons of the clients are no target.

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
    if validation.is_validation(target):  # it has chosen the rate
      continue
    found.setdefault(model, {}).setdefault(target, []).append(queries)
  joined = {
    model: {target: np.concatenate(own) for target, own in targets.items()}
    for model, targets in found.items()
  }
  if models in ('global', 'concat', 'average'):
    return joined[models]
  clients = [own for m, own in joined.items() if model_names.client_of(m)]
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
  rates_ = rates_of(trials[0]) if trials else ''
  return Judged(claim, float(arm), float(base), found, verdict, targets, rates_)


def rates_of(trial: Trial) -> str:
  """The rates of base and arm by route: `0.1 / 0.02`, `0.1, 0.05 / 0.02`."""
  sides = []
  for side in zip(*trial.runs.values(), strict=True):
    each = [f'{cell.config.optim.lr:g}' for cell in side]
    sides.append(each[0] if len({*each}) == 1 else ', '.join(each))
  return ' / '.join(reversed(sides))


def _mean(own: Precision) -> float:
  # Targets have equal weights, whatever their numbers of queries.
  return float(np.mean([np.nanmean(x) for x in own.values()]))


def write(path: Path, judged: Sequence[Judged]) -> str:
  """Writes JSON, Markdown, which is returned, and a picture of any effects.

  `PATH_targets.md` has the effect on every target, and `PATH_benchmark.png` the
  methods of the benchmark by kind of start.
  """
  holm = _corrected(judged)
  recorder.write_json(
    path.with_suffix('.json'),
    [_row(j) | {'verdict': holm[j.claim.name]} for j in judged],
  )
  rows, bars, by_target = [], [], []
  groups: dict[str, list[figures.Bar]] = {}
  for claim, arm, base, found, alone, targets, rates_ in judged:
    numbers, seeds = [''] * 3, ''
    if found:
      numbers, seeds = [*found.texts(), alone], str(found.seeds)
      margin = claim.margin if claim.claimed == 'equal' else 0.0
      bars.append(figures.Bar(claim.text, found, holm[claim.name], margin))
      if claim.benchmark:
        start, method = claim.benchmark
        own = groups.setdefault(start, [])
        own.append(bars[-1]._replace(text=method))
    means = [_percent(base), _percent(arm), rates_]
    rows.append(
      [
        *(claim.text, claim.source, claim.published, *means, *numbers),
        *(holm[claim.name], seeds),
      ]
    )
    by_target += [
      [claim.text, target, f'{one.raw:+.1f}', one.text()]
      for target, one in targets.items()
    ]
  figures.write_effects(bars, path.with_suffix('.png'), 'difference in mAP')
  picture = path.with_name(f'{path.stem}_benchmark.png')
  figures.write_groups(groups, picture, 'mAP over FedPav')
  report.write_markdown(
    path.with_name(f'{path.stem}_targets.md'), BY_TARGET, by_target
  )
  return report.write_markdown(path.with_suffix('.md'), COLUMNS, rows)


def write_rates(path: Path, planned: Plan, claims: Sequence[Claim]) -> None:
  """Writes how rates were chosen, and the effects at equal rates.

  `PATH_rates.json` and `PATH_rates.md` have every search; `PATH_equal.md` has
  the effects of claims both of whose arms have the same rate, with the seeds of
  the search.
  """
  searches = [(own, own.found) for own in planned.searches]
  described = [
    {'method': own.recipe, 'route': own.route, 'rate': own.chosen}
    | (found.described() if found else {})
    for own, found in searches
  ]
  recorder.write_json(path.with_name(f'{path.stem}_rates.json'), described)
  rows = [
    [own.recipe, own.route, own.chosen, _scores(own, found)]
    for own, found in searches
    if found or not own.by_rate
  ]
  report.write_markdown(path.with_name(f'{path.stem}_rates.md'), RATES, rows)
  equal = []
  for claim in claims:
    for rate, trials in planned.equal[claim.name].items():
      done = [trial for trial in trials if trial.seed in ended(trials)]
      if done and (found := (one := judge(claim, done)).found):
        means = [_percent(one.base), _percent(one.arm)]
        effect, seeds = found.texts()[0], str(found.seeds)
        equal.append([claim.text, rate, *means, effect, seeds])
  report.write_markdown(path.with_name(f'{path.stem}_equal.md'), EQUAL, equal)


def _scores(own: Search, found: rates.Found | None) -> str:
  if not found:
    return NO_SEARCH
  each = [f'{point.label}: {point.cells()[1]}' for point in found.points]
  edge = ['at the edge of the grid'] if found.at_edge else []
  return '; '.join([*each, *edge])


def _percent(value: float) -> str:
  return '' if np.isnan(value) else f'{value:.1f}'


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
  row |= {'claim': one.claim.name, 'alone': one.alone, 'rates': one.rates}
  if one.found:
    row |= {'arm': one.arm, 'base': one.base} | one.found._asdict()
    row['by_target'] = {t: x._asdict() for t, x in one.targets.items()}
  return row
