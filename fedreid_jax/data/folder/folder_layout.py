"""The layout of a folder of images: its domains, identities and cameras.

The layouts are, in the order in which they are tried:

  manifest.csv                          with columns as `of_manifest` says
  bounding_box_train/0002_c1s1_1.jpg    folders and names of Market-1501
  0002_c1s1_1.jpg                       one data set
  camera/identity/image                 one data set, with folders such as cam1
  camera/0002_1.jpg                     the same, with persons in the names
  domain/identity/image                 or any depth below the domain
  domain/camera/identity/image          if all folders of the domain are cameras
  domain/camera/0002_1.jpg              the same, with persons in the names
  domain/0002_c1s1_1.jpg                if a folder has several such persons
  identity/image                        one data set
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedreid_jax import errors
from fedreid_jax.data import files, integrity, names
from fedreid_jax.data.datasets import csv_manifest, csv_table, layout, registry
from fedreid_jax.data.datasets.records import LEARN, MODALITIES, TEST, Dataset
from fedreid_jax.data.options import Data

SAMPLE = 200  # paths by which a published data set is recognised
EXPECTED = 'the layout is domain/identity/image; see docs/photographs.md'


class Listing(NamedTuple):
  """The files of a domain with the labels of their names or of a manifest."""

  folder: Path  # the names are relative to it
  names: list[str]
  identities: list[str]  # person in each file, or `names.NOBODY`
  cameras: list[str] | None  # None if nothing is known
  splits: tuple[str, ...] = ()  # in `LEARN` or `TEST`, or none
  modalities: tuple[int, ...] = ()  # 0 visible, 1 infrared; empty: visible
  origin: str = ''  # hash of labels not in the names, or ''
  junk: int = 0  # files of no person that are left out
  guess: str = ''  # example of a camera that was guessed, for users
  published: str = ''  # says of which data set the names are

  def take(self, rows: Sequence[int]) -> 'Listing':
    """The files at some rows."""
    columns = {
      field: [column[k] for k in rows]
      for field in ('names', 'identities', 'cameras', 'splits', 'modalities')
      if (column := getattr(self, field))
    }
    return self._replace(**columns)


class Layout(NamedTuple):
  """The domains of a folder."""

  kind: str  # description for users
  domains: tuple[str, ...]
  read: Callable[[str], Listing]  # `(name) -> Listing` of a domain
  cameras_from: str = 'names'  # origin of the cameras, for users
  split: bool = False  # training and test images are listed
  flat: bool = False  # images need no folder
  nested: bool = False  # domains are folders of the root


class Label(NamedTuple):
  """Identity and camera of an image, by its path."""

  identity: str  # after the domain if there are several
  camera: str  # '' if nothing is known of cameras


class Patterns(NamedTuple):
  """Regular expressions that decide on the labels, as `photos` has them."""

  identity_pattern: str = names.IDENTITY
  camera_pattern: str = names.AUTO

  @classmethod
  def of(cls, config: Data) -> 'Patterns':
    """The patterns of `config.data`."""
    return cls(config.identity_pattern, config.camera_pattern)


# Lists `(folder, names, identities)` with the cameras of the names.
_Labelled = Callable[[Path, list[str], list[str]], Listing]


def find(root: Path, patterns: Patterns, needs_cameras: bool) -> Layout:
  """Finds the layout of a folder, or raises DataError.

  `needs_cameras` reads a number at the end of a name as a camera, since each
  client is one. In every layout images of nobody are recognised by their names
  (`names.is_junk`, `names.is_distractor`).

  The folder or the domain of a published data set whose persons and cameras no
  layout reads rightly is refused, unless the user has written a pattern for
  identities.
  """
  whole = _published(root, patterns)
  with _explained(whole):
    found = _find(root, patterns, needs_cameras)

  def read(name: str) -> Listing:
    known = whole
    if known is None and found.nested:
      known = _published(root / name, patterns)
    with _explained(known):
      listing = _of_people(found.read(name))
      said = known.of(listing) if known else ''
      return listing._replace(published=said)

  return found._replace(read=read)


class _Published(NamedTuple):
  """The published data set of a folder, which photographs read in part."""

  dataset: Dataset
  said: str  # names the data set
  reader: str  # how to read it as published

  def of(self, listing: Listing) -> str:
    """Says what was read of a domain, or raises DataError for other persons."""
    cameras = listing.cameras or [None] * len(listing.names)
    same = True
    for name, person, camera in zip(
      listing.names, listing.identities, cameras, strict=True
    ):
      match = registry.named(self.dataset, name)
      right = match.groupdict() if match else {}
      if match and person not in (right.get('person'), names.NOBODY):
        what = f'{name!r} would be an image of {person!r}'
        raise errors.DataError(what, str(listing.folder), self.reader)
      same = same and bool(match) and camera == right.get('camera')
    read = f': {self.dataset.as_photos}' if same else ''
    return f'{self.said}{read}. To read it as published, {self.reader}'


@contextlib.contextmanager
def _explained(known: _Published | None) -> Iterator[None]:
  """Gives errors the remedy of a published data set, if it is one."""
  try:
    yield
  except errors.DataError as error:
    if known is None:
      raise
    raise errors.DataError(
      error.what, error.where, f'{known.said}: {known.reader}'
    ) from error


def _published(root: Path, patterns: Patterns) -> _Published | None:
  """Finds the published data set of which the names are.

  Raises:
    DataError: if no layout reads its persons or cameras.
  """
  written = patterns.identity_pattern != names.IDENTITY
  if written or csv_manifest.file_of(root):
    return None
  paths = files.some_images(root, SAMPLE)
  dataset = registry.recognise(paths)
  if dataset is None or not _is_told(root, dataset, paths[0]):
    return None
  known = _Published(
    dataset,
    f'the files are named as those of {dataset.title}',
    f"set data.source='datasets' and name {dataset.name} in data.sources or "
    'data.targets, see docs/datasets.md; if they are your own, set '
    'data.identity_pattern',
  )
  if not dataset.as_photos:
    raise errors.DataError(known.said, str(root), known.reader)
  return known


def _is_told(root: Path, dataset: Dataset, path: str) -> bool:
  """Whether a folder that only the data set has is beside an image."""
  match = registry.named(dataset, path)
  above = root / ((match and match['above']) or '')
  folders = dataset.telling
  return not folders or any((above / x).is_dir() for x in folders)


def _of_people(listing: Listing) -> Listing:
  """Leaves junk out, and gives distractors to nobody.

  Raises:
    DataError: if nobody is left, or for two names that may be of one person.
  """
  # One person may have folders whose names are composed otherwise.
  own = [csv_table.normalise(person) for person in listing.identities]
  csv_table.check_alike(own, 'person', str(listing.folder))
  # A manifest that names a person knows better than the name of the file.
  paths = [
    '' if listing.origin and person not in (names.JUNK, names.DISTRACTOR) else n
    for person, n in zip(own, listing.names, strict=True)
  ]
  pairs = list(zip(own, paths, strict=True))
  kept = [k for k, pair in enumerate(pairs) if not names.is_junk(*pair)]
  people = [
    names.NOBODY if names.is_distractor(name) else person
    for person, name in pairs
  ]
  if not any(people[k] for k in kept):
    raise errors.DataError(
      'no image of a person',
      str(listing.folder),
      'names of 0000 and -1 are nobody, as in Market-1501; rename the persons',
    )
  found = listing._replace(identities=people, junk=len(pairs) - len(kept))
  return found.take(kept)


def _find(root: Path, patterns: Patterns, needs_cameras: bool) -> Layout:
  if csv_manifest.file_of(root):
    return of_manifest(root)
  train = layout.BOXES['train']
  if (root / train).is_dir():
    return of_boxes(root)
  folders = files.list_folders(root)
  boxes = [name for name in folders if (root / name / train).is_dir()]
  # The folder above a data set is accepted if it holds nothing else.
  if boxes and len(folders) == 1:
    return of_boxes(root / boxes[0])
  if boxes:
    raise errors.DataError(
      f'{boxes[0]} is a data set of its own, with {train}',
      str(root),
      'give its folder as data.root',
    )

  def labelled(folder: Path, paths: list[str], persons: list[str]) -> Listing:
    cameras = names.cameras(
      patterns.camera_pattern, paths, persons, folder, needs_cameras
    )
    guess = names.guess(patterns.camera_pattern, paths, cameras)
    return Listing(folder, paths, persons, cameras, guess=guess)

  own = (_name_of(root),)
  if not folders:
    _check_numbered(root)
    kind = 'names with identities'
    return Layout(kind, own, lambda _: _numbered(root, labelled), flat=True)
  # A pattern that a user has written refers to names below a domain.
  written = patterns.identity_pattern != names.IDENTITY
  automatic = patterns.camera_pattern == names.AUTO and not written
  by_camera = automatic and names.are_cameras(folders)
  if written or any(files.list_folders(root / name) for name in folders):
    if by_camera:
      kind = 'camera/identity/image'
      return Layout(kind, own, lambda _: _by_camera(root), 'folders')
    return _of_domains(root, folders, patterns, labelled)
  if _are_domains(root, folders):
    if by_camera:
      kind = 'camera/image'
      return Layout(kind, own, lambda _: _numbered_by_camera(root), 'folders')
    return Layout(
      'domain/image',
      tuple(folders),
      lambda name: _numbered(root / name, labelled),
      nested=True,
    )
  return Layout('identity/image', own, lambda _: _persons(root, labelled))


def _of_domains(
  root: Path, folders: Sequence[str], patterns: Patterns, labelled: _Labelled
) -> Layout:
  """Reads domain/identity/image, or camera/identity/image of some domains."""
  written = patterns.identity_pattern != names.IDENTITY
  inside = {
    name
    for name in folders
    if not written and names.are_cameras(files.list_folders(root / name))
  }

  def read(name: str) -> Listing:
    if name not in inside:
      return _domain(root / name, patterns.identity_pattern, labelled)
    listing = _domain_by_camera(root / name)
    if patterns.camera_pattern == names.AUTO:
      return listing
    return labelled(listing.folder, listing.names, listing.identities)

  alone = len(inside) == len(folders)
  cameras_from = 'names'
  if inside and patterns.camera_pattern == names.AUTO:
    cameras_from = 'folders' if alone else 'names and folders'
  return Layout(
    f'domain/{"camera/" * alone}identity/image',
    tuple(folders),
    read,
    cameras_from,
    nested=True,
  )


def check_domains(layout: Layout, root: Path) -> None:
  """Raises DataError for folders of a split, which are read as domains."""
  parts = names.of_splits(layout.domains) if layout.nested else []
  if parts:
    raise errors.DataError(
      f'the folders {", ".join(parts)} are parts of a split, and would be '
      'domains with persons of their own',
      str(root),
      'list the images in manifest.csv with the column split; if no person is '
      'in two of them, name them in data.sources and data.targets',
    )


def labels(root: Path, config: Data) -> dict[str, Label]:
  """Labels of images by their paths relative to a folder, an absolute path.

  The labels are the same as in training on the folder, with cameras where names
  have them. Images that training would leave out have no label. A DataError is
  raised for a folder of no known layout.
  """
  patterns = Patterns.of(config)
  # No user has chosen these two patterns for the names of this folder.
  if patterns.camera_pattern in ('', names.NUMBER):
    patterns = patterns._replace(camera_pattern=names.AUTO)
  found = find(root, patterns, needs_cameras=False)
  labels: dict[str, Label] = {}
  for domain in found.domains:
    listing = found.read(domain)
    below = listing.folder.relative_to(root)
    before = f'{domain}/' if len(found.domains) > 1 else ''
    cameras = listing.cameras or [''] * len(listing.names)
    for name, identity, camera in zip(
      listing.names, listing.identities, cameras, strict=True
    ):
      if identity != names.NOBODY:
        labels[(below / name).as_posix()] = Label(before + identity, camera)
  return labels


def _name_of(root: Path) -> str:
  # The root of a file system has no name.
  return root.name or 'images'


def of_boxes(root: Path) -> Layout:
  """Reads a folder whose folders and files are named as in Market-1501.

  Cameras may have any number. Without `query` and `bounding_box_test` there are
  no test images.

  Raises:
    DataError: for a missing folder, or a name that does not match.
  """
  split = any((root / layout.BOXES[side]).is_dir() for side in TEST[:2])
  # Any camera number is valid: other data sets of this layout have more than 6.
  pattern, cameras = r'(-1|\d+)_c(\d+)\D.*', range(10**9)
  if split:
    records = layout.from_boxes(root, pattern, cameras)
  else:
    records = layout.from_names(
      root, layout.BOXES['train'], pattern, 'train', cameras
    )
  records.sort()  # by path, as data sets are
  listing = Listing(
    root,
    [record.path for record in records],
    [str(record.person) for record in records],
    [str(record.camera) for record in records],
    tuple(record.split for record in records) if split else (),
  )
  return Layout(
    'folders of Market-1501', (_name_of(root),), lambda _: listing, split=split
  )


def of_manifest(root: Path) -> Layout:
  """Reads manifest.csv, or raises DataError.

  The columns path and identity are required. The column domain divides the
  images into domains.
  """
  where = str(root / csv_manifest.MANIFEST)
  by_domain: dict[str, list[dict[str, str]]] = {}
  seen: set[str] = set()
  split = False
  for row in csv_manifest.rows(root, ('path', 'identity')):
    split = 'split' in row
    domain = row.get('domain', _name_of(root))
    for wrong, what, fix in (
      (row['path'] in seen, 'listed twice', 'remove a line'),
      (not row['identity'], 'without an identity', 'add it'),
      (not domain, 'without a domain', 'add it'),
      (
        split and row['split'] not in (*LEARN, *TEST),
        f'of split {row.get("split")!r}',
        "set data.source='datasets', and name csv in sources and targets",
      ),
    ):
      if wrong:
        raise errors.DataError(f'{row["path"]!r} is {what}', where, fix)
    seen.add(row['path'])
    by_domain.setdefault(domain, []).append(row)

  def read(domain: str) -> Listing:
    rows = sorted(by_domain[domain], key=lambda row: row['path'])
    cameras = [row.get('camera', '') for row in rows]
    if any(cameras) and not all(cameras):
      path = rows[cameras.index('')]['path']
      raise errors.DataError(f'no camera of {path!r}', where, 'add it')
    return Listing(
      root,
      [row['path'] for row in rows],
      [row['identity'] for row in rows],
      cameras if any(cameras) else None,
      tuple(row['split'] for row in rows if split),
      tuple(MODALITIES.index(r['modality']) for r in rows if 'modality' in r),
      # Labels can change while the files stay as they are.
      integrity.digest(rows),
    )

  return Layout(
    csv_manifest.MANIFEST,
    tuple(sorted(by_domain)),
    read,
    'its lines',
    split,
    flat=True,
  )


def _domain(folder: Path, pattern: str, labelled: _Labelled) -> Listing:
  paths = _files(folder)
  return labelled(folder, paths, names.identities(pattern, paths, folder))


def _numbered(folder: Path, labelled: _Labelled) -> Listing:
  """Reads files whose names begin with the identity."""
  people = {path: names.person(path) for path in _files(folder)}
  people = {path: p for path, p in people.items() if p}
  return labelled(folder, [*people], [*people.values()])


def _persons(root: Path, labelled: _Labelled) -> Listing:
  paths = _below(root, 2, 'identity/image')
  return labelled(root, paths, [path.partition('/')[0] for path in paths])


def _by_camera(root: Path) -> Listing:
  paths = _below(root, 3, 'camera/identity/image')
  camera, persons = zip(*(path.split('/')[:2] for path in paths), strict=True)
  return Listing(root, paths, [*persons], [*camera])


def _numbered_by_camera(root: Path) -> Listing:
  paths = _below(root, 2, 'camera/image')
  persons = [names.person(path) or '' for path in paths]
  return Listing(root, paths, persons, [p.split('/')[0] for p in paths])


def _domain_by_camera(folder: Path) -> Listing:
  """Reads a domain whose folders are cameras."""
  cameras = files.list_folders(folder)
  if any(files.list_folders(folder / camera) for camera in cameras):
    return _by_camera(folder)
  if _are_domains(folder, cameras):
    return _numbered_by_camera(folder)
  raise errors.DataError(
    f'the folders of {folder.name} are cameras, {", ".join(cameras[:3])}, and '
    'no folder or name tells the persons',
    str(folder),
    'the layout is domain/identity/camera/image or domain/camera/identity/'
    'image; if they are persons of your own, set data.identity_pattern',
  )


def _files(folder: Path) -> list[str]:
  found = files.list_files(folder)
  if not found:
    what = files.nothing_in(folder)
    raise errors.DataError(what, str(folder), 'remove the domain')
  return found


def _below(root: Path, depth: int, layout: str) -> list[str]:
  """Files in at least `depth - 1` folders of the root."""
  paths = [path for path in files.list_files(root) if '/' in path]
  if not paths:
    raise errors.DataError(files.nothing_in(root), str(root), EXPECTED)
  for path in paths:
    if path.count('/') < depth - 1:
      raise errors.DataError(
        f'{path!r} is in no folder of an identity',
        str(root),
        f'the layout is {layout}',
      )
  return paths


def _are_domains(root: Path, folders: Sequence[str]) -> bool:
  """Whether all names begin with a person, and a folder has several."""
  people = [
    {names.person(path) for path in files.list_files(root, folder)}
    for folder in folders
  ]
  # In the layout identity/image each folder shows only one person.
  several = any(len(own - {names.JUNK, names.DISTRACTOR}) > 1 for own in people)
  return several and not any(None in own for own in people)


def _check_numbered(root: Path) -> None:
  """Refuses files without folders whose names begin with no person."""
  paths = files.list_files(root)
  if not paths:
    what = f'no domain folders, and {files.nothing_in(root)}'
    raise errors.DataError(what, str(root), EXPECTED)
  for path in paths:
    if names.person(path) is None:
      raise errors.DataError(
        f'{path!r} is in no folder of an identity', str(root), EXPECTED
      )
