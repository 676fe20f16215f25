"""Files of domains with labels, from a manifest or names of Market-1501."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedreid_jax import errors
from fedreid_jax.data import names
from fedreid_jax.data.benchmark import integrity
from fedreid_jax.data.datasets import csv_manifest, layout
from fedreid_jax.data.datasets.records import MODALITIES

BOXES = 'bounding_box_train', 'query', 'bounding_box_test'
LEARN, TEST = ('train', 'val'), ('query', 'gallery', 'query+gallery')


class Listing(NamedTuple):
  """The files of a domain with the labels of their names or of a manifest.

  Attributes:
    folder: folder that the names are relative to.
    names: paths of the files.
    identities: name of the person in each file.
    cameras: camera of each file, None if nothing is known of cameras.
    splits: split of each file, in `LEARN` or `TEST`; empty if not given.
    modalities: 0 visible or 1 infrared for each file; empty if all are visible.
    origin: hash of labels that are not in the names, '' if there are none.
  """

  folder: Path
  names: list[str]
  identities: list[str]
  cameras: list[str] | None
  splits: tuple[str, ...] = ()
  modalities: tuple[int, ...] = ()
  origin: str = ''


class Layout(NamedTuple):
  """The domains of a folder.

  Attributes:
    kind: description for users.
    domains: names of the domains.
    read: `(name) -> Listing` of a domain.
    cameras_from: origin of the cameras, for users.
    split: whether training and test images are listed.
  """

  kind: str
  domains: tuple[str, ...]
  read: Callable[[str], Listing]
  cameras_from: str = 'names'
  split: bool = False


def name_of(root: Path) -> str:
  """Returns the domain's name, for a folder that is one domain.

  The root of a file system has no name; its domain is 'images'.
  """
  return root.name or 'images'


def of_boxes(root: Path) -> Layout:
  """Reads a folder whose folders and files are named as in Market-1501.

  Cameras may have any number, and the rest of a name any form. Without `query`
  and `bounding_box_test` there are no test images.

  Raises:
    DataError: for a missing folder, or a name that does not match.
  """
  split = any((root / name).is_dir() for name in BOXES[1:])
  # Any camera number is valid: other data sets of this layout have more than 6.
  records = [
    record
    for folder, part in zip(BOXES, ('train', *TEST[:2]), strict=True)
    if split or folder == BOXES[0]
    for record in layout.from_names(
      root, folder, r'(-1|\d+)_c(\d+)\D.*', part, range(10**9)
    )
    if record.person != int(names.JUNK)
  ]
  records.sort()  # by path, as data sets are
  listing = Listing(
    root,
    [record.path for record in records],
    [str(record.person) for record in records],
    [str(record.camera) for record in records],
    tuple(record.split for record in records) if split else (),
  )
  return Layout(
    'folders of Market-1501', (name_of(root),), lambda _: listing, split=split
  )


def of_manifest(root: Path) -> Layout:
  """Reads manifest.csv.

  The columns path and identity are required. The column domain divides the
  images into domains.

  Raises:
    DataError: for a manifest that is not as described.
  """
  where = str(root / csv_manifest.MANIFEST)
  by_domain: dict[str, list[dict[str, str]]] = {}
  seen: set[str] = set()
  split = False
  for row in csv_manifest.rows(root, ('path', 'identity')):
    split = 'split' in row
    domain = row.get('domain', name_of(root))
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
  )
