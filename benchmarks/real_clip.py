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

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from PIL import Image

import fedreid_jax as fr
from fedreid_jax.apps.deploy import crops, hog, persons, vectors
from fedreid_jax.config import parsing, validation
from fedreid_jax.data import augment, decoder
from fedreid_jax.data import load as data_lib
from fedreid_jax.evaluation import features, gallery, ranking
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

GAP = 3  # frames that were searched
SAME, NEAR = 0.3, 0.1  # intersections over unions
SECONDS, FEWEST = 3.0, 10  # of a track
IMAGES = 6  # of a third
BATCH = 32
STRIPES, BINS = 6, 16
SIZE = 64, 128  # of an image whose colours are counted
NOBODY = -1
INSTANT = 0.01  # seconds between a label and its frame
METRICS = 'cosine', 'euclidean'


class Seen(NamedTuple):
  """A person in a frame."""

  name: str  # of the image
  time: float  # seconds
  box: np.ndarray  # left, top, right, bottom, `[4]`


class Clip(NamedTuple):
  """Images with the numbers of their tracks."""

  paths: list[Path]  # `M`
  edges: np.ndarray  # of boxes, `[M, 4]`
  tracks: np.ndarray  # int `[M]`
  is_first: np.ndarray  # bool `[M]`, of the first third, else of the last
  together: np.ndarray  # bool `[tracks, tracks]`, whether in one frame
  people: np.ndarray | None  # int `[tracks]`, `NOBODY` without a label


def main(argv: Sequence[str]) -> None:
  """Prints the table."""
  if len(argv) != 2:
    raise app.UsageError('give one VIDEO')
  folder = Path(_WORK.value, 'crops')
  if not folder.exists():
    detect(Path(argv[1]), folder)
  frames = read(folder)
  found = [one for one in tracks(frames) if is_long(one)]
  people = labelled(Path(_LABELS.value), found) if _LABELS.value else None
  clip = chosen(folder, found, people)
  print(
    f'{sum(map(len, frames))} persons in {len(frames)} frames, '
    f'{len(found)} tracks of {sum(map(len, found))}; {len(clip.paths)} images, '
    f'{(clip.together.sum(1) - 1).mean():.1f} other tracks together with one'
  )
  if people is not None:
    known = people[people != NOBODY]
    print(f'labels: {len({*known})} persons in {len(known)} tracks')
  kinds: dict[str, Callable[[Clip], np.ndarray]] = {
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
    rows += scored(name, clip, rows_of := of(clip))
    exchanged = rows_of if exchanged is None else exchanged
  assert exchanged is not None
  order = np.random.default_rng(_SEED.value).permutation(len(exchanged))
  rows += scored(f'{next(iter(kinds))}, exchanged', clip, exchanged[order])
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


def read(folder: Path) -> list[list[Seen]]:
  """The persons of each frame that has any, in the order of time."""
  frames: dict[float, list[Seen]] = {}
  with (folder / crops.BOXES).open(encoding='utf-8', newline='') as file:
    for row in csv.DictReader(file):
      edges = [float(row[n]) for n in ('left', 'top', 'right', 'bottom')]
      seen = Seen(row['crop'], float(row['time']), np.array(edges))
      frames.setdefault(seen.time, []).append(seen)
  return [frames[time] for time in sorted(frames)]


def tracks(frames: Sequence[Sequence[Seen]]) -> list[list[Seen]]:
  """Joins persons of frames, as the first lines of this module say."""
  done: list[list[Seen]] = []
  open_: list[tuple[int, list[Seen]]] = []  # number of the last frame
  for number, frame in enumerate(frames):
    done += [track for last, track in open_ if number - last > GAP]
    open_ = [one for one in open_ if number - one[0] <= GAP]
    if not open_:
      open_ = [(number, [one]) for one in frame]
      continue
    lasts = np.stack([track[-1].box for _, track in open_])
    # `[persons, tracks]`
    shared = np.stack([persons.overlaps(one.box, lasts) for one in frame])
    near = shared > NEAR
    alone = (near.sum(1) == 1)[:, None] & (near.sum(0) == 1)[None]
    follows = alone & (shared > SAME)
    doubtful = near.any(0) & ~follows.any(0)
    done += [open_[k][1] for k in np.flatnonzero(doubtful).tolist()]
    kept: list[tuple[int, list[Seen]]] = []
    for k, (last, track) in enumerate(open_):
      if follows[:, k].any():
        (row,) = np.flatnonzero(follows[:, k]).tolist()
        kept.append((number, [*track, frame[row]]))
      elif not doubtful[k]:
        kept.append((last, track))
    begun = np.flatnonzero(~follows.any(1)).tolist()
    open_ = kept + [(number, [frame[k]]) for k in begun]
  return done + [track for _, track in open_]


def is_long(track: Sequence[Seen]) -> bool:
  """Whether a track has enough boxes in enough time."""
  return len(track) >= FEWEST and track[-1].time - track[0].time >= SECONDS


def labelled(path: Path, found: Sequence[Sequence[Seen]]) -> np.ndarray:
  """The person of each track, int `[tracks]`."""
  people = np.full(len(found), NOBODY)
  with path.open(encoding='utf-8', newline='') as file:
    for row in csv.DictReader(file):
      time, x, y = (float(row[name]) for name in ('time', 'x', 'y'))
      for number, track in enumerate(found):
        for one in track:
          left, top, right, bottom = one.box
          here = left <= x <= right and top <= y <= bottom
          if here and abs(one.time - time) < INSTANT:
            people[number] = int(row['person'])
  return people


def chosen(
  folder: Path,
  found: Sequence[Sequence[Seen]],
  people: np.ndarray | None = None,
) -> Clip:
  """The images of tracks that are used."""
  images: list[Seen] = []
  numbers: list[int] = []
  is_first: list[bool] = []
  for number, track in enumerate(found):
    for first, seen in zip((True, False), thirds(track), strict=True):
      images += seen
      numbers += [number] * len(seen)
      is_first += [first] * len(seen)
  times = [{one.time for one in track} for track in found]
  return Clip(
    [folder / one.name for one in images],
    np.stack([one.box for one in images]),
    np.array(numbers),
    np.array(is_first),
    np.array([[bool(a & b) for b in times] for a in times]),
    people,
  )


def thirds(track: Sequence[Seen]) -> tuple[list[Seen], list[Seen]]:
  """Up to `IMAGES` of the first and of the last third of the time."""
  start, end = track[0].time, track[-1].time
  third = (end - start) / 3
  first = [one for one in track if one.time <= start + third]
  last = [one for one in track if one.time >= end - third]
  return spaced(first), spaced(last)


def spaced(seen: Sequence[Seen]) -> list[Seen]:
  """Up to `IMAGES`, evenly spaced."""
  size = min(IMAGES, len(seen))
  return [seen[k] for k in np.linspace(0, len(seen) - 1, size).astype(int)]


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


def scored(name: str, clip: Clip, rows: np.ndarray) -> list[list[str]]:
  """Lines of the table for vectors `[M, D]`."""
  lines: list[list[str]] = []
  for metric in METRICS:
    given = rows.astype(np.float64)
    if metric == 'cosine':
      lengths = np.linalg.norm(given, axis=1, keepdims=True)
      given = given / np.maximum(lengths, 1e-12)
    squares = (given**2).sum(1)
    distance = squares[:, None] + squares - 2 * given @ given.T
    thirds_ = distance[clip.is_first][:, ~clip.is_first]
    one, two = clip.tracks[clip.is_first], clip.tracks[~clip.is_first]
    # No match is farther than an image at an infinite distance.
    hidden = np.where(clip.together[one][:, two], thirds_, np.inf)
    second = across(clip, distance) if clip.people is not None else None
    cells = measured(hidden, one, two), second or measured(thirds_, one, two)
    lines.append([name, metric, *cells[0], *cells[1]])
  return lines


def across(clip: Clip, distance: np.ndarray) -> list[str]:
  """Scores of persons in other tracks than that of the query."""
  assert clip.people is not None
  who = clip.people[clip.tracks]
  kept = np.flatnonzero(who != NOBODY)
  labels = who[kept], who[kept], clip.tracks[kept], clip.tracks[kept]
  return cells_of(distance[np.ix_(kept, kept)], *labels, clip.tracks[kept])


def measured(
  distance: np.ndarray, one: np.ndarray, two: np.ndarray
) -> list[str]:
  """Scores of tracks of queries `[Q]` in those of the gallery `[P]`."""
  cameras = np.zeros_like(one), np.ones_like(two)
  return cells_of(distance, one, two, *cameras, one)


def cells_of(
  distance: np.ndarray,
  query: np.ndarray,
  others: np.ndarray,
  own: np.ndarray,
  cameras: np.ndarray,
  tracks: np.ndarray,
) -> list[str]:
  """MAP with its standard error over tracks, and rank-1, in percent.

  Args:
    distance: `[Q, P]`.
    query: identities, `[Q]`, and `others`, `[P]`.
    own: cameras, `[Q]`, and `cameras`, `[P]`.
    tracks: of the queries, `[Q]`.
  """
  labels = gallery.check_labels(query, others, own, cameras)
  kept: list[ranking.Scores] = []
  found = ranking.evaluate_blocks(
    [distance], labels, 'market', (1,), 0, kept.append
  )
  (scores,) = kept
  means = [
    scores.precision[scores.valid & (tracks == k)].mean()
    for k in np.unique(tracks[scores.valid])
  ]
  error = 100 * np.std(means, ddof=1) / len(means) ** 0.5
  return [f'{found["mAP"]:.1f} ± {error:.1f}', f'{found["rank1"]:.1f}']


if __name__ == '__main__':
  app.run(main)
