"""Draw runs: `fedreid visualize --workdir=DIR --what=PICTURE`.

  tsne       features of three persons of every training domain in the plane,
             with features hallucinated by DFH or a variant of it, one panel
             per run
  ranked     queries and the ten images nearest to each
  why        the parts of photographs that carry the similarity of a query and
             its nearest match, with two controls
  cmc        cumulative match curves, one line per run
  curves     metrics over the rounds, one line per run; for a sweep one line per
             row of its table, with a band over the seeds
  distances  distances within and between identities, one panel per run
  persons    some persons' features in both modalities, one panel per run
  sweep      metrics over the values of the fields of a sweep

Several runs are given as `--workdir=DIR,DIR`; `sweep` and `curves` take the
work directory of one sweep (`fedreid sweep`), finished or not. The picture is
written to DIR/WHAT.png for the first directory, or to `--out=FILE.png` (also
.pdf or .svg). The command needs fedreid_jax[viz].
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

ONE = ('ranked', 'why', 'sweep')  # pictures of one work directory
WHAT = (*ONE, 'tsne', 'cmc', 'curves', 'distances', 'persons')
_WHAT = flags.DEFINE_enum('what', None, WHAT, 'Kind of picture.')
_TARGET = flags.DEFINE_string(
  'target',
  '',
  'Test to show (default: the first; curves: the mean; sweep: all).',
)
_SOURCE = flags.DEFINE_string(
  'source', '', 'tsne: client whose features are transformed (default: first).'
)
_MODEL = flags.DEFINE_string(
  'model', '', "'cluster:I' or 'client:NAME' (default: the server's model)."
)
_CHECKPOINT = run.define_checkpoint()
_SEED = flags.DEFINE_integer('seed', 0, 'Random seed of samples.')
_OUT = flags.DEFINE_string('out', '', 'File to write.')
_CHANGES = run.define_set()


def main(argv: list[str]) -> None:
  """Writes a picture and prints its path."""

  def body():
    if _WHAT.value is None:
      raise errors.ConfigError(
        'no picture', '--what', f'one of {", ".join(WHAT)}'
      )
    folders = run.given_workdirs()
    if _WHAT.value in ONE and len(folders) > 1:
      raise errors.ConfigError(
        f'{len(folders)} runs', '--workdir', f'{_WHAT.value} shows one'
      )
    out = Path(_OUT.value or folders[0] / f'{_WHAT.value}.png').expanduser()
    from fedreid_jax.figures import canvas
    from fedreid_jax.training.files import run_files

    # Before the models are loaded and their features computed.
    canvas.check(out)
    canvas.save(_figure(folders), out)
    print(out)
    # The folder of a sweep has no configuration, and `report` takes runs.
    if (folders[0] / run_files.CONFIG).exists():
      run.next_step(folders[0], 'report --workdir=DIR')

  run.guarded(argv, body)


def _figure(folders: Sequence[Path]):
  from fedreid_jax.apps.papers import figures
  from fedreid_jax.apps.papers import report as files
  from fedreid_jax.figures import curves

  table = folders[0] / 'table'
  if _WHAT.value == 'sweep':
    return figures.draw_sweep(files.read(table), _TARGET.value, _MODEL.value)
  if (
    _WHAT.value == 'curves'
    and len(folders) == 1
    and table.with_name('table.csv').is_file()
  ):
    return curves.draw(files.finished(table), _TARGET.value)
  return _of_runs(folders)


def _of_runs(folders: Sequence[Path]):
  from fedreid_jax.apps.papers import pictures
  from fedreid_jax.figures import canvas, curves
  from fedreid_jax.training import loaded_run
  from fedreid_jax.training.files import run_files

  configs = [run.saved_config(folder, _CHANGES.value) for folder in folders]
  labels = canvas.labels(configs, folders)
  if _WHAT.value == 'curves':
    results = [run_files.results(folder) for folder in folders]
    return curves.draw(list(zip(labels, results, strict=True)), _TARGET.value)
  runs = [
    loaded_run.load(config, folder, _CHECKPOINT.value, _MODEL.value)
    for config, folder in zip(configs, folders, strict=True)
  ]
  return pictures.of_runs(
    str(_WHAT.value),
    list(zip(labels, runs, strict=True)),
    _TARGET.value,
    _SOURCE.value,
    _SEED.value,
  )
