"""A folder of images on disk as a federation.

Several domains are clients and targets. A single data set is divided by
persons: its folders or its manifest list the test images, or `data.held_out`
draws the persons of the test. Hidden files and Thumbs.db are ignored; any other
file must be an image.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import (
  client_split,
  decoder,
  federation,
  files,
)
from fedreid_jax.data.datasets.records import LEARN, TEST
from fedreid_jax.data.federation import NOBODY, Images, Source, Target, Trial
from fedreid_jax.data.folder import domains, folder_layout, notices, queries
from fedreid_jax.data.folder.domains import Domain
from fedreid_jax.data.folder.folder_layout import Layout
from fedreid_jax.data.options import Data

FILES = 16  # files that are checked for colour, spread over all
SIDE = 32  # pixels a side to which they are reduced
# An image is coloured if the channels of one pixel in fifty differ by more than
# 40 of 255 levels. The noise of a JPEG file or yellowed paper differs by less.
CHROMA, PIXELS = 40, 0.02
COLOURED = 0.25  # share of coloured files at which a conversion is refused

Rows = dict[str, Int[np.ndarray, '...']]  # by domain


class _Roles(NamedTuple):
  """The domains of a run."""

  sources: tuple[str, ...]
  targets: tuple[str, ...]
  public: tuple[str, ...]  # one domain, or none
  within: bool  # other persons of the sources are targets


def load(config: Data, clients: bool = True) -> Source:
  """Reads the domains of a folder.

  Empty `sources` of `config.data` are all domains that are no target. If
  `targets` is empty, `held_out` decides. `clients=False` leaves the training
  domains out.

  Raises:
    DataError: for data that cannot be trained on.
    ConfigError: for an unknown query rule, or colours that a preset converts.
  """
  root = files.check_root(config.root)
  by_camera = config.client_split in client_split.OF_CAMERAS
  patterns = folder_layout.Patterns.of(config)
  layout = folder_layout.find(root, patterns, by_camera)
  if not (config.sources or config.targets):
    folder_layout.check_domains(layout, root)
  roles = _roles(config, layout, root, clients)
  wanted = {*roles.targets}
  wanted |= {*roles.sources, *roles.public} if clients else set()
  listed = {name: layout.read(name) for name in sorted(wanted)}
  check_colours(
    [one.folder / path for one in listed.values() for path in one.names],
    config,
    root,
  )
  read = {name: domains.read(name, one, config) for name, one in listed.items()}
  for name in roles.sources if clients and by_camera else ():
    if not read[name].cameras:
      raise errors.DataError(
        f'nothing is known of the cameras of {name}',
        'data.client_split',
        'name them as in docs/photographs.md, or choose another split',
      )
  learn, test = _rows(config, layout, roles, read)
  # In a listed split a domain may have only training or only test images.
  if layout.split:
    sources, targets = (
      tuple(name for name in names if len(rows.get(name, ())))
      for names, rows in ((roles.sources, learn), (roles.targets, test))
    )
    roles = roles._replace(
      sources=config.sources or sources, targets=config.targets or targets
    )
  if clients and not config.allow_overlap:
    _check_overlap(roles, read, learn, test)
  targets = tuple(_target(config, read[n], test[n]) for n in roles.targets)
  return Source(
    tuple(_part(read[n].images, learn[n]) for n in roles.sources)
    if clients
    else (),
    targets,
    ':'.join(one.digest[:16] for one in read.values()),
    read[roles.public[0]].images if roles.public else None,
    notices.describe(config, root, layout, read, targets, roles.within),
    roles.sources,
  )


def _roles(config: Data, layout: Layout, root: Path, clients: bool) -> _Roles:
  present = layout.domains
  sources, targets = tuple(config.sources), tuple(config.targets)
  public = (config.public,) if config.public and clients else ()
  known = {*(sources or present)}
  holds = config.held_out > 0 and not targets
  within = layout.split or (holds and len(present) == 1 and present[0] in known)
  if within:
    sources, targets = sources or present, targets or present
  # Of several domains the last one is held out as a whole.
  elif holds:
    left = [n for n in present if n not in (*sources, config.public)]
    targets = tuple(left[-1:])
  sources = sources or tuple(
    n for n in present if n not in (*targets, config.public)
  )
  for name in (*(sources if clients else ()), *targets, *public):
    if name not in present:
      raise errors.DataError(
        f'no domain {name!r}', str(root), f'domains are {", ".join(present)}'
      )
  if clients and not sources:
    raise errors.DataError(
      f'no domain to train on but {", ".join(targets)}',
      str(root),
      'add a domain, or change data.targets',
    )
  if not within and not config.allow_overlap:
    federation.check_disjoint(sources, targets)
  return _Roles(sources, targets, public, within)


def _rows(
  config: Data, layout: Layout, roles: _Roles, read: dict[str, Domain]
) -> tuple[Rows, Rows]:
  """Rows to train on, which show persons, and rows of tests, by domain."""
  anybody = {n: one.images.identities != NOBODY for n, one in read.items()}
  if layout.split:
    tested = {n: np.isin(one.splits, TEST) for n, one in read.items()}
    learned = {
      n: np.isin(one.splits, LEARN) & anybody[n] for n, one in read.items()
    }
  elif roles.within:
    drawn = _held_out(config, read)
    learned = {n: anybody[n] & ~mask for n, mask in drawn.items()}
    tested = {n: ~anybody[n] | mask for n, mask in drawn.items()}
  else:
    learned = anybody
    tested = {n: np.ones_like(mask) for n, mask in anybody.items()}
  learn, test = (
    {name: np.flatnonzero(mask) for name, mask in masks.items()}
    for masks in (learned, tested)
  )
  return learn, test


def _held_out(
  config: Data, read: dict[str, Domain]
) -> dict[str, Bool[np.ndarray, '...']]:
  """Masks of the images of persons who are drawn for the test, by domain."""
  return {
    name: queries.held_out(
      domain.images,
      bool(domain.cameras),
      config.held_out,
      config.world_seed,
      'data.held_out',
    )
    for name, domain in read.items()
  }


def _check_overlap(
  roles: _Roles, read: dict[str, Domain], learn: Rows, test: Rows
) -> None:
  """Refuses persons (by domain) or files that are trained on and tested on."""
  for name in {*roles.sources} & {*roles.targets}:
    people = read[name].images.identities
    both = np.intersect1d(people[learn[name]], people[test[name]])
    if len(both):
      raise errors.DataError(
        f'{errors.counted(len(both), "identity", "identities")} of {name} '
        f'{"is" if len(both) == 1 else "are"} trained on and tested on',
        'data.root',
        'give each identity one role, or set data.allow_overlap',
      )
  federation.check_no_copies(
    {n: read[n].hashes[learn[n]].tolist() for n in roles.sources},
    {n: read[n].hashes[test[n]].tolist() for n in roles.targets},
  )


def _part(domain: Images, rows: Int[np.ndarray, ' rows']) -> Images:
  # All rows need no copy of the memory-mapped pixels.
  return domain if len(rows) == len(domain.identities) else domain.take(rows)


def _target(
  config: Data, domain: Domain, rows: Int[np.ndarray, ' rows']
) -> Target:
  images = _part(domain.images, rows)
  if not domain.cameras:
    # With a view for each image, the camera rule hides no match.
    views = np.arange(len(rows), dtype=np.int32)
    images = images._replace(cameras=views)
  splits = domain.splits[rows]
  if (splits != '').any():
    nobody = images.identities == NOBODY
    asked = np.isin(splits, ('query', 'query+gallery'))
    query = np.flatnonzero(asked & ~nobody)
    gallery = np.flatnonzero((splits != 'query') | nobody)
    if not len(query) or not len(gallery):
      side = 'gallery' if len(query) else 'query'
      raise errors.DataError(
        f'no {side} image of {images.name} is listed', 'data.targets', 'add it'
      )
    listed = 'as listed' + ('' if domain.cameras else ' (no cameras)')
    return Target(images.name, images, (Trial(query, gallery),), query=listed)
  chosen = queries.choose(
    config.query, images, domain.cameras, config.world_seed
  )
  target = federation.split_target(images, chosen.mask)
  return target._replace(query=chosen.described)


def is_coloured(path: Path, max_pixels: int = decoder.MAX_PIXELS) -> bool:
  """Whether a file is a coloured image; False for other files."""
  # Files that cannot be read are reported when all are decoded.
  with contextlib.suppress(OSError, SyntaxError, ValueError):
    with decoder.open_image(path.read_bytes(), max_pixels) as image:
      image.draft('RGB', (SIDE, SIDE))
      seen = decoder.opaque(image).convert('RGB')
      small = seen.resize((SIDE, SIDE), Image.Resampling.BOX)
      chroma = np.ptp(np.asarray(small, np.int32), axis=-1)
      return bool((chroma > CHROMA).mean() > PIXELS)
  return False


def check_colours(paths: Sequence[Path], config: Data, root: Path) -> None:
  """Raises ConfigError if only a preset asks to convert coloured images."""
  # The presets for drawings make images grey and invert them. For photographs
  # this would cost accuracy and cause no error.
  changes = {
    'grey': (config.channels == 'grey', 'made grey', 'data.channels=grey'),
    'inverted': (config.invert, 'inverted', 'data.invert=True'),
  }
  refused = [
    (done, written)
    for kind, (on, done, written) in changes.items()
    if on and kind not in config.colour_as
  ]
  if not refused:
    return
  some = paths[:: max(1, -(-len(paths) // FILES))]
  coloured = sum(is_coloured(path, config.max_pixels) for path in some)
  if coloured < max(1, COLOURED * len(some)):
    return
  done, written = (' and '.join(parts) for parts in zip(*refused, strict=True))
  raise errors.ConfigError(
    f'colour images would be {done}',
    str(root),
    f'use the preset photos, or write {written} if that is meant',
  )
