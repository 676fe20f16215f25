"""Search a gallery in a browser: `fedreid serve WORKDIR --gallery=FOLDER`.

  fedreid serve runs/first --gallery=photos
  fedreid serve runs/first --gallery=vectors.npy --k=20 --port=0
  fedreid serve --weights=NAME --gallery=photos   # without a run

The command starts a page on this computer. The page embeds a photograph of a
person that is dropped or chosen there, and shows the nearest images of the
gallery. Only programs on this computer can reach the page (127.0.0.1). It needs
no network, and no upload is written to a disk. Ctrl-C ends the command. It
needs fedreid_jax[serve]. docs/search.md describes the page.
"""

import sys
import traceback
from typing import TYPE_CHECKING

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import (
  embedding_flags,
  gallery_flags,
  model_flags,
)
from fedreid_jax.cli import run
from fedreid_jax.core import plugins

if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.vectors import Folder
  from fedreid_jax.data.folder.folder_layout import Label
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


def check() -> None:
  """Raises ConfigError, naming the package, if one of the server is missing."""
  # An extra, since only this page needs them.
  for name in ('starlette', 'uvicorn'):
    plugins.load_extra(name, 'serve', plugins.install_command('serve'))


def _serve() -> None:
  from fedreid_jax.apps.deploy import crops, server

  # All checks come first, also that of the port, since a large gallery takes
  # long to embed.
  source = gallery_flags.find()
  at = server.listen(_PORT.value)
  model = model_flags.load()
  gallery_flags.check_model(source, model)
  kind = embedding_flags.modality(model, gallery_flags.QUERY_MODALITY)
  embedding_flags.say_model(model)
  known = gallery_flags.strangers(model, gallery_flags.metric(source, model))
  apart = gallery_flags.apart(source)
  stored = gallery_flags.embedded(source, model)
  gallery = gallery_flags.opened(source, stored)
  about = gallery_flags.about(model, stored, gallery, known)
  labels = {} if stored.times else _labels(model, stored.folder)
  origins = crops.read(stored.folder.root)
  settings = server.Settings(
    gallery_flags.neighbours(),
    kind,
    labels,
    known,
    origins,
    apart,
    stored.described['modality'],
  )
  found = server.Finder(model, gallery, stored.folder, settings)
  made = server.make_app(found, about, _UPLOAD.value * server.MEBIBYTE, _failed)
  print(f'address: {server.address(at)}')
  print('next: open the address in a browser on this computer; Ctrl-C ends it')
  # Output to a pipe is buffered, and the server prints nothing more.
  sys.stdout.flush()
  server.run(made, at)


def _labels(model: 'Snapshot', folder: 'Folder') -> dict[str, 'Label']:
  """Identities and cameras by name, {} with a note if unknown."""
  from fedreid_jax.data.folder import folder_layout

  try:
    return folder_layout.labels(folder.root, model.config.data)
  except errors.FedReIDError as error:
    why = error.what
  except OSError as error:
    why = error.strerror or str(error)
  print(errors.printable(f'note: identities are not known: {why}'))
  return {}


def _failed(error: Exception) -> str:
  if run.FLAGS.debug:
    traceback.print_exception(error)
  line = run.explain(error).line()
  print(line, file=sys.stderr, flush=True)
  return line
