"""Tracks of persons in a video, and scores of vectors of their images.

`benchmarks.real_clip` describes them.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedreid_jax.apps.deploy import crops, persons
from fedreid_jax.evaluation import gallery, ranking

GAP = 3  # frames that were searched
SAME, NEAR = 0.3, 0.1  # intersections over unions
SECONDS, FEWEST = 3.0, 10  # of a track
IMAGES = 6  # of a third
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
