"""Leave clients or persons out of a run: `fedreid forget --workdir=RUN`.

  fedreid forget --workdir=RUN --client=mall
  fedreid forget --workdir=RUN --identity=mall/17 --identity=plaza/anna
  fedreid forget --workdir=RUN --identity=anna --rounds=5 --judge

The run itself stays as it is. The result is a run in `--into`, whose
`config.json` has the departed in `data.without`; delete RUN when you have it.

Without `--rounds` the result is exact: the rounds are repeated from the last
checkpoint before the departed took part, mostly from the start, and the models
have the bits of a run that never had them. Train with
`--config.checkpoints_kept=all` to have earlier checkpoints. With `--rounds=N`
the models of the run are trained for N more rounds without the departed, which
costs less and proves nothing by itself.

`--judge` attacks the run, the result, and a run that never had the departed by
membership and by tracing, and writes `audit-forget.json`. An attack whose
control fails judges nothing; without any other the command ends with code 4.
docs/forgetting.md says what the figures mean, and what is not removed.

The same command goes on after an interruption.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

if TYPE_CHECKING:  # the import of all parts of a method takes a second
  from fedreid_jax.config.configuration import Config

LONGEST = 60  # letters of the names in the name of a folder
_CLIENT = flags.DEFINE_multi_string(
  'client', [], 'Client that leaves: its name, or that of its domain.'
)
_IDENTITY = flags.DEFINE_multi_string(
  'identity',
  [],
  'Person who leaves: DOMAIN/PERSON, or PERSON where one domain has the name. '
  'PERSON is the name in a folder of images, and else the number.',
)
_INTO = flags.DEFINE_string(
  'into', '', 'Work directory of the result (default: RUN-without-NAME).'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds',
  0,
  'Train so many more rounds without the departed, in place of the exact '
  'replay (default: exact).',
  0,
)
_JUDGE = flags.DEFINE_bool(
  'judge', False, 'Attack the result and a run that never had the departed.'
)
_REFERENCES = flags.DEFINE_integer(
  'references',
  2,
  'judge: number of runs without the departed, of other seeds, that are '
  'trained to compare with.',
  1,
  100,
)
_CHANGES = run.define_set()
_SEED = flags.DEFINE_integer(
  'seed', 0, 'judge: random seed of the intervals.', 0, 2**31 - 1
)


def main(argv: list[str]) -> None:
  """Trains a run without the departed, and judges it on request."""

  def body():
    workdir = run.given_workdir()
    if not (_CLIENT.value or _IDENTITY.value):
      raise errors.ConfigError(
        'nobody to forget', 'command line', 'give --client or --identity'
      )
    config = run.saved_config(workdir, _CHANGES.value)
    # JAX is imported after the checks of flags, so that mistakes show at once.
    from fedreid_jax.training import forgetting

    left = forgetting.leave(workdir, config, _CLIENT.value, _IDENTITY.value)
    into = _into(workdir, left.new)
    forgetting.check_into(left, into)
    asked: Any = ()
    attacked: Any = None
    if _JUDGE.value:
      from fedreid_jax.apps.audit import departed, forgotten

      # Before rounds are trained, what cannot be judged is refused.
      asked = departed.groups(left)
      attacked = _attacked(left)
      forgotten.check(asked, attacked)
    print(errors.folded(f'leaves out {", ".join(left.names)}'))
    for notice in forgetting.notices(left):
      print(errors.folded(f'note: {notice}'))
    if _ROUNDS.value:
      print(f'{errors.counted(_ROUNDS.value, "round")} more without them')
      forgetting.more_rounds(left, into, _ROUNDS.value, verbose=True)
    else:
      began = forgetting.start(left)
      print(errors.folded(_of_start(began)))
      forgetting.replay(left, into, began, verbose=True)
    if _JUDGE.value:
      _judge(left, into, asked, attacked)
    run.next_step(into, 'evaluate --workdir=DIR')

  run.guarded(argv, body)


def _into(workdir: Path, names: tuple[str, ...]) -> Path:
  if _INTO.value:
    return Path(_INTO.value).expanduser().absolute()
  return _without(workdir, names)


def _without(workdir: Path, names: tuple[str, ...]) -> Path:
  """The folder `RUN-without-NAME`, beside that of the run."""
  from fedreid_jax.config import parsing

  text = '-'.join(names).replace('/', '-')
  if len(text) > LONGEST:  # a file system has a limit
    text = f'{len(names)}-{parsing.digest(names)}'
  return workdir.with_name(f'{workdir.name}-without-{text}')


def _of_start(began: Any) -> str:
  if began.step:
    return (
      f'repeats the rounds after round {began.step}: the departed took part '
      f'from round {began.first}'
    )
  return 'repeats the run from its start'


def _attacked(left: Any) -> Any:
  from fedreid_jax.training import loaded_run

  return loaded_run.load(left.config, left.workdir, federation=left.federation)


def _judge(left: Any, into: Path, asked: Any, attacked: Any) -> None:
  """Trains what is missing, attacks the models, and writes the figures."""
  from fedreid_jax.apps.audit import forgotten
  from fedreid_jax.training.files import recorder

  start = time.perf_counter()
  models = _models(left, into, attacked)
  found, refused = {}, {}
  for name, attack in (
    (forgotten.MEMBERSHIP, forgotten.membership),
    (forgotten.TRACING, forgotten.tracing),
  ):
    try:
      found[name] = attack(asked, models, _SEED.value)
    except errors.ConfigError as error:
      refused[name] = str(error)
    else:
      if found[name].failed:
        refused[name] = '; '.join(found[name].failed)
    if name in refused:
      print(errors.folded(f'{name} is not judged: {refused[name]}'))
    else:
      print('\n'.join(forgotten.lines(name, found[name])))
  valid = bool(found.keys() - refused.keys())
  same_bits = _same_bits(models.judged, models.never)
  file = into / 'audit-forget.json'
  recorder.write_sealed(
    file,
    {
      'attack': 'forget',
      'run': str(left.workdir),
      'without': list(left.names),
      'rounds': _ROUNDS.value,
      'exact': not _ROUNDS.value,
      'references': _REFERENCES.value,
      'seed': _SEED.value,
      'valid': valid,
      'failed': [f'{name}: {text}' for name, text in refused.items()],
      'found': {name: run.plain(one) for name, one in found.items()},
      'same_bits': same_bits,
      'seconds': time.perf_counter() - start,
    },
  )
  same = 'has' if same_bits else 'has not'
  print(f'the result {same} the bits of the run that never had them')
  print(file)
  if not valid:
    reasons = [f'{name}: {text}' for name, text in refused.items()]
    raise errors.invalid_audit(reasons, file)


def _models(left: Any, into: Path, attacked: Any) -> Any:
  """Loads the models, and trains those that are not there."""
  from dataclasses import replace

  from fedreid_jax.apps.audit import forgotten
  from fedreid_jax.training import loaded_run, loop

  # Another result of the same request is judged with the same runs.
  runs = _without(left.workdir, left.new)
  runs = runs.with_name(f'{runs.name}-judge')

  def trained(config: 'Config', name: str) -> Any:
    print(f'trains {runs.name}/{name}', flush=True)
    loop.train(config, runs / name)
    return loaded_run.load(config, runs / name, federation=left.others)

  config = replace(left.rest, track=())
  references = [
    trained(replace(config, seed=config.seed + number), f'seed{number}')
    for number in range(1, _REFERENCES.value + 1)
  ]
  judged = loaded_run.load(config, into, federation=left.others)
  return forgotten.Models(
    attacked,
    judged,
    trained(config, 'never'),
    references,
  )


def _same_bits(judged: Any, never: Any) -> bool:
  """Whether two models have the same bits."""
  from fedreid_jax.core import trees

  return trees.digest(judged.variables) == trees.digest(never.variables)
