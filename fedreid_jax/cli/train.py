"""Train or resume: `python -m launchers.main --config=FILE[:PRESET]`."""

from absl import flags

from fedreid_jax.cli import run

_RESTART = flags.DEFINE_bool(
  'restart', False, 'Delete the files of an earlier run in the work directory.'
)


def main(argv: list[str]) -> None:
  """Runs the configured experiment in its work directory."""

  def body():
    chosen, workdir = run.config(), run.workdir()
    from fedreid_jax.training import loop

    loop.train(chosen, workdir, _RESTART.value, verbose=True)

  run.guarded(argv, body)
