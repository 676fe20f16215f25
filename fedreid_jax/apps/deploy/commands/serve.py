"""Search a gallery in a browser: `fedreid serve WORKDIR --gallery=FOLDER`.

  fedreid serve runs/first --gallery=photos
  fedreid serve runs/first --gallery=vectors.npy --k=20 --port=0

starts a page on this computer. A photograph of a person that is dropped on the
page or chosen there is embedded, and the page shows the nearest images of the
gallery.
Only programs on this computer can reach the page (127.0.0.1), it needs no
network, and no upload is written to a disk. Ctrl-C ends the command. It needs
fedreid_jax[serve]. docs/search.md describes the page.
"""

import sys
import traceback
from typing import TYPE_CHECKING

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import embedding_flags, gallery_flags
from fedreid_jax.cli import failures, run
from fedreid_jax.core import extras

# Packages that only the local page needs.


def check() -> None:
  """Refuses to go on without the packages of the server.

  Raises:
    ConfigError: naming the one that is missing, and the extra.
  """
  for name in ('starlette', 'uvicorn'):
    extras.load(name, 'serve', extras.command('serve'))


if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.search.vectors import Folder
  from fedreid_jax.data.folder.path_labels import Label
  from fedreid_jax.training.snapshot import Snapshot

flags.adopt_module_key_flags(gallery_flags)
_PORT = flags.DEFINE_integer(
  'port', 8000, 'Port of the page; 0 means any free one.', 0, 65535
)
_UPLOAD = flags.DEFINE_integer(
  'max_upload_mb', 20, 'Largest image file in MiB.', 1, 1024
)
# The work directory may be behind a flag: `--gallery=photos runs/first`.
run.FLAGS.set_gnu_getopt()


def main(argv: list[str]) -> None:
  """Prints the address of the page and serves it until a signal arrives."""

  def body():
    if len(argv) == 2 and not run.FLAGS.workdir:
      run.FLAGS.workdir = argv[1]
    elif len(argv) > 1:
      raise errors.ConfigError(
        f'stray argument {argv[-1]!r}', 'command line', 'give one WORKDIR'
      )
    gallery_flags.check()

    check()
    _serve()

  run.guarded(argv[:1], body)


def _serve() -> None:
  from fedreid_jax.apps.deploy.serving import app, finder, server

  # All that may be wrong is found before a gallery is embedded.
  source = gallery_flags.find()
  at = server.listen(_PORT.value)
  model = embedding_flags.load()
  gallery_flags.check_model(source, model)
  kind = embedding_flags.modality(model, gallery_flags.QUERY_MODALITY)
  embedding_flags.say_model(model)
  stored = gallery_flags.embedded(source, model)
  gallery = gallery_flags.opened(stored)
  about = gallery_flags.about(model, stored, gallery)
  labels = _labels(model, stored.folder)
  settings = finder.Settings(gallery_flags.neighbours(), kind, labels)
  found = finder.Finder(model, gallery, stored.folder, settings)
  made = app.make(found, about, _UPLOAD.value * app.MEBIBYTE, _failed)
  print(f'address: {server.address(at)}')
  print('next: open the address in a browser on this computer; Ctrl-C ends it')
  sys.stdout.flush()
  server.run(made, at)


def _labels(model: 'Snapshot', folder: 'Folder') -> dict[str, 'Label']:
  """Returns identities and cameras in names; without them, prints a note."""
  from fedreid_jax.data.folder import path_labels

  try:
    return path_labels.read(folder.root, model.config.data)
  except errors.FedReIDError as error:
    why = error.what
  except OSError as error:
    why = error.strerror or str(error)
  print(errors.printable(f'note: identities are not known: {why}'))
  return {}


def _failed(error: Exception) -> str:
  """Prints an error of a request and returns its line."""
  if run.FLAGS.debug:
    traceback.print_exception(error)
  line = failures.explain(error).line()
  print(line, file=sys.stderr, flush=True)
  return line
