"""Visible and infrared videos: HITSZ-VCM and BUPTCampus.

A record is a frame, and knows its tracklet: the frames of one person by one
camera and of one modality. `frames` takes some frames of each tracklet, evenly
spread: of n frames those at the places `i n // T`, or all if there are fewer.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets import photos as pictures
from fedreid_jax.data.datasets.photos import Photos
from fedreid_jax.data.datasets.records import (
  DIRECTIONS,
  INFRARED,
  VISIBLE,
  Dataset,
  Record,
  divided,
)

FRAMES = ('all', 4, 6, 8, 10, 12, 16, 24, 32, 48)


def _taken(frames: Sequence[Any], most: str | int) -> Sequence[Any]:
  """At most `most` frames, evenly spread."""
  if most == 'all' or len(frames) <= int(most):
    return frames
  return [frames[k * len(frames) // int(most)] for k in range(int(most))]


def _refuse(what: str, path: Path) -> errors.DataError:
  return errors.DataError(what, str(path), layout.HELP)


VCM_SIDES = {1: INFRARED, 2: VISIBLE}  # by the number in lists and names
VCM_NAME = r'(\d+)M(\d)D(\d+)T\d+F([^/\\]+)'
VCM_CAMERAS = range(1, 7)


def _hitsz_vcm(
  root: Path, direction: str, frames: str | int, shortest: int
) -> list[Record]:
  info = 'info/' if (root / 'info').is_dir() else ''
  queries = {*layout.identities(root, f'{info}query_IDX.txt')}
  records: list[Record] = []
  seen: set[str] = set()
  number = 0
  for part in ('train', 'test'):
    names = [words[0] for words in layout.lines(root, f'{info}{part}_name.txt')]
    found = _vcm_tracks(root, f'{info}track_{part}_info.txt', len(names))
    tracks = [*found]
    if part == 'test' and not queries <= {*range(1, len(tracks) + 1)}:
      wrong = max(queries) if max(queries) > len(tracks) else min(queries)
      raise _refuse(
        f'tracklet {wrong} of {len(tracks)}', root / f'{info}query_IDX.txt'
      )
    for row, (modality, first, last, person, camera) in enumerate(tracks, 1):
      if last - first + 1 < shortest:
        continue
      number += 1
      # The list names the infrared tracklets, which ask or answer.
      asks = (row in queries) == direction.startswith('infrared')
      split = 'train' if part == 'train' else 'query' if asks else 'gallery'
      for place, name in enumerate(_taken(names[first - 1 : last], frames)):
        path = _vcm_path(root, part, name)
        # A frame has one tracklet, the first that lists it.
        if path not in seen:
          seen.add(path)
          track = number, place
          records.append(
            Record(path, person, camera, modality, split, (), track)
          )
  layout.require(root, (record.path for record in records))
  return records


def _vcm_tracks(
  root: Path, name: str, num_frames: int
) -> Iterator[tuple[int, int, int, int, int]]:
  """Yields modality, first and last frame from 1, person and camera."""
  for row, words in enumerate(layout.lines(root, name), 1):
    where = root / name
    try:
      kind, first, last, person, camera = map(int, words)
      modality = VCM_SIDES[kind]
    except (ValueError, KeyError):
      raise _refuse(f'line {row} is {" ".join(words)!r}', where) from None
    if not 1 <= first <= last <= num_frames:
      what = f'line {row} has the frames {first} to {last} of {num_frames}'
      raise _refuse(what, where)
    layout.check_camera(camera, VCM_CAMERAS, f'line {row}', where)
    yield modality, first, last, person, camera


def _vcm_path(root: Path, part: str, name: str) -> str:
  """Path of a frame such as `0001M2D3T1F6.jpg`, `Train/0001/rgb/D3/6.jpg`."""
  match = re.fullmatch(VCM_NAME, name)
  if match is None:
    raise _refuse(f'{name!r} does not match {VCM_NAME!r}', root)
  person, kind, camera, file = match.groups()
  side = 'ir' if kind == '1' else 'rgb'
  folder = part.title() + '/' if (root / part.title()).is_dir() else ''
  return f'{folder}{person}/{side}/D{camera}/{file}'


# Frames of the tracklets of a miniature; the second kind is dropped by default.
VCM_LENGTHS = 12, 7
SEEN = 3  # cameras of a person in a miniature


def _film(shots: np.ndarray, length: int) -> Iterator[np.ndarray]:
  """Yields frames `[H, W, 3]`: the shots in turn, moved by a pixel a turn."""
  for k in range(length):
    yield np.roll(shots[k % len(shots)], k // len(shots), 1)


def _write_hitsz_vcm(root: Path, photos: Photos) -> None:
  train, test = photos.halves()
  infrared: list[int] = []
  for part, people in {'train': train, 'test': test}.items():
    names: list[str] = []
    tracks: list[str] = []
    for person in people:
      for step in range(SEEN):
        camera = (person + step) % len(VCM_CAMERAS)
        for kind, modality in VCM_SIDES.items():
          side = photos.infrared if modality == INFRARED else photos.visible
          where = f'{person + 1:04d}', 'ir' if kind == 1 else 'rgb', camera + 1
          first = 1
          # A short tracklet follows that of a person's first camera.
          for track, length in enumerate(VCM_LENGTHS[: 1 + (not step)], 1):
            tracks.append(
              f'{kind} {len(names) + 1} {len(names) + length} {where[0]} '
              f'{where[2]}'
            )
            if part == 'test' and modality == INFRARED:
              infrared.append(len(tracks))
            shots = side[person, camera][:: 1 if track == 1 else -1]
            for k, pixels in enumerate(_film(shots, length)):
              file = f'{first + 5 * k}.jpg'
              pictures.save(
                root / part.title(),
                f'{where[0]}/{where[1]}/D{where[2]}/{file}',
                pixels,
              )
              names.append(
                f'{where[0]}M{kind}D{where[2]}T{track}F{file}',
              )
            first += 5 * length
    pictures.write_text(root, f'info/{part}_name.txt', names)
    pictures.write_text(root, f'info/track_{part}_info.txt', tracks)
  pictures.write_text(
    root, 'info/query_IDX.txt', [' '.join(map(str, infrared))]
  )


# Lin et al., CVPR 2022: six places, each with a visible and an infrared camera
# of one number. A line `2 1 24 0001 3` of `track_train_info.txt` is modality (1
# infrared), first and last line of `train_name.txt`, person and camera.
HITSZ_VCM = Dataset(
  name='hitsz-vcm',
  title='HITSZ-VCM',
  read=_hitsz_vcm,
  counts={
    DIRECTIONS[0]: divided(
      (224757, 500, 6), (105979, None, None), (118137, None, None)
    ),
    DIRECTIONS[1]: divided(
      (224757, 500, 6), (118137, None, None), (105979, None, None)
    ),
  },
  protocol='vcm',
  infrared=True,
  page='the repository VCM-HITSZ-data of its authors',
  miniature=_write_hitsz_vcm,
  folders=('HITSZ-VCM', 'VCM-HITSZ'),
  options={'direction': DIRECTIONS, 'frames': FRAMES, 'shortest': (12, 6, 1)},
  note='tracklets; published code leaves out those of fewer than 12 frames',
  named=r'\d{4}/(ir|rgb)/D[1-6]/\d+\.jpg',
)


BUPT_SIDES = {'RGB': VISIBLE, 'IR': INFRARED}
BUPT_CAMERAS = ('LS3', 'G25', 'CQ1', 'W4', 'TSG1', 'TSG2')


def _buptcampus(root: Path, direction: str, frames: str | int) -> list[Record]:
  paths = _bupt_paths(root)
  records: list[Record] = []
  number = 0
  for part in ('train', 'query', 'gallery'):
    for person, camera, modality, names in _bupt_tracks(root, part, paths):
      # Each test list has tracklets of both modalities.
      if part not in ('train', layout.side(direction, modality)):
        continue
      number += 1
      for place, name in enumerate(_taken(names, frames)):
        path, track = _bupt_frame(root, name), (number, place)
        records.append(Record(path, person, camera, modality, part, (), track))
  layout.require(root, (record.path for record in records))
  return records


def _bupt_tracks(
  root: Path, part: str, paths: Any
) -> Iterator[tuple[int, int, int, list[Any]]]:
  """Yields person, camera from 1, modality and frames of the tracklets."""
  for row, words in enumerate(layout.lines(root, f'{part}.txt'), 1):
    try:
      person, kinds, camera, track = words
      for kind in kinds.split('/'):
        names = paths[person][kind][camera][track]
        if not isinstance(names, list) or not names:
          raise ValueError
        place = 1 + BUPT_CAMERAS.index(camera)
        yield int(person), place, BUPT_SIDES[kind], names
    except (ValueError, KeyError, TypeError):
      what = f'line {row} is {" ".join(words)!r}, or it has no frames'
      raise _refuse(what, root / f'{part}.txt') from None


def _bupt_paths(root: Path) -> Any:
  """Frames by person, modality, camera and tracklet."""
  path = root / 'data_paths.json'
  try:
    found = json.loads(path.read_bytes())
  except FileNotFoundError:
    raise _refuse(f'no file {path.name}', root) from None
  except ValueError as error:
    raise _refuse(f'no JSON: {error}', path) from None
  if not isinstance(found, dict):
    raise _refuse(f'a {type(found).__name__} in place of an object', path)
  return found


def _bupt_frame(root: Path, name: Any) -> str:
  """Path of a frame; a list of the archive names no file outside of it."""
  own = PurePosixPath(name) if isinstance(name, str) else PurePosixPath('/')
  if own.is_absolute() or '..' in own.parts:
    raise _refuse(f'{name!r} is no frame', root / 'data_paths.json')
  return f'DATA/{own}'


BUPT_LENGTH = 5


def _write_buptcampus(root: Path, photos: Photos) -> None:
  train, test = photos.halves()
  paths: dict[str, Any] = {}
  lines: dict[str, list[str]] = {'train': [], 'query': [], 'gallery': []}
  sides = {'RGB': photos.visible, 'IR': photos.infrared}
  for person in photos.people:
    own = paths.setdefault(str(person + 1), {kind: {} for kind in sides})
    for step in range(SEEN):
      place = (person + step) % len(BUPT_CAMERAS)
      camera = BUPT_CAMERAS[place]
      for kind, images in sides.items():
        names = []
        for k, pixels in enumerate(_film(images[person, place], BUPT_LENGTH)):
          name = f'{person + 1}_{kind}_{camera}_1_{8 + k}.jpg'
          names.append(f'{person + 1}/{kind}/{camera}/{name}')
          pictures.save(root / 'DATA', names[-1], pixels)
        own[kind][camera] = {'1': names}
        if person in test:
          # A person asks from the first camera, in both modalities.
          part = 'gallery' if step else 'query'
          lines[part].append(f'{person + 1} {kind} {camera} 1')
      if person in train:
        lines['train'].append(f'{person + 1} RGB/IR {camera} 1')
  for part, found in lines.items():
    pictures.write_text(root, f'{part}.txt', found)
  pictures.write_text(root, 'data_paths.json', [json.dumps(paths)])


# Du et al., IEEE TIFS 2023: six cameras that record both modalities at once. A
# line `1746 RGB/IR TSG2 1` of `train.txt` is person, modality, camera and
# tracklet, whose frames are in `data_paths.json`.
BUPTCAMPUS = Dataset(
  name='buptcampus',
  title='BUPTCampus',
  read=_buptcampus,
  counts={
    DIRECTIONS[0]: divided(
      (796138, 1074, 6), (53417, None, None), (298771, None, None)
    ),
    DIRECTIONS[1]: divided(
      (796138, 1074, 6), (48521, None, None), (298771, None, None)
    ),
  },
  protocol='buptcampus',
  infrared=True,
  page='the repository dyhBUPT/BUPTCampus of its authors',
  miniature=_write_buptcampus,
  folders=('BUPTCampus',),
  options={'direction': DIRECTIONS, 'frames': FRAMES},
  note='tracklets; the auxiliary persons of one camera each are not read',
  named=r'\d+_(RGB|IR)_[A-Z]+\d+_\d+_\d+\.jpg',
)
