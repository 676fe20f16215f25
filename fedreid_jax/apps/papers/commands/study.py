"""Try the claims of the papers: `fedreid study --claims`.

  fedreid study --list          # all claims, and how many runs
  fedreid study --claims --first --seeds=0,1,2
  fedreid study --claims=dfh,expert --seeds=0,1,2,3,4

A claim compares two methods. Both are trained on the same routes with the same
seeds and compared query by query; docs/protocol.md describes how a claim is
judged. The most important claims are tried first. `claims.md`, `claims.json`
and `claims.png` in the work directory are written after every run. The same
command resumes a study; `--shard=0/2` and `--shard=1/2` split the runs of one
work directory between two processes, and `--workers=2` trains two runs at a
time. `--omniglot=FOLDS` tries the claims that have a meaning there on real
handwriting, in the folds of `benchmarks.omniglot_folds`. `--judge` trains
nothing and judges the runs that have ended, as those of an archive. The command
needs fedreid_jax[viz].
"""

import functools
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.tables import omniglot
from fedreid_jax.apps.papers.tables.declare import Claim
from fedreid_jax.apps.papers.tables.index import CLAIMS
from fedreid_jax.cli import run
from fedreid_jax.config import parsing


class _Names(flags.Flag):
  """Names of claims; `--claims` without a value keeps the default, all."""

  def __init__(self, name: str, default: str, text: str):
    super().__init__(
      flags.ArgumentParser(), flags.ArgumentSerializer(), name, default, text
    )
    # absl takes no value from the next argument for a boolean flag, and gives
    # it the text 'true', see `_parse`.
    self.boolean = True

  def _parse(self, argument: str) -> str | None:
    return super()._parse(self.default if argument == 'true' else argument)


_CLAIMS = flags.DEFINE_flag(
  _Names('claims', 'all', 'Names of claims, separated by commas; or all.')
)
_LIST = flags.DEFINE_bool('list', False, 'Print the claims.')
_FIRST = flags.DEFINE_bool('first', False, 'Only the main claims of a paper.')
_SEEDS = flags.DEFINE_string('seeds', '0,1,2,3,4', 'Seeds of every arm.')
_JUDGE = flags.DEFINE_bool('judge', False, 'Judge ended runs, and train none.')
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th run from I.')
_OMNIGLOT = flags.DEFINE_string(
  'omniglot', '', 'Folds of Omniglot, in place of rendered persons.'
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field in every run.'
)


def main(argv: list[str]) -> None:
  """Trains the runs of claims and prints the verdicts."""

  def body():
    chosen = _chosen()
    parsing.check_once(_SET.value, '--set')
    if _LIST.value:
      _print_list(chosen)
      return
    if run.FLAGS.config:
      raise errors.ConfigError(
        'a study has its own recipes', '--config', 'use --set=KEY=VALUE'
      )
    from fedreid_jax.apps.papers import cells, runner, study
    from fedreid_jax.figures import canvas
    from fedreid_jax.training import loop
    from fedreid_jax.training.reports import console_table

    name = 'claims-omniglot' if _OMNIGLOT.value else 'claims'
    folder = Path('runs', name).absolute()
    if run.FLAGS.workdir:
      folder = run.workdir()
    canvas.check(folder / 'claims.png')  # before the first run
    by_name = {claim.name: claim for claim in chosen}
    planned = study.plan(chosen, grid.seeds(_SEEDS.value), folder, _SET.value)
    folder.mkdir(parents=True, exist_ok=True)

    # Reading the queries of all runs takes time, and this is called after every
    # run. The key `ended` changes when another seed has ended.
    @functools.cache
    def judge(name: str, ended: tuple[int, ...]) -> study.Judged:
      own = [trial for trial in planned[name] if trial.seed in ended]
      return study.judge(by_name[name], own)

    def write() -> str:
      judged = [judge(name, study.ended(planned[name])) for name in by_name]
      return study.write(folder / 'claims', judged)

    runs = cells.take_shard(study.runs_of(planned), _SHARD.value)
    if _JUDGE.value:
      console_table.markdown(write())
      for line in cells.unchecked(runs):
        print(line)
      return
    train = functools.partial(loop.train, verbose=run.workers() == 1)
    try:
      runner.train_all(runs, train, write, run.workers())
    finally:
      console_table.markdown(write())

  run.guarded(argv, body, with_jax=not _LIST.value)


def _chosen() -> list[Claim]:
  known = CLAIMS
  if _OMNIGLOT.value:
    known = omniglot.claims(CLAIMS, Path(_OMNIGLOT.value))
  names = list(known)
  if _CLAIMS.value not in ('', 'all'):
    names = _CLAIMS.value.split(',')
  for name in names:
    if name not in known:
      raise errors.ConfigError(
        f'no claim {name!r}', '--claims', f'one of {", ".join(known)}'
      )
  found = [known[name] for name in names]
  return [claim for claim in found if claim.first or not _FIRST.value]


def _print_list(chosen: list[Claim]) -> None:
  from fedreid_jax.apps.papers import cells, study

  for claim in chosen:
    line = f'{claim.name:<20} {claim.source}: {claim.text}'
    print(errors.folded(line, indent=' ' * 21))
  seeds = grid.seeds(_SEEDS.value)
  planned = study.plan(chosen, seeds, Path(), _SET.value)
  # Claims share runs: cells with the same folder count once.
  runs = cells.take_shard(study.runs_of(planned), '')
  print(
    f'{errors.counted(len(chosen), "claim")}, '
    f'{errors.counted(len(runs), "run")} with these seeds'
  )
