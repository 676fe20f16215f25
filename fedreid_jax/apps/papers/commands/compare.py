"""Compare methods with a baseline: `fedreid compare BASELINE METHOD...`.

  fedreid compare fedpav fedpav+mine.power_rule --seeds=0,1,2
  fedreid compare fedpav fedprox dfh --arg=smoke,rounds=6 --workdir=DIR
  fedreid compare 'fedpav:optim.lr=0.05' 'fedpav+fedprox:optim.lr=0.05'
  fedreid compare fedpav 'fedpav+mine.decor:decor.weight=0.5'

A method is a recipe, then `+COMPONENT` for each added component (a name of
`fedreid list components`, or your module), then a colon and fields. All methods
are trained with the same seeds. The table has the mAP of the method and of the
baseline, the mean of their paired differences with its 95 % interval, and the
smallest effect that an experiment of as many seeds and targets finds in 80 % of
repetitions. An interval that contains zero decides nothing. A seed counts when
its runs have ended for all methods. A method whose models are those of the
baseline, to the bit, is said to be identical.

`--arg` may be given several times, for routes of different training domains;
the effects are then over the targets of all routes. `--targets` joins targets
by regular expressions, for example all that are shifted in one way:

  fedreid compare fedpav dfh --targets='.*[+]noise' --targets='[a-z]+' \\
    --arg='trial,data.targets=("mall","park","mall:shift=noise")'

`compare.md`, `compare.json` and `compare.png` in the work directory are written
after every run. The default work directory is a folder of `runs/compared`,
named after the methods and `--arg`. The same command resumes; `--shard=0/2` and
`--shard=1/2` split the runs between two processes, and `--workers=2` trains two
runs at a time. The command needs fedreid_jax[viz], which it checks before it
trains.
"""

import functools
import typing
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.tables.declare import Models
from fedreid_jax.cli import run

_ARG = flags.DEFINE_multi_string(
  'arg',
  ['synthetic'],
  'PRESET[,FIELD=VALUE,...] of all methods; give one for each route.',
)
_SEEDS = flags.DEFINE_string('seeds', '0,1,2', 'Seeds of every method.')
_MODELS = flags.DEFINE_enum(
  'models',
  'global',
  list(typing.get_args(Models)),
  'Models of a run that are compared; `client` is the mean over the own models '
  'of the clients.',
)
_TARGETS = flags.DEFINE_multi_string(
  'targets', [], 'Pattern of the names of targets whose mean has a row.'
)
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th run from I.')


def main(argv: list[str]) -> None:
  """Trains the methods and prints their effects."""

  def body():
    methods = argv[1:]
    if len(methods) < 2:
      raise errors.ConfigError(
        f'{errors.counted(len(methods), "method")} to compare',
        'command line',
        'give a baseline and a method: fedreid compare fedpav fedprox',
      )
    if run.FLAGS.config:
      raise errors.ConfigError(
        '--config has no effect', 'command line', 'give the fields by --arg'
      )
    from rich import console

    from fedreid_jax.apps.papers import cells, comparison, runner
    from fedreid_jax.figures import canvas
    from fedreid_jax.training import loop
    from fedreid_jax.training.reports import console_table

    # Seeds are no part of the name: more of them continue a comparison.
    name = cells.folder_name(methods, (*methods, *_ARG.value), 60)
    folder = Path('runs', 'compared', name).absolute()
    if run.FLAGS.workdir:
      folder = run.workdir()
    canvas.check(folder / 'compare.png')  # before the first run
    seeds = grid.seeds(_SEEDS.value)
    planned = comparison.plan(methods, _ARG.value, seeds, folder)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = typing.cast(Models, _MODELS.value)

    def write() -> tuple[list[comparison.Row], list[str]]:
      rows = comparison.compare(planned, chosen, _TARGETS.value)
      left_out = comparison.unfinished(planned)
      comparison.write(folder / 'compare', methods[0], rows, left_out)
      below = comparison.notes(methods[0], rows)
      return rows, [*below, *comparison.said(left_out)]

    train = functools.partial(loop.train, verbose=run.workers() == 1)
    try:
      runner.train_all(
        cells.take_shard(planned, _SHARD.value), train, write, run.workers()
      )
    finally:
      # Also after an error or a signal: the finished runs have results.
      rows, notes = write()
      console_table.show(
        console.Console(highlight=False),
        f'compared with {methods[0]}',
        comparison.COLUMNS,
        [row.cells() for row in rows],
        ('seeds',),
        [comparison.ABOUT if rows else 'no seed has ended yet', *notes],
      )
    print(f'work directory: {folder}')

  run.guarded(argv[:1], body)
