"""Evaluate a checkpoint: `python -m launchers.evaluate --workdir=DIR`.

The run's own configuration is read from its work directory; `--set=KEY=VALUE`
changes fields of it, so a model can be ranked on any target:

  python -m launchers.evaluate --workdir=DIR --checkpoint=best \
    --set='data.targets=("park",)' --set=evaluation.metric=cosine

Of a run with a model a client, `configs/standalone.py` for example, ensembles
can be ranked beside them, their features in a row or their parameters' mean:

  python -m launchers.evaluate --workdir=DIR --ensemble=concat,average
"""

from absl import flags

from fedreid_jax.cli import run
from fedreid_jax.config import validation

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', 'latest', "Which step: 'latest', 'best' or its number."
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE, a field of the configuration to change.'
)
_ENSEMBLE = flags.DEFINE_list(
  'ensemble', [], "Of the clients' models, too: concat, average or both."
)


def main(argv: list[str]) -> None:
  """Prints and writes `evaluation-STEP.json` in the work directory."""

  def body():
    workdir = run.given_workdir()
    chosen = run.saved_config(workdir, _SET.value)
    if _ENSEMBLE.value:
      chosen.evaluation.ensemble = tuple(_ENSEMBLE.value)
      validation.validate(chosen)
    from fedreid_jax.training import snapshot

    snapshot.evaluate_run(chosen, workdir, _CHECKPOINT.value, verbose=True)

  run.guarded(argv, body)
