"""Persons of photographs as images, with the boxes that they are cut from.

The folder of crops has an image for each person, `a.jpg-0.png` for the best one
in `a.jpg`, and `boxes.csv` with a row for each of them. PNG files have the
pixels of the photograph. The folder is renamed when it is complete.
"""

import csv
import io
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from fedreid_jax import errors
from fedreid_jax.apps.deploy.detector import Box, Detector
from fedreid_jax.apps.deploy.vectors import Folder
from fedreid_jax.data import decoder
from fedreid_jax.training.files import atomic

BOXES = 'boxes.csv'
HEADER = ('crop', 'source', 'left', 'top', 'right', 'bottom', 'score')


class Crops(NamedTuple):
  """Persons of the photographs of a folder."""

  folder: Folder  # of the crops; `left_out` has photographs, not crops
  empty: list[str]  # photographs without a person


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
  detector: Detector,
  photographs: Folder,
  out: Path,
  *,
  max_pixels: int = decoder.MAX_PIXELS,
  skip: bool = False,
  advance: Callable[[int], None] = lambda more: None,
) -> Crops:
  """Cuts all persons of the photographs of a folder.

  Boxes are in pixels of a photograph whose orientation tag is applied.

  Args:
    max_pixels: largest number of pixels of a photograph.
    skip: whether to leave out photographs that cannot be read.
    advance: called with the number of further photographs that are done.

  Raises:
    DataError: for a photograph that cannot be read, or no person at all.
    ConfigError: for a detector with outputs of another form.
    ResourceError: when the crops cannot be written.
  """
  left_out, empty = list(photographs.left_out), list[str]()
  boxes: dict[str, tuple[str, Box]] = {}
  part = out.with_name(f'{out.name}.partial')
  shutil.rmtree(part, ignore_errors=True)
  try:
    with errors.on_disk(out):
      part.mkdir()
      for name in photographs.names:
        source = photographs.root / name
        image = _opened(source, max_pixels, skip)
        if isinstance(image, str):
          left_out.append((name, image))
        elif found := detector.find(image):
          boxes |= _save(image, found, part, name)
        else:
          empty.append(name)
        advance(1)
      if not boxes:
        raise errors.DataError(
          f'no person in {errors.counted(len(empty), "photograph")}',
          str(photographs.root),
          'lower --detect_score, or check --detect_values and --detect_class',
        )
      atomic.write_text(part / BOXES, _table(boxes))
      # An empty folder of this name is replaced.
      os.replace(part, out)
  finally:
    shutil.rmtree(part, ignore_errors=True)
  return Crops(Folder(out.resolve(), sorted(boxes), left_out), empty)


def _opened(source: Path, max_pixels: int, skip: bool) -> Image.Image | str:
  """A photograph in RGB, or with `skip` the reason why it cannot be read."""
  try:
    with decoder.open_image(source, max_pixels) as image:
      return decoder.opaque(ImageOps.exif_transpose(image)).convert('RGB')
  except (OSError, SyntaxError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or str(error)
    if skip:
      return reason
    raise errors.DataError(
      f'cannot be read: {reason}', str(source), 'give an image file'
    ) from error


def _save(
  image: Image.Image, found: list[Box], part: Path, name: str
) -> dict[str, tuple[str, Box]]:
  """Writes the crops of a photograph; returns its name and their boxes."""
  (part / name).parent.mkdir(parents=True, exist_ok=True)
  boxes: dict[str, tuple[str, Box]] = {}
  for number, box in enumerate(found):
    crop = f'{name}-{number}.png'
    image.crop(box[:4]).save(part / crop, compress_level=1)
    boxes[crop] = name, box
  return boxes


def _table(boxes: Mapping[str, tuple[str, Box]]) -> str:
  text = io.StringIO()
  table = csv.writer(text, lineterminator='\n')
  table.writerow(HEADER)
  for crop in sorted(boxes):
    source, box = boxes[crop]
    table.writerow([crop, source, *box[:4], f'{box.score:.4f}'])
  return text.getvalue()


def read(root: Path) -> dict[str, str]:
  """Photograph and box of each crop of a folder, in words; {} without them.

  A folder that is gone, or that `write` did not make, has none.
  """
  try:
    with (root / BOXES).open(encoding='utf-8', newline='') as file:
      lines = csv.reader(file)
      if tuple(next(lines, ())) != HEADER:
        return {}
      return {
        crop: f'{source} at {left},{top},{right},{bottom}, score {score}'
        for crop, source, left, top, right, bottom, score in lines
      }
  except (OSError, ValueError, csv.Error):
    return {}
