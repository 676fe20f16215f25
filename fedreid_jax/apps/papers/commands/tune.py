"""Choose the rate of a method on held-out persons: `fedreid tune`.

  fedreid tune dfh --grid='optim.lr=0.01,0.02,0.05,0.1' --seeds=0,1
  fedreid tune dfh:photos,data.root=DIR --workers=2
  fedreid tune fedprox --grid='optim.lr=0.02,0.05;fedprox.mu=0.01,0.1'

Each point of the grid is trained with each seed. Persons of every client are
held out of the training, a quarter of them where the recipe has no other share
(`evaluation.validation`). The point with the highest mean mAP of the last round
on these persons is chosen; the targets play no part. A point of which a run
diverges is never chosen.

`tuned.json` in the work directory has the grid, the seeds, the rounds that were
trained, the share of persons, every score and the choice; `tuned.md` is the
table. The same command resumes. A rate is a part of a method: compare methods
that have been tuned with the same grid, seeds and rounds.
"""

import functools
import shlex
import sys
from pathlib import Path
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.tables.declare import RATES
from fedreid_jax.cli import run
from fedreid_jax.config import parsing, presets, recipes, schema

TAKES_RECIPE = True

_GRID = flags.DEFINE_string(
  'grid', f'optim.lr={",".join(RATES)}', 'KEY=VALUE,VALUE;KEY=VALUE,VALUE.'
)
_SEEDS = flags.DEFINE_string('seeds', '0', 'Seeds of every point: 0,1,2.')
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th run from I.')


def main(argv: list[str]) -> None:
  """Trains the points of a grid and prints the choice."""

  def body():
    if not run.FLAGS.config:
      raise errors.ConfigError(
        'no recipe', 'command line', 'try: fedreid tune dfh'
      )
    chosen = run.config()
    if not chosen.evaluation.validation:
      changes = [f'evaluation.validation={presets.HELD_OUT}']
      chosen = parsing.change(schema.editable(chosen), changes)
      print(f'held out of every client: {presets.HELD_OUT:.0%} of its persons')
    sweep = grid.Sweep(
      '', (), grid=grid.parse(_GRID.value), seeds=grid.seeds(_SEEDS.value)
    )
    points = grid.cells({chosen.name: lambda: chosen}, sweep)
    _tune(points)

  run.guarded(argv, body)


def _tune(points: list[grid.Point]) -> None:
  from fedreid_jax.apps.papers import cells, rates, runner
  from fedreid_jax.training import loop

  own = points[0].config
  name = cells.folder_name([own.name], grid.identity(points))
  folder = Path('runs', 'tuned', name).absolute()
  if run.FLAGS.workdir:
    folder = run.workdir()
  made = [cells.make_cell(p.label, p.config, folder, p.facts) for p in points]
  by_point: dict[str, list[cells.Cell]] = {}
  for cell in made:
    label = ' '.join(f'{k}={v}' for k, v in cell.factors.items())
    by_point.setdefault(label, []).append(cell)
  folder.mkdir(parents=True, exist_ok=True)
  own_runs = cells.take_shard(made, _SHARD.value)

  def check() -> None:  # not after hours, if domains are too small
    for cell in own_runs:
      rates.score(cell)

  check()
  runner.train_all(
    [cell for cell in own_runs if not rates.ended(cell)],
    functools.partial(loop.train, verbose=run.workers() == 1),
    check,
    run.workers(),
    lambda cell: True,
  )
  found = rates.search(by_point)
  if found is None:
    print('runs of other shards have not ended')
    return
  _report(found, folder, own)


def _report(found: Any, folder: Path, own: Any) -> None:
  """Writes and prints the result of a search."""
  from rich import console

  from fedreid_jax.apps.papers import rates, report
  from fedreid_jax.training.files import recorder
  from fedreid_jax.training.reports import console_table

  described = {
    'recipe': own.name,
    'seeds': grid.seeds(_SEEDS.value),
    'validation': own.evaluation.validation,
    **found.described(),
  }
  recorder.write_json(folder / 'tuned.json', described)
  rows = [point.cells() for point in found.points]
  report.write_markdown(folder / 'tuned.md', rates.COLUMNS, rows)
  notes = [f'rounds trained: {found.rounds}']
  if found.at_edge:
    notes.append('the choice is at the edge of the grid: try values beyond it')
  console_table.show(
    console.Console(highlight=False),
    f'{own.name}: mAP on held-out persons of the clients',
    rates.COLUMNS,
    rows,
    (),
    notes,
  )
  if not found.chosen:
    raise errors.DivergedError(
      'every point diverged', '--grid', 'give lower values of optim.lr'
    )
  print(f'chosen: {found.chosen}')
  fields = [x for x in sys.argv[1:] if x.startswith('--config.')]
  (best,) = (p for p in found.points if p.label == found.chosen)
  fields += [f'--config.{k}={v}' for k, v in best.fields.items()]
  spec, own = run.FLAGS.config, f'{recipes.folder()}/'
  if spec.startswith(own):  # a recipe of the package has a short name
    spec = spec.removeprefix(own).replace('.py', '', 1)
  words = ['train', spec, *fields]
  run.next_step(folder, shlex.join(words))
