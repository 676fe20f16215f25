"""Persons of photographs and videos as images, with their boxes.

The folder of crops has an image for each person, `a.jpg-0.png` for the best one
in `a.jpg` and `a.avi/000012-0.png` in the frame 12 of `a.avi`, and `boxes.csv`
with a row for each of them. PNG files have the pixels of the photograph. The
folder is renamed when it is complete.
"""

import contextlib
import csv
import io
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from fedreid_jax import errors
from fedreid_jax.apps.deploy import video
from fedreid_jax.apps.deploy.persons import Box, Finder
from fedreid_jax.apps.deploy.vectors import Folder
from fedreid_jax.data import decoder, files
from fedreid_jax.training.files import atomic

BOXES = 'boxes.csv'
HEADER = ('crop', 'source', 'left', 'top', 'right', 'bottom', 'score')
TIME = 'time'  # a further column if there are videos: seconds, or nothing


class Crops(NamedTuple):
  """Persons of the photographs of a folder."""

  folder: Folder  # of the crops; `left_out` has photographs, not crops
  searched: int  # photographs, and frames of videos
  empty: list[str]  # those without a person
  times: dict[str, float]  # of crops of videos, seconds by name


class _Photograph(NamedTuple):
  """A photograph or a frame."""

  name: str  # before the number of the person in the names of crops
  image: Image.Image  # RGB, turned
  source: str  # file
  seconds: float | None  # of a frame


class _Crop(NamedTuple):
  source: str
  box: Box
  seconds: float | None


def check_out(out: Path) -> None:
  """Refuses a folder of crops that has files, or cannot be made.

  Raises:
    ConfigError: for a folder with files, or a file.
    ResourceError: for a folder in which it cannot be made.
  """
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise errors.ConfigError(
      'the folder of crops exists and is not empty',
      str(out),
      'give another --crops, or remove it',
    )
  atomic.check_writable(out)


def write(
  finder: Finder,
  photographs: Folder,
  out: Path,
  *,
  every: int = 1,
  max_pixels: int = decoder.MAX_PIXELS,
  skip: bool = False,
  advance: Callable[[int], None] = lambda more: None,
) -> Crops:
  """Cuts all persons of the photographs and videos of a folder.

  Boxes are in pixels of a photograph whose orientation tag is applied. One
  photograph or frame is in memory.

  Args:
    every: the first of so many frames of a video is searched.
    max_pixels: largest number of pixels of a photograph.
    skip: whether to leave out photographs and videos that cannot be read.
    advance: called with the number of further photographs that are done.

  Raises:
    DataError: for a photograph or a video that cannot be read, or no person at
      all.
    ConfigError: for a detector with outputs of another form, or a video
      without OpenCV.
    ResourceError: when the crops cannot be written.
  """
  left_out, empty, searched = list(photographs.left_out), list[str](), 0
  crops: dict[str, _Crop] = {}
  part = out.with_name(f'{out.name}.partial')
  shutil.rmtree(part, ignore_errors=True)
  try:
    with errors.on_disk(out):
      part.mkdir()
      for one in _opened(photographs, every, max_pixels, skip, left_out):
        if found := finder.find(one.image):
          crops |= _save(one, found, part)
        else:
          empty.append(one.name)
        searched += 1
        advance(1)
      if not crops:
        raise errors.DataError(
          f'no person in {errors.counted(searched, noun(photographs))}',
          str(photographs.root),
          'lower --detect_score or --detect_height; for a network check '
          '--detect_values and --detect_class',
        )
      atomic.write_text(part / BOXES, _table(crops))
      # An empty folder of this name is replaced.
      os.replace(part, out)
  finally:
    shutil.rmtree(part, ignore_errors=True)
  folder = Folder(out.resolve(), sorted(crops), left_out)
  times = {n: x.seconds for n, x in crops.items() if x.seconds is not None}
  return Crops(folder, searched, empty, times)


def noun(photographs: Folder) -> str:
  """What is searched: 'frame' if all files are videos, else 'photograph'."""
  return (
    'frame' if all(map(video.is_video, photographs.names)) else 'photograph'
  )


def count(photographs: Folder, every: int) -> int:
  """The number of photographs and frames, by the headers of videos.

  A video that cannot be read, or does not say, counts as one.
  """
  total = 0
  for name in photographs.names:
    frames = 1
    if video.is_video(name):
      with contextlib.suppress(OSError, ValueError):
        frames = max(1, video.header(photographs.root / name).frames)
    total += math.ceil(frames / every)
  return total


def _opened(
  photographs: Folder,
  every: int,
  max_pixels: int,
  skip: bool,
  left_out: files.Bad,
) -> Iterator[_Photograph]:
  """Yields photographs and frames; `left_out` receives what is not used."""
  for name in photographs.names:
    source = photographs.root / name
    try:
      if video.is_video(name):
        for frame in video.frames(source, every, max_pixels):
          at = f'{name}/{frame.number:06d}'
          yield _Photograph(at, frame.image, name, frame.seconds)
        continue
      with decoder.open_image(source, max_pixels) as image:
        turned = decoder.opaque(ImageOps.exif_transpose(image)).convert('RGB')
      yield _Photograph(name, turned, name, None)
    except video.CutOff as error:
      # The frames before the end are as good as those of a whole file.
      left_out.append((name, str(error)))
    except (OSError, SyntaxError, ValueError) as error:
      reason = getattr(error, 'strerror', None) or str(error)
      if not skip:
        kind = 'a video' if video.is_video(name) else 'an image file'
        raise errors.DataError(
          f'cannot be read: {reason}', str(source), f'give {kind}'
        ) from error
      left_out.append((name, reason))


def _save(one: _Photograph, found: list[Box], part: Path) -> dict[str, _Crop]:
  """Writes the crops of a photograph; returns them by name."""
  (part / one.name).parent.mkdir(parents=True, exist_ok=True)
  crops: dict[str, _Crop] = {}
  for number, box in enumerate(found):
    crop = f'{one.name}-{number}.png'
    one.image.crop(box[:4]).save(part / crop, compress_level=1)
    crops[crop] = _Crop(one.source, box, one.seconds)
  return crops


def _table(crops: Mapping[str, _Crop]) -> str:
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  timed = any(one.seconds is not None for one in crops.values())
  table.writerow([*HEADER, TIME] if timed else HEADER)
  for crop in sorted(crops):
    source, box, seconds = crops[crop]
    row = [crop, source, *box[:4], f'{box.score:.4f}']
    time = '' if seconds is None else f'{seconds:.3f}'
    table.writerow([*row, time] if timed else row)
  return text.getvalue()


def read(root: Path) -> dict[str, str]:
  """Photograph and box of each crop of a folder, in words; {} without them.

  A folder that is gone, or that `write` did not make, has none.
  """
  try:
    with (root / BOXES).open(encoding='utf-8', newline='') as file:
      lines = csv.reader(file)
      if tuple(next(lines, ())) not in (HEADER, (*HEADER, TIME)):
        return {}
      return {crop: _origin(*rest) for crop, *rest in lines}
  except (OSError, ValueError, TypeError, csv.Error):
    return {}


def _origin(
  source: str,
  left: str,
  top: str,
  right: str,
  bottom: str,
  score: str,
  time: str = '',
) -> str:
  at = f'{video.clock(float(time))}, ' if time else ''
  return f'{source} at {at}{left},{top},{right},{bottom}, score {score}'
