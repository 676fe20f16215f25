"""Reconstruct images from a model: `python -m launchers.invert --workdir=DIR`.

The command runs DeepInversion on the model and the mean feature of each
identity of a client, as in figure 5 of DFH. It writes `inversion.png`, the
reconstructed images next to the nearest real images, and `inversion.json`: the
losses, and how often the nearest real image shows the right person. Another run
can be the judge of this:

  python -m launchers.invert --workdir=DIR --judge=DIR2 --source=plaza

A judge from another seed is best; the run itself is the least informative
judge. The command needs fedreid_jax[viz].
"""

import time
from pathlib import Path
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

_JUDGE = flags.DEFINE_string(
  'judge', '', 'Work directory of the judge (default: the run itself).'
)
_SOURCE = flags.DEFINE_string(
  'source', '', 'Name of the client (default: the first).'
)
_IDENTITIES = flags.DEFINE_integer(
  'identities', 24, 'Number of identities to reconstruct.', lower_bound=1
)
_STEPS = flags.DEFINE_list(
  'steps', ['2000', '1000'], 'Number of steps at half and at full resolution.'
)
_SCALE = flags.DEFINE_float(
  'scale',
  30.0,
  'Length of features in the cross-entropy; 0 does not scale them.',
  lower_bound=0,
)
_STATISTICS = flags.DEFINE_float(
  'statistics', 0.05, 'Weight of the batch statistics.', lower_bound=0
)
_MODEL = flags.DEFINE_string(
  'model', '', "'cluster:I' or 'client:NAME' (default: the server's model)."
)
_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  'latest',
  "Checkpoint: 'latest', 'best' or the number of a step.",
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Random seed of noise, rolls and mirroring.'
)


def main(argv: list[str]) -> None:
  """Writes `inversion.png` and `inversion.json` in the work directory."""

  def body():
    workdir = run.given_workdir()
    judged_by = Path(_JUDGE.value or workdir).expanduser().absolute()
    config, judge_config = (
      run.saved_config(folder, []) for folder in (workdir, judged_by)
    )
    search, weights = _settings()
    from fedreid_jax.figures import canvas, reconstructed
    from fedreid_jax.privacy import reconstruction
    from fedreid_jax.training import loaded_run, recorder

    picture = workdir / 'inversion.png'
    canvas.check(picture)
    attacked = judge = loaded_run.load(
      config, workdir, _CHECKPOINT.value, _MODEL.value
    )
    if judged_by != workdir:
      judge = loaded_run.load(judge_config, judged_by)
    client = attacked.client(_SOURCE.value)
    start = time.perf_counter()
    found = reconstruction.reconstruct(
      attacked, client, _IDENTITIES.value, weights, search
    )
    seconds = time.perf_counter() - start
    verdict = reconstruction.judge(found, client, judge)
    described = {
      'source': client.name,
      'model': attacked.name,
      'step': attacked.step,
      'identities': len(found.labels),
      'judge': {
        'workdir': str(judged_by),
        'model': judge.name,
        'other_model': not reconstruction.same_model(attacked, judge),
      },
      'rank1': verdict.rank1,
      'losses': found.losses,
      'weights': weights._asdict(),
      'search': search._asdict(),
      'seconds': seconds,
    }
    recorder.write_json(workdir / 'inversion.json', described)
    title = f'{config.name}, {_say(described)}'
    canvas.save(reconstructed.draw(found, verdict, client, title), picture)
    print(picture)

  run.guarded(argv, body)


def _say(described: dict[str, Any]) -> str:
  """Prints the results and returns a summary in one line."""
  rank1 = described['rank1']
  for when, parts in described['losses'].items():
    print(f'{when:>6} ', *(f'{n} {v:.4g}' for n, v in parts.items()))
  print('rank-1 ', *(f'{n} {v:.2f}' for n, v in rank1.items()))
  judge = 'another' if described['judge']['other_model'] else 'the same'
  return (
    f'{described["source"]}: rank-1 {rank1["restored"]:.1f} %, chance '
    f'{rank1["chance"]:.1f} %, judged by {judge} model'
  )


def _settings():
  """Returns the settings of the search, and the weights of the objective."""
  steps = _STEPS.value
  if len(steps) != 2 or not all(n.isdecimal() for n in steps):
    raise errors.ConfigError(
      f'{",".join(steps)!r} is not two numbers', '--steps', 'give HALF,FULL'
    )
  if not any(map(int, steps)):
    raise errors.ConfigError('no steps', '--steps', 'give HALF,FULL')
  from fedreid_jax.privacy.inversion import Weights
  from fedreid_jax.privacy.search import Search

  return (
    Search((int(steps[0]), int(steps[1])), seed=_SEED.value),
    Weights(statistics=_STATISTICS.value, scale=_SCALE.value),
  )
