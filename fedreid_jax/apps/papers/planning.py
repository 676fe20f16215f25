"""Plans the runs that decide claims, with a rate of its own for every arm.

A search trains an arm on a route with every rate, and chooses one as `rates`
describes. The runs of a claim follow when the rates of both its arms are known,
so that a study plans again when the runs of a plan have ended.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax.apps.papers import rates
from fedreid_jax.apps.papers.cells import Cell, make_cell, results
from fedreid_jax.apps.papers.tables.declare import Arm, Claim, Route
from fedreid_jax.config import parsing, recipes, validation


class Grid(NamedTuple):
  """How rates are searched for, the same for all arms."""

  rates: Sequence[str] = ()  # values of `optim.lr`; none: those of the recipes
  seeds: Sequence[int] = (0,)


class Search(NamedTuple):
  """The search of one arm on one route."""

  recipe: str
  route: str
  # By rate, a run for every seed of the grid. Empty for an arm that has the
  # rate of its recipe, because it holds out no persons.
  by_rate: Mapping[str, Sequence[Cell]]
  rate: str  # that of the recipe
  # The result when it was planned; None while a run has not ended, or without
  # runs.
  found: rates.Found | None

  @property
  def chosen(self) -> str:
    """The rate; '' if it is not known, or all runs have diverged."""
    if not self.by_rate:
      return self.rate
    return self.found.chosen if self.found else ''


class Trial(NamedTuple):
  """The runs of a claim with one seed."""

  seed: int
  # By route: (run of the arm, of its base).
  runs: Mapping[str, tuple[Cell, Cell]]
  starts: Sequence[Cell] = ()  # runs from whose models these start


class Plan(NamedTuple):
  """What is known of the runs of claims."""

  # By claim, none while a rate of its arms is not known.
  trials: dict[str, list[Trial]]
  searches: list[Search]
  # By claim and rate, the trials in which both arms have this rate.
  equal: dict[str, dict[str, list[Trial]]]

  def cells(self) -> list[Cell]:
    """The runs: of searches, then claim by claim and seed by seed.

    Runs that start from the models of another one come last.
    """
    found = self.searching()
    for trial in (x for own in self.trials.values() for x in own):
      found += trial.starts
      found += [cell for pair in trial.runs.values() for cell in pair]
    return sorted(found, key=lambda cell: bool(cell.config.start_from))

  def may_diverge(self, cell: Cell) -> bool:
    """Whether a run belongs to a search, in which divergence is a result."""
    found = {str(own.workdir) for own in self.searching()}
    return str(cell.workdir) in found

  def waiting(self, runs: Iterable[Cell], tried: Collection[str]) -> list[Cell]:
    """Those of some runs that can be trained now.

    Args:
      runs: runs of this plan.
      tried: folders of runs that have been tried and are not tried again. Runs
        that start from one of them that has no results are left out.
    """
    without = {str(c.workdir) for c in self.cells() if results(c) is None}
    failed = without & {*tried}
    # Outside of a search, divergence is a failure that may be tried again.
    done = {str(c.workdir) for c in self.searching() if rates.diverged(c)}
    return [
      cell
      for cell in runs
      if str(cell.workdir) in without - failed - done
      and cell.config.start_from not in failed
    ]

  def searching(self) -> list[Cell]:
    """The runs of all searches."""
    return [
      cell
      for own in self.searches
      for cells in own.by_rate.values()
      for cell in cells
    ]


def ended(trials: Sequence[Trial]) -> tuple[int, ...]:
  """The seeds of a claim for which all runs have ended."""
  return tuple(
    trial.seed
    for trial in trials
    if all(results(c) for pair in trial.runs.values() for c in pair)
  )


def plan(
  claims: Iterable[Claim],
  seeds: Sequence[int],
  folder: Path,
  changes: Sequence[str] = (),
  grid: Grid | None = None,
) -> Plan:
  """The runs of claims as far as they are known; equal ones are one run.

  Raises:
    ConfigError: for a recipe or a field that does not exist.
  """
  made = _Planner(folder, changes, grid or Grid())
  trials = {c.name: made.trials(c, seeds[: c.seeds]) for c in claims}
  equal = {c.name: made.equal(c) for c in claims}
  return Plan(trials, [*made.searches.values()], equal)


class _Planner:
  """Makes the cells of one plan."""

  def __init__(self, folder: Path, changes: Sequence[str], grid: Grid):
    self.folder, self.changes, self.grid = folder, changes, grid
    self.searches: dict[tuple[str, str, Route], Search] = {}
    # Half of the runs of all claims are those of others, too.
    self.run = functools.cache(self._run)

  def trials(self, claim: Claim, seeds: Sequence[int]) -> list[Trial]:
    """The trials of a claim, none while a rate is not known."""
    arms = claim.arm, claim.base
    # Every search is begun, also that of a second arm.
    known = [[self.rate(x, r) for x in arms] for r in claim.routes]
    if not all(rate for pair in known for rate in pair):
      return []
    return [
      self._trial(claim, seed, dict(zip(claim.routes, known, strict=True)))
      for seed in seeds
    ]

  def equal(self, claim: Claim) -> dict[str, list[Trial]]:
    """The trials of a claim by rate, from the runs of the searches."""
    arms = claim.arm, claim.base
    found = [self.search(x, route) for x in arms for route in claim.routes]
    if not all(own and own.by_rate for own in found):
      return {}
    return {
      rate: [
        self._trial(claim, seed, {r: (rate, rate) for r in claim.routes})
        for seed in self.grid.seeds
      ]
      for rate in self.grid.rates
    }

  def _trial(
    self, claim: Claim, seed: int, known: Mapping[Route, Sequence[str]]
  ) -> Trial:
    arms = claim.arm, claim.base
    runs, starts = {}, []
    for route, own in known.items():
      arm, base = (
        self.cell(x, route, rate, seed)
        for x, rate in zip(arms, own, strict=True)
      )
      runs[route.name] = (
        arm._replace(label=claim.name),
        base._replace(label=claim.name),
      )
      starts += [self.start(x, route, seed) for x in arms if x.start]
    return Trial(seed, runs, starts)

  def rate(self, arm: Arm, route: Route) -> str:
    """The rate of an arm on a route; '' if it is not known."""
    found = self.search(arm, route)
    return found.chosen if found else ''

  def search(self, arm: Arm, route: Route) -> Search | None:
    """The search of an arm; None while the rate of its start is not known."""
    if arm.start and not self.rate(Arm(arm.start), route):
      return None
    # The models that are tested make no difference.
    key = arm.recipe, arm.start, route
    if key not in self.searches:
      self.searches[key] = self._search(arm, route)
    return self.searches[key]

  def _search(self, arm: Arm, route: Route) -> Search:
    plain = self._recipe(arm.recipe, route)
    by_rate = {
      rate: [self.cell(arm, route, rate, seed) for seed in self.grid.seeds]
      for rate in (self.grid.rates if plain.evaluation.validation else ())
    }
    found = rates.search(by_rate) if by_rate else None
    return Search(arm.recipe, route.name, by_rate, repr(plain.optim.lr), found)

  def cell(self, arm: Arm, route: Route, rate: str, seed: int) -> Cell:
    """A run of an arm, whose start has a known rate."""
    start = str(self.start(arm, route, seed).workdir) if arm.start else ''
    return self.run(arm.recipe, route, rate, seed, start)

  def start(self, arm: Arm, route: Route, seed: int) -> Cell:
    """The run from whose models a run of an arm starts."""
    rate = self.rate(Arm(arm.start), route)
    return self.run(arm.start, route, rate, seed, '')

  def _run(
    self, recipe: str, route: Route, rate: str, seed: int, start: str
  ) -> Cell:
    config = self._recipe(recipe, route)
    own = [f'{rates.RATE}={rate}'] if rate else []
    config = parsing.change(config, [*own, f'seed={seed}'])
    config.start_from = start
    label = ', '.join(filter(None, (recipe, route.name, rate)))
    return make_cell(label, validation.validate(config), self.folder, {})

  def _recipe(self, recipe: str, route: Route) -> Any:
    spec = ','.join((recipe, *route.changes, *self.changes))
    return recipes.recipe(spec, '')
