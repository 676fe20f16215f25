"""Prepare a run at real sites: `fedreid coordinate RECIPE --sites=N`.

  fedreid coordinate dfh:photos --workdir=runs/sites --sites=3
  flwr run runs/sites/flower my-superlink --stream

The first command checks the recipe and writes a folder for Flower into the work
directory; the second one starts the run on a SuperLink, or resumes it. The run
has the same files as one of `fedreid train`. The command needs
fedreid_jax[sites]. docs/sites.md describes the SuperLink, the sites,
certificates and keys.
"""

from absl import flags

from fedreid_jax.cli import run

TAKES_RECIPE = True

_SITES = flags.DEFINE_integer(
  'sites', 2, 'Number of sites; the run begins when all are connected.', 1
)
_MIN_SITES = flags.DEFINE_integer(
  'min_sites', 1, 'Fewest sites whose updates make a round.', 1
)
_WAIT = flags.DEFINE_float(
  'wait_s', 600.0, 'Seconds to wait for the sites at the start.', 0.0
)
_ROUND = flags.DEFINE_float(
  'round_s', 3600.0, 'Seconds that the sites have for a round.', 1.0
)
_RESTART = flags.DEFINE_bool(
  'restart', False, 'Delete the files of an earlier run in the work directory.'
)


def main(argv: list[str]) -> None:
  """Checks the recipe and writes the folder for `flwr run`."""

  def body():
    chosen, workdir = run.config(), run.workdir()
    from fedreid_jax.apps.sites import federated

    federated.check(chosen)
    # Only to fail here if Flower is missing: `flwr run` does the work.

    wanted = federated.Wanted(
      _SITES.value, _WAIT.value, _ROUND.value, _MIN_SITES.value
    )
    folder = federated.write(chosen, workdir, wanted, _RESTART.value)
    print(f'work directory: {workdir}')
    print(f'next: flwr run {folder} SUPERLINK --stream')

  run.guarded(argv, body, with_jax=False)
