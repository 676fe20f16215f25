"""Re-identification of real persons in a video, with labels or without.

  python -m benchmarks.real_clip VIDEO --work=DIR \
    --weights=convnet-synthetic,resnet18-synthetic \
    --labels=benchmarks/real_clip_vtest.csv

DIR receives the persons that OpenCV's detector finds (`fedreid embed
--detect=hog`, `--every=2`), and a later call reads them.

Tracks. A box and the last box of a track, at most `GAP` frames ago, are near if
their intersection over union is above `NEAR`. The box continues the track if it
is above `SAME`, and neither of both is near another one. Every other track that
is near a box ends, since two persons may have been exchanged, and every other
box begins a track. Tracks of less than `SECONDS` or `FEWEST` boxes are left
out. Of each track `IMAGES` of the first third and of the last third are used,
at equal distances in time.

  together  Identities are tracks. Queries are from the first thirds, and the
            gallery from the last ones. A query is compared with its own track
            and with tracks that were in a frame with it, which are certainly of
            other persons. No label is needed, and it is easy: one appearance in
            one light, and few persons.
  all       The same with every track. A person who comes back counts as wrong,
            so that the number is too low.
  labels    In place of `all`, with --labels: identities are those of a file,
            and tracks are cameras. Every image is a query and in the gallery,
            and images of the query's own track do not count: where else is this
            person? A row of the file says who is at a point of a frame; tracks
            without a row are left out.

`real_clip_vtest.csv` has the persons of the tracks of `vtest.avi` (Debian's
package `opencv-doc`), as a viewer of their pictures told them apart.

Rows of the table: the networks, stripes of HSV histograms, the edges of the
boxes alone (how well the place of a person says who it is), and the first
network with its vectors exchanged at random. A standard error is over tracks.
Persons who are hard to find or near others are missing, and the clip is one
place: the numbers compare networks, and are no accuracy of a system.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from PIL import Image

import fedreid_jax as fr
from benchmarks import tracks as track_lib
from fedreid_jax.apps.deploy import crops, hog, vectors
from fedreid_jax.config import parsing, validation
from fedreid_jax.data import augment, decoder
from fedreid_jax.data import load as data_lib
from fedreid_jax.evaluation import features
from fedreid_jax.training import build, snapshot
from fedreid_jax.training.reports import console_table

_WORK = flags.DEFINE_string('work', None, 'Folder for persons.', required=True)
_WEIGHTS = flags.DEFINE_list(
  'weights',
  ['convnet-synthetic'],
  'Names or files of weights, work directories, or random.',
)
_LABELS = flags.DEFINE_string(
  'labels', None, 'CSV file with the columns time, x, y and person.'
)
_SET = flags.DEFINE_multi_string('set', [], 'FIELD=VALUE of each.')
_EVERY = flags.DEFINE_integer('every', 2, 'Search one of so many frames.', 1)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the exchanged vectors.')

BATCH = 32
STRIPES, BINS = 6, 16
SIZE = 64, 128  # of an image whose colours are counted


def main(argv: Sequence[str]) -> None:
  """Prints the table."""
  if len(argv) != 2:
    raise app.UsageError('give one VIDEO')
  folder = Path(_WORK.value, 'crops')
  if not folder.exists():
    detect(Path(argv[1]), folder)
  frames = track_lib.read(folder)
  found = [one for one in track_lib.tracks(frames) if track_lib.is_long(one)]
  people = (
    track_lib.labelled(Path(_LABELS.value), found) if _LABELS.value else None
  )
  clip = track_lib.chosen(folder, found, people)
  print(
    f'{sum(map(len, frames))} persons in {len(frames)} frames, '
    f'{len(found)} tracks of {sum(map(len, found))}; {len(clip.paths)} images, '
    f'{(clip.together.sum(1) - 1).mean():.1f} other tracks together with one'
  )
  if people is not None:
    known = people[people != track_lib.NOBODY]
    print(f'labels: {len({*known})} persons in {len(known)} tracks')
  kinds: dict[str, Callable[[track_lib.Clip], np.ndarray]] = {
    name: lambda clip, name=name: embed(name, clip.paths)
    for name in _WEIGHTS.value
  }
  kinds |= {
    'HSV stripes': lambda clip: np.stack([*map(stripes, clip.paths)]),
    'boxes': lambda clip: clip.edges,
  }
  rows: list[list[str]] = []
  exchanged = None
  for name, of in kinds.items():
    rows += track_lib.scored(name, clip, rows_of := of(clip))
    exchanged = rows_of if exchanged is None else exchanged
  assert exchanged is not None
  order = np.random.default_rng(_SEED.value).permutation(len(exchanged))
  rows += track_lib.scored(
    f'{next(iter(kinds))}, exchanged', clip, exchanged[order]
  )
  second = 'all' if people is None else 'labels'
  columns = ['vectors', 'distance', 'together mAP', 'rank1']
  columns += [f'{second} mAP', 'rank1']
  show(columns, rows)


def show(columns: list[str], rows: list[list[str]]) -> None:
  """Prints a table."""
  from rich import console

  screen = console.Console(highlight=False, emoji=False)
  console_table.show(screen, 'mAP and rank1 in percent', columns, rows)


def detect(video: Path, folder: Path) -> None:
  """Cuts the persons of a video."""
  folder.parent.mkdir(parents=True, exist_ok=True)
  images = vectors.Folder(video.absolute().parent, [video.name], [])
  total = crops.count(images, _EVERY.value)
  done = [0]

  def advance(more: int) -> None:
    done[0] += more
    if done[0] % 20 == 0:
      print(f'frame {done[0]} of {total}', file=sys.stderr, flush=True)

  crops.write(hog.Hog(), images, folder, every=_EVERY.value, advance=advance)


def embed(name: str, paths: Sequence[Path]) -> np.ndarray:
  """Vectors `[M, D]` of images by weights, or by the model of a run."""
  if name == 'random':
    return untrained(paths)
  source = name if Path(name).is_dir() else f'weights:{name}'
  return snapshot.load_changed(source, 'latest', '', _SET.value).embed(paths)


def untrained(paths: Sequence[Path]) -> np.ndarray:
  """Vectors `[M, D]` of the network of `photos` with random weights."""
  recipe: Any = fr.load_config('fedpav:photos')
  recipe.model.pretrained = ''
  parsing.change(recipe, _SET.value)
  config = validation.validate(recipe)
  data = data_lib.without_images(config.data)
  model = build.network(config, 2, data.image_shape)
  extract = features.make_extractor(
    model,
    augment.make(config.augment, data.mean, data.std).test,
    batch=BATCH,
    flip=config.evaluation.flip,
    feature=config.evaluation.feature,
  )
  variables = jax.jit(model.init)(jax.random.key(config.seed))
  parts = decoder.read(paths, config.data.decoder(), BATCH)
  return np.concatenate([extract(variables, pixels) for _, pixels in parts])


def stripes(path: Path) -> np.ndarray:
  """Square roots of the shares of hues, saturations and values of stripes.

  The distance of such roots is that of Hellinger.
  """

  def counts() -> Iterator[np.ndarray]:
    with Image.open(path) as image:
      pixels = np.asarray(image.convert('HSV').resize(SIZE))
    for stripe in np.array_split(pixels, STRIPES):
      for channel in stripe.reshape(-1, 3).T:
        yield (
          np.bincount(channel.astype(int) * BINS // 256, minlength=BINS)
          / channel.size
        )

  return np.sqrt(np.concatenate([*counts()]))


if __name__ == '__main__':
  app.run(main)
