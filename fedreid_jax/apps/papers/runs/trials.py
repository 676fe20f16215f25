"""Plans the runs that decide claims, and their order."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.apps.papers.claims.declare import Arm, Claim, Route
from fedreid_jax.apps.papers.runs.attempt import Train
from fedreid_jax.apps.papers.runs.cells import Cell, make_cell, results
from fedreid_jax.config import recipes, validation


class Trial(NamedTuple):
  """The runs of a claim with one seed.

  Attributes:
    seed: seed of all runs.
    runs: (run of the arm, run of its base) by route.
    starts: runs from whose models these start.
  """

  seed: int
  runs: Mapping[str, tuple[Cell, Cell]]
  starts: Sequence[Cell] = ()


def plan(
  claims: Iterable[Claim],
  seeds: Sequence[int],
  folder: Path,
  changes: Sequence[str] = (),
) -> dict[str, list[Trial]]:
  """Returns the trials of every claim, by its name.

  Runs with the same configuration have the same work directory, so claims share
  them.

  Raises:
    ConfigError: for a recipe or a field that does not exist.
  """

  def cell(label: str, recipe: str, route: Route, seed: int, start: str = ''):
    own = ','.join((*route.changes, *changes, f'seed={seed}'))
    config = recipes.recipe(f'{recipe},{own}', '')
    config.start_from = start
    return make_cell(label, validation.validate(config), folder, {})

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


def cells(trials: Mapping[str, Sequence[Trial]]) -> list[Cell]:
  """Returns the runs of all trials: claim by claim, seed by seed."""
  found = [
    cell
    for own in trials.values()
    for trial in own
    for cell in (*trial.starts, *itertools.chain(*trial.runs.values()))
  ]
  # Runs that start from the models of another one come last; sorting is stable.
  return sorted(found, key=lambda cell: bool(cell.config.start_from))


def after_its_start(train: Train, config: Any, workdir: Path) -> Any:
  """Trains a run, unless the run of its `start_from` is not finished.

  Raises:
    ConfigError: if that run is not finished.
  """
  # Another shard may still train it: its last checkpoint is not the final one.
  start = Cell('', config, Path(config.start_from), {})
  if config.start_from and results(start) is None:
    raise errors.ConfigError(
      'the run that it starts from is not finished',
      config.start_from,
      'run the study again when the other shard has ended',
    )
  return train(config, workdir)


def ended(trials: Sequence[Trial]) -> tuple[int, ...]:
  """Returns the seeds of a claim for which all runs have ended."""
  return tuple(
    trial.seed
    for trial in trials
    if all(results(c) for pair in trial.runs.values() for c in pair)
  )
