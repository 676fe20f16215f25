"""Identities and cameras in the paths of files, relative to their domain."""

import re
from collections.abc import Sequence
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.core import patterns

IDENTITY = r'^([^/]+)/'
# 0002_c1s1_000451_03.jpg, anna_c1.jpg and cam1/anna.jpg; anna_01.jpg.
CAMERA = r'(?i)(?:^|[\s_/-])c(?:am(?:era)?[\s_-]?)?(\d+)'
# 0000_000_01_0303morning_0015_0.jpg of MSMT17: person, image, camera, time.
_MSMT17 = r'(?:^|/)\d+_\d{3}_(\d{2})_\d{4}(?:morning|noon|afternoon)_'
NUMBER = r'_(\d+)\.[^.]+$'
AUTO = 'auto'
JUNK = '-1'  # the person of images that are left out of Market-1501
DISTRACTOR = '0000'  # that of images of nobody, in the gallery only
NOBODY = ''  # in place of a person: no person has this name


def identities(
  pattern: str, names: Sequence[str], where: str | Path
) -> list[str]:
  """Group of `data.identity_pattern` in each name, or raises DataError."""
  found = _groups(pattern, 'data.identity_pattern', names)
  return _complete(found, names, pattern, 'data.identity_pattern', where)


def cameras(
  pattern: str,
  names: Sequence[str],
  persons: Sequence[str],
  where: str | Path,
  needed: bool = False,
) -> list[str] | None:
  """Camera in each name, or None if names have no cameras.

  Args:
    pattern: regular expression, `AUTO`, or '' for no cameras.
    persons: identity of each name.
    needed: whether `AUTO` reads a number at the end of a name as a camera, even
      if it may count the images of a person.

  Raises:
    DataError: for a pattern that some names match and others do not.
  """
  if not pattern:
    return None
  if pattern != AUTO:
    found = _groups(pattern, 'data.camera_pattern', names)
    if not any(found):
      return None
    return _complete(found, names, pattern, 'data.camera_pattern', where)
  found = _known(names)
  if found is None:
    found = _groups(NUMBER, 'data.camera_pattern', _below(names))
    # A number that no two images of a person share may count the images of the
    # person; a repeated one is a camera. One number for all tells nothing.
    numbers = set(zip(persons, found, strict=True))
    counts = not needed and len(numbers) == len(found)
    if counts or len({*found}) < 2:
      return None
  return [camera for camera in found if camera] if all(found) else None


def guess(
  pattern: str, names: Sequence[str], cameras: Sequence[str] | None
) -> str:
  """An example of cameras that `AUTO` has guessed, '' if it knows them."""
  if pattern != AUTO or cameras is None or _known(names) is not None:
    return ''
  return f'camera {cameras[0]} from the last number of {names[0]}'


def _below(names: Sequence[str]) -> list[str]:
  # The folder of a person may have the name of a camera.
  return [name.partition('/')[2] or name for name in names]


def _known(names: Sequence[str]) -> list[str | None] | None:
  """Cameras that all names have in a known place, else None."""
  for pattern in (CAMERA, _MSMT17):
    found = _groups(pattern, 'data.camera_pattern', _below(names))
    if all(found):
      return found
  return None


def are_cameras(folders: Sequence[str]) -> bool:
  """Whether there are folders, all with names like cam1, Camera_2 or camA."""
  # A small letter needs a mark before it: Cami is a person.
  pattern = r'(?i:cam(era)?([\s_-]?\d+|[\s_-][a-z]))|[Cc]am(era)?[A-Z]'
  return bool(folders) and all(re.fullmatch(pattern, x) for x in folders)


def of_splits(folders: Sequence[str]) -> list[str]:
  """The folders named as parts of a split, if there are two: train, query."""
  pattern = (
    r'(train|test)(ing)?|val(id(ation)?)?|query|gallery|probe|bounding_box_.*'
  )
  found = [x for x in folders if re.fullmatch(pattern, x, re.IGNORECASE)]
  return found if len(found) > 1 else []


def person(name: str) -> str | None:
  """Number with which a name such as 0002_c1s1_1.jpg begins."""
  match = re.match(r'(-1|\d+)_.', name.rpartition('/')[2])
  return match[1] if match else None


def is_distractor(name: str) -> bool:
  """Whether a file has the person 0000 in a name as of Market-1501.

  The files 0000_c1s1_1.jpg show background and parts of persons. Other data
  sets number their persons from 0000, so that the camera and the sequence must
  follow.
  """
  file = name.rpartition('/')[2]
  return bool(re.match(r'0000_c\d+s\d', file, re.IGNORECASE))


def is_junk(person: str, name: str) -> bool:
  """Whether a person or the name of a file, -1_c1s1_1.jpg, is -1."""
  own = name.rpartition('/')[2].lower()
  return person == JUNK or own.startswith(f'{JUNK}_c')


def _groups(pattern: str, field: str, names: Sequence[str]) -> list[str | None]:
  """Group in each name, None for a name that does not match."""
  compiled = patterns.Pattern(pattern, field)
  matches = [compiled.search(name) for name in names]
  return [match.group(1) if match else None for match in matches]


def _complete(
  found: Sequence[str | None],
  names: Sequence[str],
  pattern: str,
  field: str,
  where: str | Path,
) -> list[str]:
  for name, group in zip(names, found, strict=True):
    if group is None:
      raise errors.DataError(
        f'{name!r} does not match {pattern!r}', str(where), f'change {field}'
      )
  return [group for group in found if group is not None]
