"""Restore images from a run's model: `python -m launchers.invert --workdir=DIR`.

DeepInversion of the model and the mean feature of every identity of one client,
as in figure 5 of DFH. Writes `inversion.png`, restored images beside the real
ones that are nearest, and `inversion.json`: losses, and how often the nearest
real image shows the right person. Give another run as the judge of that:

  python -m launchers.invert --workdir=DIR --judge=DIR2 --source=plaza

A judge from another seed is best; the run itself tells least. Needs
fedreid_jax[viz].
"""

import time
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from launchers import run

_JUDGE = flags.DEFINE_string('judge', '', 'Work directory of the judge.')
_SOURCE = flags.DEFINE_string('source', '', 'Client (default: the first).')
_IDENTITIES = flags.DEFINE_integer(
  'identities', 24, 'How many of its identities to restore.', lower_bound=1
)
_STEPS = flags.DEFINE_list(
  'steps', ['2000', '1000'], 'At half the resolution, and at the full one.'
)
_SCALE = flags.DEFINE_float(
  'scale', 30.0, 'Length of features in the cross-entropy; 0: as they are.'
)
_STATISTICS = flags.DEFINE_float(
  'statistics', 0.05, 'Weight of the batch statistics.', lower_bound=0
)
_MODEL = flags.DEFINE_string(
  'model', '', "Whose: 'cluster:I', 'client:NAME' (default: the server's)."
)
_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', 'latest', "Which step: 'latest', 'best' or its number."
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of noise, rolls and mirrors.')


def main(argv: list[str]) -> None:
  """Writes `inversion.png` and `inversion.json` in the work directory."""

  def body():
    workdir = run.given_workdir()
    config = run.saved_config(workdir, [])
    judged_by = Path(_JUDGE.value or workdir).expanduser().absolute()
    judge_config = run.saved_config(judged_by, [])
    steps = _steps()
    from fedreid_jax import inversion, recorder, restoration, trained
    from fedreid_jax.figures import canvas, restored

    picture = workdir / 'inversion.png'
    canvas.check(picture)
    attacked = trained.load_run(
      config, workdir, _CHECKPOINT.value, _MODEL.value
    )
    judge = trained.load_run(judge_config, judged_by)
    client = attacked.client(_SOURCE.value)
    start = time.perf_counter()
    weights = inversion.Weights(
      statistics=_STATISTICS.value, scale=_SCALE.value
    )
    search = inversion.Search(steps, seed=_SEED.value)
    found = restoration.restore(
      attacked, client, _IDENTITIES.value, weights, search
    )
    seconds = time.perf_counter() - start
    verdict = restoration.judge(found, client, judge)
    independent = not restoration.same_model(attacked, judge)
    recorder.write_json(
      workdir / 'inversion.json',
      {
        'source': client.name,
        'model': attacked.name,
        'step': attacked.step,
        'identities': len(found.labels),
        'judge': {
          'workdir': str(judged_by),
          'model': judge.name,
          'independent': independent,
        },
        'rank1': verdict.rank1,
        'losses': found.losses,
        'weights': weights._asdict(),
        'search': search._asdict(),
        'seconds': seconds,
      },
    )
    rank1, chance = verdict.rank1['restored'], verdict.rank1['chance']
    whose = 'another model' if independent else 'the same model'
    title = (
      f'{config.name}, {client.name}: rank-1 {rank1:.1f} %, '
      f'chance {chance:.1f} %, judged by {whose}'
    )
    canvas.save(restored.draw(found, verdict, client, title), picture)
    print(title)
    for when, parts in found.losses.items():
      print(f'{when:>6} ', *(f'{n} {v:.4g}' for n, v in parts.items()))
    print('rank-1 ', *(f'{n} {v:.2f}' for n, v in verdict.rank1.items()))
    print(picture)

  run.guarded(argv, body)


def _steps() -> tuple[int, int]:
  given = _STEPS.value
  if len(given) != 2 or not all(n.isdecimal() for n in given):
    raise errors.ConfigError(
      f'{",".join(given)!r} are no two numbers', '--steps', 'give HALF,FULL'
    )
  half, full = map(int, given)
  if not half + full:
    raise errors.ConfigError('no steps', '--steps', 'give HALF,FULL')
  return half, full


if __name__ == '__main__':
  run.start(main)
