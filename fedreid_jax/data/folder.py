"""Any tree `domain/identity/image` on disk as a federation.

Identity and camera are found in the path below the domain by regular
expressions with one group. Hidden files and Thumbs.db are passed over; any
other file must be an image.
"""

import os
import re
import unicodedata
from pathlib import Path

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import cache, federation
from fedreid_jax.data.federation import Federation, Images

ARCHIVES = ('.zip', '.tar', '.gz', '.tgz', '.rar', '.7z')
JUNK = ('thumbs.db', 'desktop.ini')


def check_root(root: str) -> Path:
  """Returns the root as a path that exists and is a folder.

  Raises:
    DataError: when it is missing, an archive or a file.
  """
  where = 'data.root'
  if not root:
    raise errors.DataError('no folder given', where, 'set --config.data.root=')
  path = Path(root).expanduser()
  if path.suffix.lower() in ARCHIVES and not path.is_dir():
    raise errors.DataError(
      f'{root} is an archive', where, 'unpack it first and give the folder'
    )
  if not path.is_dir():
    what = 'is no folder' if path.exists() else 'does not exist'
    raise errors.DataError(f'{root} {what}', where, 'give an existing folder')
  return path.resolve()


def list_files(root: Path) -> list[str]:
  """Returns all regular files below a folder, relative, sorted.

  Raises:
    DataError: for a link that leads out of the folder, or two names that differ
      in case or Unicode form only.
  """
  found = []
  for folder, names, files in os.walk(root):
    names[:] = sorted(n for n in names if not n.startswith('.'))
    for name in files:
      if name.startswith('.') or name.lower() in JUNK:
        continue
      path = Path(folder, name)
      if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise errors.DataError(
          'link leads out of the folder', str(path), 'copy the file instead'
        )
      if path.is_file():
        found.append(path.relative_to(root).as_posix())
  folded: dict[str, str] = {}
  for name in sorted(found):
    plain = unicodedata.normalize('NFC', name).casefold()
    if folded.setdefault(plain, name) != name:
      raise errors.DataError(
        f'{folded[plain]!r} and {name!r} differ in case only',
        str(root),
        'rename one',
      )
  return sorted(found)


def _group(pattern: str, name: str, field: str, where: Path) -> str:
  match = re.search(pattern, name)
  if match is None or not match.groups():
    raise errors.DataError(
      f'{name!r} does not match {pattern!r}', str(where), f'change {field}'
    )
  return match.group(1)


def read_domain(root: Path, name: str, config) -> tuple[Images, list[str], str]:
  """Reads one domain.

  Args:
    root: folder of all domains.
    name: folder of this one.
    config: `config.data`.

  Returns:
    (images, name of each camera number, digest).

  Raises:
    DataError: for an empty domain, an unparsable name, an unreadable image.
  """
  folder = root / name
  files = list_files(folder)
  if not files:
    raise errors.DataError('no images', str(folder), 'remove the domain')
  decoder = cache.Decoder(
    config.height,
    config.width,
    3 if config.channels == 'rgb' else 1,
    config.invert,
    config.on_bad_image,
  )
  identity = [
    _group(config.identity_pattern, f, 'data.identity_pattern', folder)
    for f in files
  ]
  camera = [
    _group(config.camera_pattern, f, 'data.camera_pattern', folder)
    for f in files
  ]
  images, kept, digest = cache.build(folder, files, decoder)
  if not len(kept):
    raise errors.DataError('no readable image', str(folder), 'mend the files')
  identities = np.unique(np.asarray(identity)[kept], return_inverse=True)[1]
  names, cameras = np.unique(np.asarray(camera)[kept], return_inverse=True)
  return (
    Images(
      name,
      lambda: images,
      identities.astype(np.int32),
      cameras.astype(np.int32),
      np.zeros(len(kept), np.int32),
    ),
    names.tolist(),
    digest,
  )


def load(config) -> Federation:
  """Builds the federation of a folder.

  Args:
    config: `config.data`: `root`, `sources` (empty: every domain that is no
      target), `targets`, `query`, and the fields of `read_domain`.

  Raises:
    DataError: for anything in the folder that cannot be trained on.
    ConfigError: for domains that are not there, or are source and target.
  """
  root = check_root(config.root)
  present = sorted(
    p.name for p in root.iterdir() if p.is_dir() and p.name[0] != '.'
  )
  if not present:
    raise errors.DataError(
      'no domain folders', str(root), 'the layout is domain/identity/image'
    )
  targets = tuple(config.targets)
  sources = tuple(config.sources) or tuple(
    n for n in present if n not in targets
  )
  for name in (*sources, *targets):
    if name not in present:
      raise errors.DataError(
        f'no domain {name!r}', str(root), f'domains are {", ".join(present)}'
      )
  both = set(sources) & set(targets)
  if both and not config.allow_overlap:
    raise errors.DataError(
      f'{sorted(both)} are trained and tested on',
      'data.targets',
      'drop them from data.sources or set data.allow_overlap',
    )
  read = {n: read_domain(root, n, config) for n in {*sources, *targets}}
  tests = []
  for name in targets:
    images, cameras, _ = read[name]
    query = federation.rows_of_query(config.query, images, cameras)
    if not query.any() or query.all():
      side = 'query' if not query.any() else 'gallery'
      raise errors.DataError(
        f'no {side} image in {name}', 'data.query', 'change the rule'
      )
    tests.append(federation.split_target(images, query))
  channels = 3 if config.channels == 'rgb' else 1
  return Federation(
    clients=federation.by_domain([read[n][0] for n in sources]),
    targets=tuple(tests),
    image_shape=(config.height, config.width, channels),
    mean=tuple(config.mean),
    std=tuple(config.std),
    digest=':'.join(read[n][2][:16] for n in sorted(read)),
  )
