"""Try the claims of the papers: `python -m launchers.study --claims`.

  python -m launchers.study --list                     # all claims
  python -m launchers.study --claims --first --seeds=0,1,2
  python -m launchers.study --claims=dfh,expert --seeds=0,1,2,3,4

Both arms of a claim are run on the same routes with the same seeds and compared
query by query; docs/protocol.md says how a claim is judged. The most important
claims come first. `claims.md`, `claims.json` and `claims.png` in the work
directory are written after every run. The same command resumes a study;
`--shard=0/2` and `--shard=1/2` split the runs of one work directory between two
processes.
"""

from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.config import claims, grid

_CLAIMS = flags.DEFINE_string(
  'claims', 'all', 'Names of claims, separated by commas; or all.'
)
_LIST = flags.DEFINE_bool('list', False, 'Print the claims.')
_FIRST = flags.DEFINE_bool('first', False, 'Only the main claims of a paper.')
_SEEDS = flags.DEFINE_string('seeds', '0,1,2,3,4', 'Seeds of every arm.')
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th run from I.')
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field in every run.'
)


def _chosen() -> list[claims.Claim]:
  names = list(claims.CLAIMS)
  if _CLAIMS.value not in ('', 'all'):
    names = _CLAIMS.value.split(',')
  for name in names:
    if name not in claims.CLAIMS:
      raise errors.ConfigError(
        f'no claim {name!r}', '--claims', f'one of {", ".join(claims.CLAIMS)}'
      )
  found = [claims.CLAIMS[name] for name in names]
  return [claim for claim in found if claim.first or not _FIRST.value]


def main(argv: list[str]) -> None:
  """Runs the trials of claims and prints the verdicts."""

  def body():
    chosen = _chosen()
    if _LIST.value:
      for claim in chosen:
        print(f'{claim.name:<20} {claim.source}: {claim.text}')
      return
    if run.FLAGS.config:
      raise errors.ConfigError(
        'a study has its own recipes', '--config', 'use --set=KEY=VALUE'
      )
    given = run.FLAGS.workdir
    folder = run.workdir() if given else Path('runs', 'claims').absolute()
    folder.mkdir(parents=True, exist_ok=True)
    from fedreid_jax.figures import effects as figure
    from fedreid_jax.sweeps import runner, study
    from fedreid_jax.training import loop

    trials = study.plan(chosen, grid.seeds(_SEEDS.value), folder, _SET.value)

    def write() -> str:
      judged = [study.judge(c, trials[c.name]) for c in chosen]
      figure.write(judged, folder / 'claims.png')
      return study.write(folder / 'claims', judged)

    runs = runner.take_shard(study.cells(trials), _SHARD.value)
    try:
      runner.train_all(runs, loop.train, write)
    finally:
      print(write())

  run.guarded(argv, body, with_jax=not _LIST.value)
