"""Run a grid of configurations: `python -m launchers.sweep`.

  python -m launchers.sweep --config=configs/fedpav.py:synthetic \
    --grid='optim.lr=0.01,0.05;rounds=10,20' --seeds=0,1,2 --workdir=DIR
  python -m launchers.sweep --recipes=configs/fedpav.py,configs/dfh.py \
    --arg=smoke,rounds=4 --baseline=fedpav
  python -m launchers.sweep --sweep=fedreidbench_batch [--arg=smoke]

`local.epochs+rounds=(1,300),(5,60)` changes fields together. Every cell is a
run in its own folder of the work directory. `table.csv` and `table.md` contain
mean and standard deviation over seeds of all finished runs. The same command
resumes a sweep; `--shard=0/2` and `--shard=1/2` split the cells of one work
directory between two processes.
"""

import copy
import dataclasses
import functools
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.config import grid, recipes

_SWEEP = flags.DEFINE_string(
  'sweep', None, 'File whose get_sweep() returns the sweep.'
)
_RECIPES = flags.DEFINE_list('recipes', [], 'List of FILE[:key=value].')
_ARG = flags.DEFINE_string(
  'arg', None, 'PRESET[,key=value,...] of each recipe.'
)
_GRID = flags.DEFINE_string('grid', None, 'KEY=VALUE,VALUE;KEY=VALUE,VALUE.')
_SEEDS = flags.DEFINE_string('seeds', None, 'Seeds of every cell: 0,1,2.')
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th cell from I.')
_BASELINE = flags.DEFINE_string(
  'baseline', None, 'Label or work directory of the baseline.'
)


def _sweep() -> grid.Sweep:
  """Returns the sweep of a file or of flags, with changes by other flags."""
  ways = (run.FLAGS.config, _RECIPES.value, _SWEEP.value)
  if sum(map(bool, ways)) != 1 or (run.FLAGS.config and _ARG.value):
    raise errors.ConfigError(
      'the sweep is given in no way or in several',
      'command line',
      'give --config, or --recipes and --arg, or --sweep',
    )
  sweep = grid.Sweep(', '.join(_RECIPES.value), _RECIPES.value, seeds=(0,))
  if _SWEEP.value:
    sweep = recipes.call(_SWEEP.value, 'get_sweep')
    if not isinstance(sweep, grid.Sweep):
      raise errors.ConfigError(
        'get_sweep() does not return a Sweep',
        _SWEEP.value,
        'return fedreid_jax.config.grid.Sweep',
      )
  given = {
    'arg': _ARG.value,
    'grid': _GRID.value and grid.parse(_GRID.value),
    'seeds': _SEEDS.value and grid.seeds(_SEEDS.value),
    'baseline': _BASELINE.value,
  }
  changed = {name: value for name, value in given.items() if value}
  return dataclasses.replace(sweep, **changed)


def main(argv: list[str]) -> None:
  """Runs every cell and prints the table."""

  def body():
    sweep = _sweep()
    if run.FLAGS.config:
      chosen = run.config()
      made = {chosen.name: functools.partial(copy.deepcopy, chosen)}
      points = grid.cells(made, sweep.grid, sweep.seeds)
    else:
      points = grid.of_sweep(sweep)
    name = Path(_SWEEP.value or points[0].config.name).stem
    folder = Path('runs', 'sweeps', name).absolute()
    if run.FLAGS.workdir:
      folder = run.workdir()
    from fedreid_jax.sweeps import runner
    from fedreid_jax.training import loop

    runner.run(
      [runner.make_cell(p.label, p.config, folder, p.facts) for p in points],
      folder / 'table',
      functools.partial(loop.train, verbose=True),
      title=sweep.about or points[0].config.name,
      shard=_SHARD.value,
      baseline=sweep.baseline,
    )

  run.guarded(argv, body)
