"""Train or resume a run: `fedreid train RECIPE[:PRESET,FIELD=VALUE...]`.

  fedreid train                               # FedPav, in minutes
  fedreid train dfh:smoke                     # seconds, to see that it works
  fedreid train fedpav --workdir=runs/first   # the same command resumes
  fedreid train dfh --config.rounds=40 --config.optim.lr=0.02
  fedreid train fedpav+mine.decor:smoke --config.decor.weight=0.5
  fedreid train dfh:paper --config.data.root=DIR --dry_run

`+COMPONENT` adds a component of `fedreid list components`, or a module of
yours, to those of the recipe.

`--dry_run` trains nothing. It prints the configuration, the clients, the
parameters, the bytes, operations and memory of a round, and the files of the
run.
"""

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

TAKES_RECIPE = True

RECIPE = 'fedpav'  # if the command line names none

_RESTART = flags.DEFINE_bool(
  'restart', False, 'Delete the files of an earlier run in the work directory.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Print what a run does and needs, and do not train.'
)

_VERBOSE = flags.DEFINE_bool(
  'verbose', False, 'Print all figures of a round below its line.'
)


def main(argv: list[str]) -> None:
  """Trains, resumes or, with `--dry_run`, describes the configured run."""

  def body():
    chosen, workdir = run.config(), run.workdir()
    if _DRY_RUN.value:
      from fedreid_jax.training.reports import dry_run

      for line in dry_run.lines(chosen, workdir):
        print(errors.folded(line), flush=True)
      return
    from fedreid_jax.training import loop

    loop.train(chosen, workdir, _RESTART.value, 2 if _VERBOSE.value else 1)
    run.next_step(workdir, 'evaluate --workdir=DIR --checkpoint=best')

  run.guarded(argv, body)
