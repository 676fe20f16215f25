"""Evaluate a checkpoint: `python -m launchers.evaluate --workdir=DIR`.

The configuration of the run is read from its work directory; `--set=KEY=VALUE`
changes its fields, so that a model can be evaluated on any target:

  python -m launchers.evaluate --workdir=DIR --checkpoint=best \
    --set='data.targets=("park",)' --set=evaluation.metric=cosine

If a run has one model per client, for example `configs/standalone.py`,
ensembles of these models can be evaluated as well. Their features are
concatenated, or their parameters averaged:

  python -m launchers.evaluate --workdir=DIR --ensemble=concat,average
"""

from absl import flags

from fedreid_jax.cli import run
from fedreid_jax.config import validation

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  'latest',
  "Checkpoint: 'latest', 'best' or the number of a step.",
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field of the configuration.'
)
_ENSEMBLE = flags.DEFINE_list(
  'ensemble', [], "Ensembles of the clients' models: concat, average or both."
)


def main(argv: list[str]) -> None:
  """Prints and writes `evaluation-STEP.json` in the work directory."""

  def body():
    workdir = run.given_workdir()
    chosen = run.saved_config(workdir, _SET.value)
    if _ENSEMBLE.value:
      chosen.evaluation.ensemble = tuple(_ENSEMBLE.value)
      validation.validate(chosen)
    from fedreid_jax.training import evaluation

    evaluation.evaluate_run(chosen, workdir, _CHECKPOINT.value, verbose=True)

  run.guarded(argv, body)
