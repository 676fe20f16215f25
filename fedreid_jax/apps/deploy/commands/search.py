"""Search images for a person: `fedreid search --workdir=DIR`.

  fedreid search --workdir=DIR --gallery=FOLDER --query=IMAGE
  fedreid search --workdir=DIR --gallery=vectors.npy --k=20 --query a.jpg b.jpg
  fedreid search --weights=NAME --gallery=FOLDER --query=IMAGE   # without a run

The command prints the images of the gallery that are nearest to each query, and
writes them as a page for a browser, `search.html`. The gallery is a folder of
images, or a file that `embed` wrote with the same model. Further arguments are
queries, too (`--query *.jpg`), and a query may be a folder. docs/search.md
describes the command.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import (
  embedding_flags,
  gallery_flags,
  model_flags,
)
from fedreid_jax.cli import run

if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.image_search import Answer
  from fedreid_jax.evaluation.strangers import Calibration
  from fedreid_jax.training.snapshot import Snapshot

flags.adopt_module_key_flags(gallery_flags)
_QUERY = flags.DEFINE_multi_string(
  'query', [], 'Image to search for, or a folder of them.'
)
_OUT = flags.DEFINE_string('out', 'search.html', 'Page to write.')
_EXCLUDE = flags.DEFINE_bool(
  'exclude_same_file', False, 'Leave out images with the bytes of the query.'
)
_TRACKLETS = flags.DEFINE_bool(
  'tracklets',
  False,
  'The images of one folder are frames of one tracklet, whose vector is their '
  'mean; of queries and of the gallery.',
)
# A query may be behind another flag: `--query a.jpg b.jpg --k=5`.
run.FLAGS.set_gnu_getopt()


def main(argv: list[str]) -> None:
  """Prints a table, writes the page and prints its address."""

  def body():
    gallery_flags.check()
    if _TRACKLETS.value:
      gallery_flags.check_tracklets()
    from fedreid_jax.training.files import atomic

    # All checks come first, since a large gallery takes long to embed.
    out = Path(_OUT.value).expanduser()
    if out.suffix != '.html':
      raise errors.ConfigError(
        'the name does not end in .html', str(out), 'give --out=FILE.html'
      )
    atomic.check_writable(out)
    paths = _queries([*_QUERY.value, *argv[1:]])
    source = gallery_flags.find()
    model = model_flags.load()
    gallery_flags.check_model(source, model)
    embedding_flags.say_model(model)
    kind = embedding_flags.modality(model, gallery_flags.QUERY_MODALITY)
    known = gallery_flags.strangers(model, gallery_flags.metric(source, model))
    queries = embedding_flags.queries(model, paths, kind)
    _search(model, source, queries, out, known)
    print(f'page: {out.absolute().as_uri()}')
    model_flags.next_step(*_following(source))

  run.guarded(argv[:1], body)


def _following(source: gallery_flags.Source) -> list[str]:
  given = gallery_flags.given()
  if source.stored is None:
    found = ['embed', f'--images={given}']
    kind = run.FLAGS.modality
    return [*found, f'--modality={kind}'] if kind else found
  found = ['search', f'--gallery={given}', '--query=IMAGE']
  kind = gallery_flags.QUERY_MODALITY.value
  return [*found, f'--query_modality={kind}'] if kind else found


def _search(
  model: 'Snapshot',
  source: gallery_flags.Source,
  queries: tuple[list[Path], np.ndarray],
  out: Path,
  known: 'Calibration | None',
) -> None:
  from fedreid_jax.apps.deploy import crops, image_search, vectors
  from fedreid_jax.training.files import atomic

  paths, found = queries
  apart = gallery_flags.apart(source)
  stored = gallery_flags.embedded(source, model)
  if _TRACKLETS.value:
    stored = vectors.of_tracklets(stored)
    names = [path.as_posix() for path in paths]
    found, first = vectors.means_by_folder(found, names)
    paths = [paths[row] for row in first]
  folder = stored.folder
  gallery = gallery_flags.opened(source, stored)
  k = gallery_flags.neighbours()
  answers = image_search.search(
    gallery,
    folder.root,
    folder.names,
    found,
    paths,
    k,
    _EXCLUDE.value,
    known,
    crops.read(folder.root),
    apart,
  )
  unit = 'tracklet' if _TRACKLETS.value else 'image'
  about = gallery_flags.about(model, stored, gallery, known, unit)
  _print(answers)
  if max(len(one.hits) for one in answers) < k:
    print(f'note: fewer {unit}s than --k={k} are found')
  max_pixels = model.config.data.max_pixels
  atomic.write_text(out, image_search.page(answers, about, max_pixels))


def _queries(given: Sequence[str]) -> list[Path]:
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


def _print(answers: Sequence['Answer']) -> None:
  from rich import console

  from fedreid_jax.training.reports import console_table

  screen = console.Console(highlight=False, emoji=False)
  for answer in answers:
    rows: list[list[str]] = []
    for rank, hit in enumerate(answer.hits, 1):
      image = hit.name + (f' ({hit.origin})' if hit.origin else '')
      image += ' (same file)' if hit.same else ''
      strangers = [hit.strangers] if hit.strangers else []
      rows.append([str(rank), f'{hit.distance:.4f}', *strangers, image])
    title, columns = f'query: {answer.query}', ['rank', 'distance', 'image']
    if any(hit.strangers for hit in answer.hits):
      columns.insert(2, 'strangers as near')
    console_table.show(screen, title, columns, rows)
