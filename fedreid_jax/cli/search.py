"""Search images for a person: `fedreid search --workdir=DIR`.

  fedreid search --workdir=DIR --gallery=FOLDER --query=IMAGE
  fedreid search --workdir=DIR --gallery=vectors.npy --k=20 --query a.jpg b.jpg

prints the images of the gallery that are nearest to each query, and writes them
as a page for a browser, `search.html`. The gallery is a folder of images, or a
file that `embed` wrote with the same model. Further words are queries, too, and
a query may be a folder: `--query *.jpg`. docs/search.md describes the command.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import embedding_flags, run
from fedreid_jax.data.datasets.records import MODALITIES

if TYPE_CHECKING:
  from fedreid_jax.training.image_search import Answer
  from fedreid_jax.training.snapshot import Snapshot
  from fedreid_jax.training.vectors import Vectors

flags.adopt_module_key_flags(embedding_flags)
_GALLERY = flags.DEFINE_string(
  'gallery', None, 'Folder of images, or a .npy file that `embed` wrote.'
)
_QUERY = flags.DEFINE_multi_string(
  'query', [], 'Image to search for, or a folder of them.'
)
_K = flags.DEFINE_integer('k', 10, 'Images to find for each query.', 1)
_OUT = flags.DEFINE_string('out', 'search.html', 'Page to write.')
_QUERY_MODALITY = flags.DEFINE_enum(
  'query_modality',
  None,
  list(MODALITIES),
  'Modality of the queries; models with modality-specific stages need it.',
)
_EXCLUDE = flags.DEFINE_bool(
  'exclude_same_file', False, 'Leave out images with the bytes of the query.'
)
_BACKEND = flags.DEFINE_string(
  'backend',
  'auto',
  'Search of the vectors: product (matrix products in JAX), faiss (needs '
  'fedreid_jax[search]), or auto: faiss for large galleries if installed. '
  'Both are exact.',
)
# A query may be behind another flag: `--query a.jpg b.jpg --k=5`.
run.FLAGS.set_gnu_getopt()

METHODS = {
  'product': 'exact matrix products in JAX',
  'faiss': 'exact search by FAISS',
}


def main(argv: list[str]) -> None:
  """Prints a table, writes the page, and prints where it is."""

  def body():
    if not _GALLERY.value:
      raise errors.ConfigError(
        'no gallery', 'command line', 'give --gallery=FOLDER or vectors.npy'
      )
    run.given_workdir()
    from fedreid_jax.evaluation import index
    from fedreid_jax.training import atomic, vectors

    # All that may be wrong is found before a gallery is embedded.
    index.check_backend(_BACKEND.value)
    out = Path(_OUT.value).expanduser()
    if out.suffix != '.html':
      raise errors.ConfigError(
        'the name does not end in .html', str(out), 'give --out=FILE.html'
      )
    atomic.check_writable(out)
    paths = _queries([*_QUERY.value, *argv[1:]])
    gallery = Path(_GALLERY.value).expanduser()
    with tempfile.TemporaryDirectory() as scratch:
      if gallery.suffix == '.npy' and not gallery.is_dir():
        stored = vectors.read(gallery)
        model = embedding_flags.load()
        vectors.check_model(stored, model, str(gallery))
        _check_modality(stored)
        queries = _embedded(model, paths)
        following = ['search', f'--gallery={gallery}', '--query=IMAGE']
        if _QUERY_MODALITY.value:
          following.append(f'--query_modality={_QUERY_MODALITY.value}')
      else:
        images = embedding_flags.folder(_GALLERY.value, '--gallery')
        model = embedding_flags.load()
        embedding_flags.modality(model)
        queries = _embedded(model, paths)
        stored = embedding_flags.write(
          model, images, Path(scratch, 'vectors.npy')
        )
        following = ['embed', f'--images={_GALLERY.value}']
        if run.FLAGS.modality:
          following.append(f'--modality={run.FLAGS.modality}')
      _search(model, stored, queries, out)
    print(f'page: {out.absolute().as_uri()}')
    embedding_flags.next_step(*following)

  run.guarded(argv[:1], body)


def _embedded(
  model: 'Snapshot', paths: list[Path]
) -> tuple[list[Path], np.ndarray]:
  embedding_flags.say_model(model)
  kind = embedding_flags.modality(model, _QUERY_MODALITY)
  return embedding_flags.queries(model, paths, kind)


def _search(
  model: 'Snapshot',
  stored: 'Vectors',
  queries: tuple[list[Path], np.ndarray],
  out: Path,
) -> None:
  """Searches the gallery, prints the results and writes the page."""
  from fedreid_jax.evaluation.index import Gallery
  from fedreid_jax.figures import search_page
  from fedreid_jax.training import atomic, image_search

  paths, found = queries
  folder = stored.folder
  gallery = Gallery(
    stored.rows,
    np.arange(len(stored.rows)),
    metric=stored.described['metric'],
    backend=_BACKEND.value,
  )
  answers = image_search.search(
    gallery, folder.root, folder.names, found, paths, _K.value, _EXCLUDE.value
  )
  about = [
    ('model', f'{embedding_flags.described(model)}, of {run.FLAGS.workdir}'),
    ('gallery', f'{len(gallery):,} images of {folder.root}'),
    ('distance', gallery.metric),
    ('search', METHODS[gallery.backend]),
  ]
  for name, value in about[1:]:
    print(f'{name}: {value}')
  _print(answers)
  if max(len(one.hits) for one in answers) < _K.value:
    print(f'note: the gallery has fewer images than --k={_K.value}')
  max_pixels = model.config.data.max_pixels
  atomic.write_text(out, search_page.page(answers, about, max_pixels))


def _queries(given: Sequence[str]) -> list[Path]:
  """Returns the files of queries, those of a folder sorted by name."""
  if not given:
    raise errors.ConfigError('no query', 'command line', 'give --query=IMAGE')
  found: list[Path] = []
  for name in given:
    path = Path(name).expanduser()
    if path.is_dir():
      images = embedding_flags.folder(name, '--query')
      found += [images.root / one for one in images.names]
    elif path.is_file():
      found.append(path)
    else:
      raise errors.DataError('no such file', name, 'give an image as --query')
  return found


def _check_modality(stored: 'Vectors') -> None:
  """Refuses a modality that is not the one of stored vectors."""
  kind = stored.described['modality']
  own = None if kind is None else MODALITIES[kind]
  given = run.FLAGS.modality
  if given not in (None, own):
    raise errors.ConfigError(
      f'the vectors are of {own or "images without a modality"}, not {given}',
      '--modality',
      'leave the flag out: the vectors have their modality',
    )


def _print(answers: Sequence['Answer']) -> None:
  """Prints a table of images for each query."""
  from rich import box, console, table, text

  def cell(value: str) -> text.Text:
    return text.Text(errors.printable(value), overflow='fold')

  width = None if sys.stdout.isatty() else 140
  screen = console.Console(width=width, highlight=False, emoji=False)
  for answer in answers:
    screen.print(cell(f'query: {answer.query}'))
    shown = table.Table(box=box.SIMPLE_HEAD)
    shown.add_column('rank', justify='right')
    shown.add_column('distance', justify='right')
    shown.add_column('image')
    for rank, hit in enumerate(answer.hits, 1):
      image = hit.name + (' (same file)' if hit.same else '')
      shown.add_row(str(rank), f'{hit.distance:.4f}', cell(image))
    screen.print(shown)
