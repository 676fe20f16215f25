"""Try the claims of the papers: `fedreid study --claims`.

  fedreid study --list          # all claims, and how many runs
  fedreid study --claims --first --seeds=0,1,2
  fedreid study --claims=dfh,expert --seeds=0,1,2,3,4

A claim compares two methods. A method whose recipe holds out persons of the
training domains (`evaluation.validation`) has, on each route, the rate of
`--rates` that is best on them, as `fedreid tune` chooses it; others have the
rates of their recipes, as all have with `--rates=`. Both are trained with the
same seeds and compared query by query; docs/protocol.md describes how a claim
is judged. The most important claims are tried first.
`claims.md`, `claims.json` and `claims.png` in the work directory are written
after every run, `claims_rates.md` and `claims_equal.md` (both methods at the
same rate) at the end. The same command resumes a study; `--shard=0/2` and
`--shard=1/2` split the runs of one work directory between two processes, and
`--workers=2` trains two runs at a time. `--omniglot=FOLDS` tries the claims
that have a meaning there on real handwriting, in the folds of
`benchmarks.omniglot_folds`. `--judge` trains nothing and judges the runs that
have ended, as those of an archive. The command needs fedreid_jax[viz].
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.tables import omniglot
from fedreid_jax.apps.papers.tables.declare import RATES, Claim
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
_RATES = flags.DEFINE_list(
  'rates',
  list(RATES),
  'Rates of the search of every method that holds out persons, on every route; '
  'empty: all methods have the rate of their recipe.',
)
_SEARCH_SEEDS = flags.DEFINE_string('search_seeds', '0', 'Seeds of searches.')
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
    from fedreid_jax.apps.papers import planning
    from fedreid_jax.figures import canvas

    name = 'claims-omniglot' if _OMNIGLOT.value else 'claims'
    folder = Path('runs', name).absolute()
    if run.FLAGS.workdir:
      folder = run.workdir()
    canvas.check(folder / 'claims.png')  # before the first run
    folder.mkdir(parents=True, exist_ok=True)
    own = functools.partial(
      planning.plan, chosen, grid.seeds(_SEEDS.value), folder, _SET.value
    )
    _try(chosen, functools.partial(own, _grid()), folder)

  run.guarded(argv, body, with_jax=not _LIST.value)


def _grid() -> Any:
  from fedreid_jax.apps.papers import planning, rates

  given = [pair.partition('=')[0].strip() for pair in _SET.value]
  if any(_RATES.value) and rates.RATE in given:
    raise errors.ConfigError(
      'the rate of every method is searched for',
      f'--set={rates.RATE}',
      'give --rates, or --rates= with it',
    )
  seeds = grid.seeds(_SEARCH_SEEDS.value)
  return planning.Grid(tuple(filter(None, _RATES.value)), seeds)


def _try(claims: list[Claim], plan: Callable[[], Any], folder: Path) -> None:
  """Trains what the claims need as far as it is known, and judges them."""
  from fedreid_jax.apps.papers import cells, planning, rates, runner, study
  from fedreid_jax.training import loop
  from fedreid_jax.training.reports import console_table

  # Reading the queries of all runs takes time, and this is called after every
  # run. The key `ended` changes when another seed has ended.
  @functools.cache
  def judge(number: int, ended: tuple[int, ...], rates: str) -> study.Judged:
    claim = claims[number]
    own = [x for x in planned.trials[claim.name] if x.seed in ended]
    return study.judge(claim, own)

  def write() -> str:
    judged = []
    for number, claim in enumerate(claims):
      own = planned.trials[claim.name]
      # A search that goes on may change the rate of the runs.
      key = study.rates_of(own[0]) if own else ''
      judged.append(judge(number, planning.ended(own), key))
    return study.write(folder / 'claims', judged)

  train = functools.partial(loop.train, verbose=run.workers() == 1)
  planned, tried = plan(), set()
  try:
    while not _JUDGE.value:
      searching = [c for c in planned.searching() if not rates.ended(c)]
      # The runs of a search keep their order, and so their shard, while the
      # plan grows.
      stage = planned.cells()
      if _SHARD.value and searching:
        stage = planned.searching()
      runs = cells.take_shard(stage, _SHARD.value)
      waiting = planned.waiting(runs, tried)
      if not waiting:
        if _SHARD.value and searching:
          print('searches of other shards go on: repeat the command then')
        break
      tried |= {str(cell.workdir) for cell in waiting}
      runner.train_all(
        waiting, train, write, run.workers(), planned.may_diverge
      )
      planned = plan()
  finally:
    console_table.markdown(write())
    study.write_rates(folder / 'claims', planned, claims)
  for line in cells.unchecked(planned.cells()):
    print(line)
  for own in planned.searches:
    if own.found and not own.chosen:
      print(f'every rate diverged: {own.recipe} on {own.route}')
  unknown = [c.name for c in claims if not planned.trials[c.name]]
  if unknown:
    print(f'without a rate of both methods: {", ".join(unknown)}')


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
        f'no claim {name!r}', '--claims', errors.one_of(name, known)
      )
  found = [known[name] for name in names]
  return [claim for claim in found if claim.first or not _FIRST.value]


def _print_list(chosen: list[Claim]) -> None:
  from fedreid_jax.apps.papers import cells, planning

  for claim in chosen:
    line = f'{claim.name:<20} {claim.source}: {claim.text}'
    print(errors.folded(line, indent=' ' * 21))
  seeds = grid.seeds(_SEEDS.value)
  planned = planning.plan(chosen, seeds, Path(), _SET.value)
  # Claims share runs: cells with the same folder count once.
  runs = len(cells.take_shard(planned.cells(), ''))
  searched = planning.plan(chosen, seeds, Path(), _SET.value, _grid())
  more = len({str(cell.workdir) for cell in searched.searching()})
  line = f'{errors.counted(len(chosen), "claim")}, '
  line += f'{errors.counted(runs, "run")} with these seeds'
  if more:
    line += f', and up to {errors.counted(more, "run")} to choose their rates'
  print(line)
