"""Flags of `embed` for photographs and videos of which persons are cut."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from fedreid_jax import errors

if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.crops import Crops
  from fedreid_jax.apps.deploy.persons import Finder
  from fedreid_jax.apps.deploy.vectors import Folder

HOG = 'hog'
_DETECT = flags.DEFINE_string(
  'detect',
  None,
  'ONNX file of a detector, or hog for that of OpenCV: embed the persons in '
  'photographs.',
)
_EVERY = flags.DEFINE_integer(
  'every',
  None,
  'Read one of so many frames of a video (default: 1, and no videos that are '
  'in a folder).',
  1,
)
_CROPS = flags.DEFINE_string(
  'crops',
  None,
  'detect: folder for the images of persons (default: that of --out with '
  '-crops), or for the frames of a video.',
)
_FORM = flags.DEFINE_string(
  'detect_form',
  'auto',
  'detect: form of the outputs: boxes (boxes, scores and labels), yolo8 '
  '([1, 4 + classes, n]), yolo5 ([1, n, 5 + classes]), or auto.',
)
_VALUES = flags.DEFINE_enum(
  'detect_values', '1', ['1', '255'], 'detect: value of white in the input.'
)
_SCORE = flags.DEFINE_float(
  'detect_score',
  None,
  'detect: smallest score of a person (default: 0.5, and 0.75 for hog).',
  0,
  1,
)
_OVERLAP = flags.DEFINE_float(
  'detect_overlap',
  None,
  'detect: largest intersection over union of two persons, for outputs without '
  'suppression (default: 0.5, and 0.4 for hog).',
  0,
  1,
)
_HEIGHT = flags.DEFINE_integer(
  'detect_height',
  None,
  'detect: smallest height of a person in pixels (default: any, and 80 for '
  'hog, which searches longer for smaller ones).',
  32,
  10_000,
)
_LABEL = flags.DEFINE_integer(
  'detect_class',
  0,
  'detect: class of persons; 0 in COCO, 1 in detectors of torchvision.',
  0,
)
_OF_NETWORKS = _FORM, _VALUES, _LABEL
_OF_BOTH = _SCORE, _OVERLAP, _HEIGHT

SHOWN = 20  # names of photographs in a note


class Search(NamedTuple):
  """How photographs become images of persons."""

  finder: 'Finder'
  every: int  # one of so many frames
  crops: Path  # folder to write


def photographs(given: str) -> 'Folder':
  """The photographs of --images, and the videos; a file is one video.

  Videos in a folder are listed with --every.

  Raises:
    DataError: for no such folder or video, or a video that cannot be read.
    ConfigError: for --every without a video, or a video without OpenCV.
  """
  from fedreid_jax.apps.deploy import vectors, video
  from fedreid_jax.apps.deploy.commands import embedding_flags

  path = Path(os.path.expanduser(given))
  if not os.path.isfile(path):
    ends = video.ENDS if _EVERY.value else ()
    found = embedding_flags.folder(given, '--images', ends)
  elif video.is_video(path.name):
    path = path.absolute()
    found = vectors.Folder(path.parent.resolve(), [path.name], [])
  else:
    raise errors.DataError(
      f'{given} is no folder and has no name of a video',
      '--images',
      f'give a folder, or a file that ends in {", ".join(video.ENDS)}',
    )
  if any(map(video.is_video, found.names)):
    video.check()
  elif _EVERY.value:
    raise errors.ConfigError(
      f'no video in {found.root}', '--every', 'leave the flag out'
    )
  return found


def opened(images: 'Folder', out: Path) -> Search | None:
  """How to search photographs, None for images of persons.

  Raises:
    ConfigError: for flags that do not fit, a package that is missing, another
      form of input, or a folder for the crops that cannot be used.
    DataError: for a file that is missing or is no network.
  """
  from fedreid_jax.apps.deploy import crops, persons, video

  has_video = any(map(video.is_video, images.names))
  if _DETECT.value is None:
    unused = (*_OF_NETWORKS, *_OF_BOTH, *(() if has_video else (_CROPS,)))
    _refuse(unused, 'no detector', 'give --detect=FILE.onnx or --detect=hog')
    if not has_video:
      return None
    finder: Finder = persons.Whole()
  else:
    finder = _hog() if _DETECT.value == HOG else _network(_DETECT.value)
  given = _CROPS.value
  path = Path(given).expanduser() if given else None
  path = path or out.with_name(f'{out.stem}-crops')
  crops.check_out(path)
  return Search(finder, _EVERY.value or 1, path)


def _refuse(
  unused: tuple[flags.FlagHolder[Any], ...], what: str, remedy: str
) -> None:
  for flag in unused:
    if flag.present:
      raise errors.ConfigError(what, f'--{flag.name}', remedy)


def _common() -> dict[str, Any]:
  """The settings that are given, of both kinds of detectors."""
  return {
    flag.name.removeprefix('detect_'): flag.value
    for flag in _OF_BOTH
    if flag.value is not None
  }


def _hog() -> 'Finder':
  from fedreid_jax.apps.deploy import hog

  _refuse(
    _OF_NETWORKS, 'a flag of networks, and hog is none', 'leave the flag out'
  )
  return hog.Hog(hog.Settings(**_common()))


def _network(path: str) -> 'Finder':
  from fedreid_jax.apps.deploy import detector

  if _FORM.value not in detector.FORMS:
    raise errors.ConfigError(
      f'unknown form {_FORM.value!r}',
      '--detect_form',
      errors.one_of(_FORM.value, detector.FORMS),
    )
  settings = detector.Settings(
    form=_FORM.value,
    largest=float(_VALUES.value),
    label=_LABEL.value,
    **_common(),
  )
  return detector.Detector(Path(path).expanduser(), settings)


def cut(
  search: Search, images: 'Folder', max_pixels: int, skip: bool
) -> tuple['Crops', dict[str, Any]]:
  """Cuts the persons of photographs, and prints how many there are.

  The result has values for JSON that describe the crops.
  """
  from fedreid_jax.apps.deploy import crops
  from fedreid_jax.apps.deploy.commands import embedding_flags

  what, out = crops.noun(images), search.crops
  total = crops.count(images, search.every)
  with embedding_flags.progress_bar('detecting', total) as advance:
    found = crops.write(
      search.finder,
      images,
      out,
      every=search.every,
      max_pixels=max_pixels,
      skip=skip,
      advance=advance,
    )
  persons = errors.counted(len(found.folder.names), 'person')
  number = errors.counted(found.searched, what)
  done = f'{persons} in {number}, cut' if _DETECT.value else f'{number} written'
  print(f'{done} into {out}; boxes in {out / crops.BOXES}')
  if found.empty:
    names = ', '.join(found.empty[:SHOWN])
    names += ', ...' if len(found.empty) > SHOWN else ''
    line = f'note: no person in {errors.counted(len(found.empty), what)}'
    print(errors.printable(f'{line}: {names}'), file=sys.stderr)
  described = {
    'photographs': str(images.root),
    'detector': search.finder.name,
    'every': search.every,
    'without_person': found.empty,
    'settings': search.finder.settings._asdict(),
  }
  return found, described
