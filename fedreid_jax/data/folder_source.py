"""A tree `domain/identity/image` on disk as a federation.

Regular expressions with one group find identity and camera in the path below
the domain. Hidden files and Thumbs.db are ignored; any other file must be an
image.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import patterns
from fedreid_jax.data import cache, decoder, federation, files, overlap
from fedreid_jax.data.federation import Images, Source


def _groups(config, field: str, names: list[str], where: Path) -> list[str]:
  """Returns the group of a pattern in each name."""
  written = getattr(config, field)
  pattern = patterns.Pattern(written, f'data.{field}')
  found = []
  for name in names:
    match = pattern.search(name)
    if match is None or not match.groups():
      raise errors.DataError(
        f'{name!r} does not match {written!r}',
        str(where),
        f'change data.{field}',
      )
    found.append(match.group(1))
  return found


class Domain(NamedTuple):
  """One folder of images.

  Attributes:
    images: images and labels.
    cameras: names by camera number.
    files: SHA-256 of each image's file.
    digest: hash of the inputs of the images.
  """

  images: Images
  cameras: list[str]
  files: list[str]
  digest: str


def read_domain(root: Path, name: str, config) -> Domain:
  """Reads one domain.

  Args:
    root: folder of all domains.
    name: folder of this one.
    config: `config.data`.

  Raises:
    DataError: for an empty domain, an unparsable name, an unreadable image.
  """
  folder = root / name
  names = files.list_files(folder)
  if not names:
    raise errors.DataError('no images', str(folder), 'remove the domain')
  wanted = decoder.of(config)
  identity = _groups(config, 'identity_pattern', names, folder)
  camera = _groups(config, 'camera_pattern', names, folder)
  images, manifest, digest = cache.build(folder, names, wanted)
  kept = np.asarray(manifest['kept'], np.int64)
  if not len(kept):
    raise errors.DataError('no readable image', str(folder), 'fix the files')
  identities = np.unique(np.asarray(identity)[kept], return_inverse=True)[1]
  cameras_by_name, cameras = np.unique(
    np.asarray(camera)[kept], return_inverse=True
  )
  return Domain(
    Images(
      name,
      lambda: images,
      identities.astype(np.int32),
      cameras.astype(np.int32),
      np.zeros(len(kept), np.int32),
    ),
    cameras_by_name.tolist(),
    [*manifest['sha256'].values()],
    digest,
  )


def load(config, clients: bool = True) -> Source:
  """Reads the domains of a folder.

  Args:
    config: `config.data`: `root`, `sources` (empty: every domain that is no
      target), `targets`, `public`, `query`, and the fields of `read_domain`.
    clients: whether to read the training domains, too.

  Raises:
    DataError: for data that cannot be trained on.
    ConfigError: for an unknown query rule.
  """
  root = files.check_root(config.root)
  present = files.list_folders(root)
  if not present:
    raise errors.DataError(
      'no domain folders', str(root), 'the layout is domain/identity/image'
    )
  targets = tuple(config.targets)
  sources = tuple(config.sources) or tuple(
    n for n in present if n not in (*targets, config.public)
  )
  public = (config.public,) if config.public and clients else ()
  for name in (*sources, *targets, *public):
    if name not in present:
      raise errors.DataError(
        f'no domain {name!r}', str(root), f'domains are {", ".join(present)}'
      )
  if not config.allow_overlap:
    overlap.check_disjoint(sources, targets)
  wanted = {*sources, *targets, *public} if clients else {*targets}
  read = {n: read_domain(root, n, config) for n in sorted(wanted)}
  if clients and not config.allow_overlap:
    overlap.check_no_copies(
      {n: read[n].files for n in sources}, {n: read[n].files for n in targets}
    )
  tests = []
  for name in targets:
    images, cameras, *_ = read[name]
    query = federation.rows_of_query(config.query, images, cameras)
    tests.append(federation.split_target(images, query))
  return Source(
    tuple(read[n].images for n in sources) if clients else (),
    tuple(tests),
    ':'.join(read[n].digest[:16] for n in sorted(read)),
    read[public[0]].images if public else None,
  )
