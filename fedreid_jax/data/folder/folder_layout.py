"""Recognises the layout of a folder of images.

The layouts are, in the order in which they are tried:

  manifest.csv                          see `listings`
  bounding_box_train/0002_c1s1_1.jpg    see `listings`
  0002_c1s1_1.jpg                       one data set
  camera/identity/image                 one data set, with folders such as cam1
  domain/identity/image                 or any depth below the domain
  domain/0002_c1s1_1.jpg                if a folder has several such persons
  identity/image                        one data set
"""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data import files, names
from fedreid_jax.data.datasets import csv_manifest
from fedreid_jax.data.folder import listings
from fedreid_jax.data.folder.listings import BOXES, Layout, Listing

# Reads cameras: `(names, identities, folder) -> camera of each name, or None`.
Cameras = Callable[[list[str], list[str], Path], list[str] | None]
EXPECTED = 'the layout is domain/identity/image; see docs/photographs.md'


def find(root: Path, config, needs_cameras: bool) -> Layout:
  """Returns the layout of a folder.

  Args:
    root: the folder, which exists.
    config: `config.data`: `identity_pattern`, `camera_pattern`.
    needs_cameras: whether each client is a camera, so that a number at the end
      of a name is read as one.

  Raises:
    DataError: for a folder without images, or of no known layout.
  """
  if (root / csv_manifest.MANIFEST).is_file():
    return listings.of_manifest(root)
  if (root / BOXES[0]).is_dir():
    return listings.of_boxes(root)
  folders = files.list_folders(root)
  boxes = [name for name in folders if (root / name / BOXES[0]).is_dir()]
  # The folder above a data set is accepted if it holds nothing else.
  if boxes and len(folders) == 1:
    return listings.of_boxes(root / boxes[0])
  if boxes:
    raise errors.DataError(
      f'{boxes[0]} is a data set of its own, with {BOXES[0]}',
      str(root),
      'give its folder as data.root',
    )

  def cameras(
    paths: list[str], persons: list[str], folder: Path
  ) -> list[str] | None:
    return names.cameras(
      config.camera_pattern, paths, persons, folder, needs_cameras
    )

  own = (listings.name_of(root),)
  if not folders:
    _check_numbered(root)
    read = functools.partial(_numbered, root, cameras)
    return Layout('names with identities', own, lambda _: read())
  # A pattern that a user has written refers to names below a domain.
  written = config.identity_pattern != names.IDENTITY
  if written or any(_has_folders(root / name) for name in folders):
    automatic = config.camera_pattern == names.AUTO and not written
    if automatic and names.are_cameras(folders):
      kind = 'camera/identity/image'
      return Layout(kind, own, lambda _: _by_camera(root), 'folders')
    pattern = config.identity_pattern
    read = functools.partial(_domain, root, pattern, cameras)
    return Layout('domain/identity/image', tuple(folders), read)
  if _are_domains(root, folders):
    read = functools.partial(_numbered, root, cameras)
    return Layout('domain/image', tuple(folders), read)
  return Layout('identity/image', own, lambda _: _persons(root, cameras))


def _domain(root: Path, pattern: str, cameras: Cameras, name: str) -> Listing:
  folder = root / name
  paths = _files(folder)
  persons = names.identities(pattern, paths, folder)
  return Listing(folder, paths, persons, cameras(paths, persons, folder))


def _numbered(root: Path, cameras: Cameras, name: str = '') -> Listing:
  """Reads files whose names begin with the identity."""
  folder = root / name
  people = {path: names.person(path) for path in _files(folder)}
  people = {path: p for path, p in people.items() if p and p != names.JUNK}
  paths, persons = [*people], [*people.values()]
  return Listing(folder, paths, persons, cameras(paths, persons, folder))


def _persons(root: Path, cameras: Cameras) -> Listing:
  paths = _below(root, 2, 'identity/image')
  persons = [path.partition('/')[0] for path in paths]
  return Listing(root, paths, persons, cameras(paths, persons, root))


def _by_camera(root: Path) -> Listing:
  paths = _below(root, 3, 'camera/identity/image')
  camera, persons = zip(*(path.split('/')[:2] for path in paths), strict=True)
  return Listing(root, paths, [*persons], [*camera])


def _files(folder: Path) -> list[str]:
  found = files.list_files(folder)
  if not found:
    raise errors.DataError('no images', str(folder), 'remove the domain')
  return found


def _below(root: Path, depth: int, layout: str) -> list[str]:
  """Returns the files in folders of the root.

  Raises:
    DataError: without files, or for a file in fewer than `depth - 1` folders.
  """
  paths = [path for path in files.list_files(root) if '/' in path]
  if not paths:
    raise errors.DataError('no images', str(root), EXPECTED)
  for path in paths:
    if path.count('/') < depth - 1:
      raise errors.DataError(
        f'{path!r} is in no folder of an identity',
        str(root),
        f'the layout is {layout}',
      )
  return paths


def _has_folders(folder: Path) -> bool:
  with os.scandir(folder) as entries:
    return any(e.is_dir() and not e.name.startswith('.') for e in entries)


def _are_domains(root: Path, folders: Sequence[str]) -> bool:
  """Returns whether all names begin with a person, and a folder has several."""
  people = [
    {names.person(path) for path in files.list_files(root, folder)}
    for folder in folders
  ]
  # In the layout identity/image each folder shows only one person.
  several = any(len(own - {names.JUNK}) > 1 for own in people)
  return several and not any(None in own for own in people)


def _check_numbered(root: Path) -> None:
  """Refuses files without folders whose names begin with no person."""
  paths = files.list_files(root)
  if not paths:
    raise errors.DataError('no domain folders', str(root), EXPECTED)
  for path in paths:
    if names.person(path) is None:
      raise errors.DataError(
        f'{path!r} is in no folder of an identity', str(root), EXPECTED
      )
