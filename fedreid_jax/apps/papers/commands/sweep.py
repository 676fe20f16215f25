"""Run a grid of configurations: `fedreid sweep`.

  fedreid sweep fedpav:synthetic \\
    --grid='optim.lr=0.01,0.05;rounds=10,20' --seeds=0,1,2 --workdir=DIR
  fedreid sweep --recipes=fedpav,dfh \\
    --arg=smoke,rounds=4 --baseline=fedpav
  fedreid sweep --sweep=fedreidbench_batch [--arg=smoke]
  fedreid sweep dppt:paper,data.root=DIR \\
    --trials=regdb

A cell is one combination of a recipe and values of fields. In the grid,
`local.epochs+rounds=(1,300),(5,60)` changes two fields together. Every run has
a folder in the work directory. `table.csv` and `table.md` contain the mean and
the sample standard deviation over the finished runs of a cell, one for every
seed. With `--trials=regdb` each seed has a run for each of the ten trials of
the data set, which replace the training and test images;
`--trials='regdb:trial=1;regdb:trial=2'` takes two of them. With `--baseline`
runs with the same seed are paired: the table has the mean of their differences,
its 95 % interval and the number of pairs.

The same command resumes a sweep. `--shard=0/2` and `--shard=1/2` split the runs
of one work directory between two processes, and `--workers=2` trains two runs
at a time, each on a GPU or on half of the cores.
"""

import dataclasses
import functools
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid, sweeps
from fedreid_jax.cli import run
from fedreid_jax.config import recipes

TAKES_RECIPE = True

_SWEEP = flags.DEFINE_string(
  'sweep', None, 'Sweep of a paper, or a file whose get_sweep() returns one.'
)
_RECIPES = flags.DEFINE_list('recipes', [], 'List of FILE[:key=value].')
_ARG = flags.DEFINE_string(
  'arg', None, 'PRESET[,key=value,...] of each recipe.'
)
_GRID = flags.DEFINE_string('grid', None, 'KEY=VALUE,VALUE;KEY=VALUE,VALUE.')
_SEEDS = flags.DEFINE_string('seeds', None, 'Seeds of every cell: 0,1,2.')
_TRIALS = flags.DEFINE_string(
  'trials', None, 'Data set with trials: one run each, in the same mean.'
)
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th cell from I.')
_BASELINE = flags.DEFINE_string(
  'baseline', None, 'Label or work directory of the baseline.'
)


def main(argv: list[str]) -> None:
  """Trains the runs of all cells and prints the table."""

  def body():
    sweep = _sweep()
    if run.FLAGS.config:
      chosen = run.config()
      made = {chosen.name: lambda: chosen}
      points = grid.cells(made, sweep)
    else:
      points = grid.of_sweep(sweep)
    from fedreid_jax.apps.papers import cells, runner
    from fedreid_jax.training import loop

    stem = Path(_SWEEP.value or points[0].config.name).stem
    name = cells.folder_name([stem], grid.identity(points))
    folder = Path('runs', 'sweeps', name).absolute()
    if run.FLAGS.workdir:
      folder = run.workdir()
    runner.run(
      [
        cells.make_cell(p.label, p.config, folder, p.facts, p.trial)
        for p in points
      ],
      folder / 'table',
      functools.partial(loop.train, verbose=run.workers() == 1),
      title=sweep.about or points[0].config.name,
      shard=_SHARD.value,
      num_workers=run.workers(),
      baseline=sweep.baseline,
    )
    run.next_step(folder, 'visualize --workdir=DIR --what=curves')

  run.guarded(argv, body)


def _sweep() -> grid.Sweep:
  ways = (run.FLAGS.config, _RECIPES.value, _SWEEP.value)
  if sum(map(bool, ways)) != 1 or (run.FLAGS.config and _ARG.value):
    raise errors.ConfigError(
      'the sweep is given in no way or in several',
      'command line',
      'give --config, or --recipes and --arg, or --sweep',
    )
  sweep = grid.Sweep(', '.join(_RECIPES.value), _RECIPES.value, seeds=(0,))
  if _SWEEP.value:
    sweep = sweeps.SWEEPS.get(_SWEEP.value) or recipes.call(
      _SWEEP.value, 'get_sweep'
    )
    if not isinstance(sweep, grid.Sweep):
      raise errors.ConfigError(
        'get_sweep() does not return a Sweep',
        _SWEEP.value,
        'return fedreid_jax.apps.papers.grid.Sweep',
      )
  given = {
    'arg': _ARG.value,
    'grid': _GRID.value and grid.parse(_GRID.value),
    'seeds': _SEEDS.value and grid.seeds(_SEEDS.value),
    'baseline': _BASELINE.value,
    'trials': _TRIALS.value,
  }
  changed = {name: value for name, value in given.items() if value}
  return dataclasses.replace(sweep, **changed)
