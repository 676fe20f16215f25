"""Reconstruct images from a model: `fedreid invert --workdir=DIR`.

The command runs DeepInversion on a model and on the statistics that a client
sends or could send. Another run, the judge, measures how often the
reconstructed images retrieve the right real ones. A run with another seed and
other initial weights (`pretrained`) is the best judge, and the run itself is
the least informative one.

  fedreid invert --workdir=DIR --judge=DIR2 --source=plaza
  fedreid invert --workdir=DIR --judge=DIR2 --attack=dfs

  identities  the mean feature of each identity, as in figure 5 of DFH. For the
              published figure give a run on one domain and --scale=0. The model
              of another run, --measured_by, may measure the means.
  dfs         features sampled from the statistics that DFH sends; the same with
              all values in random order is the negative control

In the positive control of both attacks the attacker has the features of real
images.

The command writes `inversion.png` or `inversion-dfs.png`, with the images next
to the nearest real ones, and a `.json` file of the same name with the losses
and the rank-1 of the attack, of the controls and of chance, with intervals.
Real images, and images from their features, must lead to the right person or
domain more often than chance; the initial noise, and images from values in
random order, must not. Otherwise the figures mean nothing: the command prints
`audit invalid` and exits with code 4. It needs fedreid_jax[viz].
"""

import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

TITLE = 72  # characters of a line above the picture
NAMES = {'identities': 'inversion', 'dfs': 'inversion-dfs'}
_ATTACK = flags.DEFINE_enum(
  'attack', 'identities', list(NAMES), 'Information that is attacked.'
)
_JUDGE = flags.DEFINE_string(
  'judge', '', 'Work directory of the judge (default: the run itself).'
)
_MEASURED_BY = flags.DEFINE_string(
  'measured_by',
  '',
  'identities: work directory of the model that measured the mean features '
  '(default: the attacked model).',
)
_SOURCE = flags.DEFINE_string(
  'source', '', 'identities: name of the client (default: the first).'
)
_IDENTITIES = flags.DEFINE_integer(
  'identities',
  24,
  'Number of identities to reconstruct; dfs: number of samples of each client. '
  'Fewer than 4 could be right by chance.',
  lower_bound=4,
)
_STEPS = flags.DEFINE_list(
  'steps', ['2000', '1000'], 'Number of steps at half and at full resolution.'
)
_SCALE = flags.DEFINE_float(
  'scale',
  30.0,
  'identities: length of features in the cross-entropy; 0 does not scale them, '
  'as in the paper.',
  lower_bound=0,
)
_STATISTICS = flags.DEFINE_float(
  'statistics', 0.05, 'Weight of the batch statistics.', lower_bound=0
)
_MODEL = flags.DEFINE_string(
  'model', '', "'cluster:I' or 'client:NAME' (default: the server's model)."
)
_CHECKPOINT = run.define_checkpoint()
_SEED = flags.DEFINE_integer(
  'seed',
  0,
  'Random seed of noise, rolls, mirroring and permutations.',
  lower_bound=0,
  upper_bound=2**31 - 1,
)


def main(argv: list[str]) -> None:
  """Writes the picture and the `.json` file in the work directory."""

  def body():
    workdir = run.given_workdir()
    search, weights = _settings()
    config = run.saved_config(workdir, [])
    others = [
      _other_run(given, workdir) for given in (_JUDGE.value, _MEASURED_BY.value)
    ]
    from fedreid_jax.apps.audit import attacks
    from fedreid_jax.figures import canvas
    from fedreid_jax.training import loaded_run
    from fedreid_jax.training.files import recorder

    picture = workdir / f'{NAMES[_ATTACK.value]}.png'
    canvas.check(picture)
    attacked = loaded_run.load(config, workdir, _CHECKPOINT.value, _MODEL.value)
    judging, measuring = (
      loaded_run.load(*other) if other else attacked for other in others
    )
    start = time.perf_counter()
    num = _IDENTITIES.value
    if _ATTACK.value == 'dfs':
      attempts = attacks.statistics(attacked, num, weights, search)
    else:
      client = attacked.client(_SOURCE.value)
      attempts = attacks.identities(
        attacked, client, num, weights, search, _SCALE.value, measuring
      )
    seconds = time.perf_counter() - start
    answers = attacks.judge(attempts, attacked, judging)
    failed = attacks.failed({q: a.asked for q, a in answers.items()})
    described = {
      **_described(attempts, answers, attacked),
      'judge': {
        'workdir': _JUDGE.value or str(workdir),
        'model': judging.name,
        'other_model': not attacks.same_model(attacked, judging),
        'same_initial_weights': attacks.same_initial_weights(attacked, judging),
      },
      'measured_by': _MEASURED_BY.value or str(workdir),
      'valid': not failed,
      'failed': list(failed),
      'weights': weights._asdict(),
      'search': search._asdict(),
      'seconds': seconds,
    }
    recorder.write_sealed(picture.with_suffix('.json'), described)
    title = _title(config.name, described)
    figure = attacks.draw(attempts, answers, attacked, title)
    canvas.save(figure, picture)
    print(picture)
    if failed:
      raise errors.invalid_audit(failed, picture.with_suffix('.json'))

  run.guarded(argv, body)


def _other_run(given: str, workdir: Path) -> tuple[Any, Path] | None:
  folder = Path(given or workdir).expanduser().absolute()
  return None if folder == workdir else (run.saved_config(folder, []), folder)


def _described(attempts, answers, attacked) -> dict[str, Any]:
  clients = attacked.federation.clients
  sources = {int(k) for a in attempts.values() for k in a.clients}
  return {
    'sources': [clients[k].name for k in sorted(sources)],
    'model': attacked.name,
    'step': attacked.step,
    'attack': _ATTACK.value,
    'scale': _SCALE.value,
    'images': {n: len(a.images.photos) for n, a in attempts.items()},
    'losses': {n: a.images.losses for n, a in attempts.items()},
    'rank1': {question: a.rank1() for question, a in answers.items()},
    'intervals': {
      question: {name: one.interval() for name, one in a.asked.items()}
      for question, a in answers.items()
    },
  }


def _title(name: str, described: Mapping[str, Any]) -> str:
  for attempt, losses in described['losses'].items():
    for when, parts in losses.items():
      figures = ' '.join(f'{n} {v:.4g}' for n, v in parts.items())
      print(errors.folded(f'{attempt}, {when}: {figures}'))
  judge = 'another model' if described['judge']['other_model'] else 'this model'
  if described['judge']['same_initial_weights']:
    judge += ' with the same initial weights'
  sources = ', '.join(described['sources'])
  line = f'{name}: {sources}; rank-1 by {judge}; solid frames: right'
  lines = textwrap.wrap(line, TITLE)
  for question, rank1 in described['rank1'].items():
    bounds = described['intervals'][question]
    shown = {name: f'{name} {share:.1f}' for name, share in rank1.items()}
    # Lines are broken between numbers only, and so blanks in them do not break.
    line = ', '.join(text.replace(' ', '\xa0') for text in shown.values())
    lines += textwrap.wrap(f'right {question}, %: {line}', TITLE)
    for name, (low, high) in bounds.items():
      shown[name] += f' [{low:.1f}, {high:.1f}]'
    print(errors.folded(f'right {question}, %: {", ".join(shown.values())}'))
  return '\n'.join(lines)


def _settings():
  steps, fix = _STEPS.value, 'give HALF,FULL'
  if len(steps) != 2 or not all(n.isdecimal() for n in steps):
    what = f'{",".join(steps)!r} is not two numbers'
    raise errors.ConfigError(what, '--steps', fix)
  if not any(map(int, steps)):
    raise errors.ConfigError('no steps', '--steps', fix)
  for name in ('measured_by', 'source', 'scale'):
    if _ATTACK.value == 'dfs' and run.FLAGS[name].present:
      raise errors.ConfigError(
        'the attack on DFS has no such flag', f'--{name}', 'leave it out'
      )
  from fedreid_jax.apps.audit.inversion import Search, Weights

  return (
    Search((int(steps[0]), int(steps[1])), seed=_SEED.value),
    Weights(statistics=_STATISTICS.value),
  )
