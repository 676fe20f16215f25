"""Frames of video files, by the optional package opencv-python-headless.

A frame is decoded when it is asked for, so that one of them is in memory.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.data import decoder

# Ends of the names of videos, in upper or lower case.
ENDS = (
  *('.avi', '.m2ts', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg'),
  *('.mts', '.ts', '.webm', '.wmv'),
)
# A header may announce some frames more than a complete file has.
SPARE = 1.0  # seconds
SHOWN = 20  # names in a note


class Frame(NamedTuple):
  """A frame of a video."""

  number: int  # in the video, from 0
  seconds: float  # from the start of the video, by its time stamp, to 0.001
  image: Image.Image  # RGB


class Header(NamedTuple):
  """What the header of a video announces; 0 for what it does not say."""

  frames: int
  rate: float  # frames per second


class CutOff(Exception):
  """A video that ends before its header says; the text is the reason."""


def is_video(name: str) -> bool:
  """Whether a file has the name of a video."""
  return name.lower().endswith(ENDS)


def split(names: Iterable[str]) -> tuple[list[str], list[str]]:
  """Names of videos, sorted, and all others."""
  found: list[str] = []
  others: list[str] = []
  for name in names:
    (found if is_video(name) else others).append(name)
  return sorted(found), others


def skipped(names: Sequence[str]) -> str:
  """Says that videos were skipped, and how they would be read."""
  shown = ', '.join(names[:SHOWN]) + (', ...' if len(names) > SHOWN else '')
  number = errors.counted(len(names), 'video')
  return f'{number} skipped: {shown}; `fedreid embed --every=N` reads videos'


def clock(seconds: float) -> str:
  """Hours, minutes and seconds, `0:01:19.4`."""
  tenths = round(seconds * 10)
  minutes, tenths = divmod(tenths, 600)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{tenths / 10:04.1f}'


def check() -> None:
  """Raises ConfigError, with the extra, without the package."""
  _opencv()


def header(path: Path, max_pixels: int = decoder.MAX_PIXELS) -> Header:
  """Reads the header of a video.

  Raises:
    ValueError: for a file that is no video, or frames that are too large.
    OSError: for a file that cannot be opened.
    ConfigError: without the package.
  """
  cv2 = _opencv()
  capture = _opened(cv2, path, max_pixels)
  try:
    return _header(cv2, capture)
  finally:
    capture.release()


def frames(
  path: Path, every: int = 1, max_pixels: int = decoder.MAX_PIXELS
) -> Iterator[Frame]:
  """Yields the first of every `every` frames of a video.

  Frames are turned as the video says. Damaged frames that the decoder passes
  over are not counted.

  Args:
    every: 1 or more.
    max_pixels: largest height times width of a frame.

  Raises:
    CutOff: after the last frame of a video that is shorter than it announces
      by more than `SPARE` seconds.
    ValueError: for a file without a frame; else as `header`.
  """
  cv2 = _opencv()
  capture = _opened(cv2, path, max_pixels)
  try:
    number, announced = 0, _header(cv2, capture)
    # Frames that are passed over are decoded, but not converted.
    while capture.grab():
      if number % every == 0:
        stamp = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        done, pixels = capture.retrieve()
        if not done:
          break
        image = Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
        # A stream without time stamps has zeros.
        if stamp <= 0:
          stamp = number / announced.rate if announced.rate else 0.0
        yield Frame(number, round(stamp, 3), image)
      number += 1
  finally:
    capture.release()
  if not number:
    raise ValueError('a video without a frame that can be decoded')
  if announced.frames - number > SPARE * announced.rate:
    raise CutOff(
      f'all after frame {number} of {announced.frames}: the file is cut off'
    )


def _opencv() -> Any:
  # A damaged file is one line of ours. FFmpeg reads the level when the first
  # video is opened.
  os.environ.setdefault('OPENCV_FFMPEG_LOGLEVEL', '-8')
  cv2 = plugins.load_extra('cv2', 'a video', plugins.install_command('video'))
  cv2.utils.logging.setLogLevel(0)
  return cv2


def _opened(cv2: Any, path: Path, max_pixels: int) -> Any:
  """An open video; the caller releases it."""
  with path.open('rb') as file:  # the decoder gives no reason
    if not file.read(1):
      raise ValueError('empty file')
  # Other readers take a name for a camera, an address or a series of images.
  capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
  if not capture.isOpened():
    raise ValueError('no video that FFmpeg can decode')
  width, height = (
    int(capture.get(which))
    for which in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
  )
  if width * height > max_pixels:
    capture.release()
    raise ValueError(
      f'{width}x{height} pixels, more than max_pixels={max_pixels}'
    )
  return capture


def _header(cv2: Any, capture: Any) -> Header:
  # Both are negative or infinite where the file does not say.
  count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
  rate = capture.get(cv2.CAP_PROP_FPS)
  known = 0 < count < 2**40 and 0 < rate < 1e6
  return Header(int(count), float(rate)) if known else Header(0, 0.0)
