"""Train at a site: `fedreid site --config=SITE.py --socket=RUN/site.sock`.

  fedreid site --config=site.py --socket=/run/fedreid/site.sock \\
    --workdir=/srv/fedreid --name=entrance

The command answers the messages of a server, which arrive through a SuperNode
of Flower on this computer. The images and the private state of the site stay
here. The recipe is the same as at the server, but its data fields name the
images of this site, which are one client. Only the user who started the command
can use the socket. The private state is written to the work directory, and the
same command continues with it. A signal ends the command. docs/sites.md
describes the server, certificates and keys.
"""

import sys
from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

TAKES_RECIPE = True

_SOCKET = flags.DEFINE_string(
  'socket', None, 'Path of the Unix socket that the SuperNode uses.'
)
_NAME = flags.DEFINE_string(
  'name', '', 'Name of the site (default: that of its training domain).'
)


def main(argv: list[str]) -> None:
  """Answers messages until a signal arrives."""

  def body():
    if not _SOCKET.value:
      raise errors.ConfigError(
        'no socket', 'command line', 'give --socket=RUN/site.sock'
      )
    chosen, workdir = run.config(), run.workdir()
    from fedreid_jax.apps.sites import local_socket, refused, worker
    from fedreid_jax.method import accounting
    from fedreid_jax.training.files import run_files

    # Before the images are read, which may take minutes.
    refused.check(chosen)
    print(f'privacy: {accounting.NONE}')
    # The lock comes first: two sites would write the same private states.
    with (
      run_files.Lock(workdir),
      local_socket.listen(Path(_SOCKET.value)) as at,
    ):
      images = worker.read_images(chosen, _NAME.value)
      # The socket is there before the images are read, which may take minutes:
      # messages wait for the worker meanwhile.
      made = worker.Worker(chosen, images, workdir / 'private')
      facts = made.facts
      print(
        f'site {facts.name}: {errors.counted(facts.images, "image")} of '
        f'{errors.counted(facts.identities, "identity", "identities")}; '
        f'listening on {_SOCKET.value}'
      )
      sys.stdout.flush()
      local_socket.serve(at, made.answer)

  run.guarded(argv, body)
