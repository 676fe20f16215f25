"""Evaluate a checkpoint: `fedreid evaluate --workdir=DIR`.

The configuration of the run is read from its work directory; `--set=KEY=VALUE`
changes its fields, so that a model can be evaluated on any target:

  fedreid evaluate --workdir=DIR --checkpoint=best \\
    --set='data.targets=("park",)' --set=evaluation.metric=cosine

If a run has one model per client, as `standalone` does, ensembles of these
models can be evaluated as well: their features are concatenated, or their
parameters averaged:

  fedreid evaluate --workdir=DIR --ensemble=concat,average

For a visible-infrared run, `--modality_gap` compares three kinds of moments of
batch normalisation: running moments, those of the clients' images and those of
each modality. It prints the mAP with each of them, and the distance between the
features of both modalities:

  fedreid evaluate --workdir=DIR --modality_gap

`--strangers=FILE.json` also writes how near persons are who were not trained
on, with whom `fedreid search` and `serve` compare a match. They are held-out
persons of the clients if the run has any (`evaluation.validation`), and
otherwise those of the targets:

  fedreid evaluate --workdir=DIR --strangers=strangers.json
"""

from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.config import load

_CHECKPOINT = run.define_checkpoint()
_CHANGES = run.define_set()
_ENSEMBLE = flags.DEFINE_list(
  'ensemble', [], "Ensembles of the clients' models: concat, average or both."
)
_MODALITY_GAP = flags.DEFINE_bool(
  'modality_gap',
  False,
  'Compare the moments of batch normalisation by mAP and by the distance '
  'between visible and infrared features.',
)
_STRANGERS = flags.DEFINE_string(
  'strangers',
  None,
  'File to write with the distances of persons who were not trained on, for '
  'search and serve.',
)


def main(argv: list[str]) -> None:
  """Prints results and writes `evaluation-STEP-TARGETS.json`.

  With `--modality_gap` the file is `modality-gap-STEP.json`.
  """

  def body():
    workdir = run.given_workdir()
    chosen = run.saved_config(workdir, _CHANGES.value)
    if _ENSEMBLE.value:
      # The saved configuration was validated with other ensembles.
      chosen = load.with_fields(
        chosen, {'evaluation.ensemble': tuple(_ENSEMBLE.value)}
      )
    if _MODALITY_GAP.value and _STRANGERS.value:
      raise errors.ConfigError(
        'two flags', '--modality_gap and --strangers', 'give one of them'
      )
    from fedreid_jax.training.run_evaluation import evaluate_run, modality_gap

    which = _CHECKPOINT.value
    if _MODALITY_GAP.value:
      modality_gap(chosen, workdir, which, verbose=True)
    else:
      strangers = _STRANGERS.value and Path(_STRANGERS.value).expanduser()
      evaluate_run(chosen, workdir, which, True, strangers or None)
    run.next_step(workdir, 'visualize --workdir=DIR --what=ranked')

  run.guarded(argv, body)
