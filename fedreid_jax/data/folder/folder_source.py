"""A folder of images on disk as a federation.

Several domains are clients and targets. A single data set is divided by
persons: its folders or its manifest list the test images, or `data.held_out`
draws the persons of the test. Hidden files and Thumbs.db are ignored; any other
file must be an image.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import (
  cache,
  client_split,
  decoder,
  federation,
  files,
  integrity,
)
from fedreid_jax.data.datasets.records import LEARN, TEST
from fedreid_jax.data.federation import Images, Source, Target, Trial
from fedreid_jax.data.folder import folder_layout, queries
from fedreid_jax.data.folder.folder_layout import Layout, Listing

FILES = 16  # files that are checked for colour, spread over all
SIDE = 32  # pixels a side to which they are reduced
# An image is coloured if the channels of one pixel in fifty differ by more than
# 40 of 255 levels. The noise of a JPEG file or yellowed paper differs by less.
CHROMA, PIXELS = 40, 0.02
COLOURED = 0.25  # share of coloured files at which a conversion is refused

Rows = dict[str, Int[np.ndarray, '...']]  # by domain


class _Domain(NamedTuple):
  """One domain."""

  images: Images
  cameras: list[str]  # names by number, empty if unknown
  splits: Shaped[np.ndarray, ' M']  # as in `Listing`, or ''
  files: Shaped[np.ndarray, ' M']  # SHA-256 of each file
  digest: str  # hash of the inputs of the images

  def rows(self, *splits: str) -> Int[np.ndarray, ' rows']:
    return np.flatnonzero(np.isin(self.splits, splits))


class _Roles(NamedTuple):
  """The domains of a run."""

  sources: tuple[str, ...]
  targets: tuple[str, ...]
  public: tuple[str, ...]  # one domain, or none
  within: bool  # other persons of the sources are targets


def load(config, clients: bool = True) -> Source:
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
  layout = folder_layout.find(root, config, by_camera)
  roles = _roles(config, layout, root, clients)
  wanted = {*roles.targets}
  wanted |= {*roles.sources, *roles.public} if clients else set()
  listed = {name: layout.read(name) for name in sorted(wanted)}
  check_colours(
    [one.folder / path for one in listed.values() for path in one.names],
    config,
    root,
  )
  read = {name: _read(name, one, config) for name, one in listed.items()}
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
    _notices(config, root, layout, read, targets, roles.within),
    roles.sources,
  )


def _roles(config, layout: Layout, root: Path, clients: bool) -> _Roles:
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


def _read(name: str, listing: Listing, config) -> _Domain:
  images, manifest, digest = cache.build(
    listing.folder, listing.names, decoder.of(config)
  )
  kept = np.asarray(manifest['kept'], np.int64)
  if not len(kept):
    raise errors.DataError(
      'no readable image', str(listing.folder), 'fix the files'
    )
  # The digest of the images covers names and not the lines of a manifest.
  if listing.origin:
    digest = integrity.digest(digest, listing.origin)
  size = len(listing.names)
  identities = np.unique(
    np.asarray(listing.identities)[kept], return_inverse=True
  )[1]
  by_name, cameras = np.unique(
    np.asarray(listing.cameras or [''] * size)[kept], return_inverse=True
  )
  kinds = np.asarray(listing.modalities or [0] * size)[kept]
  return _Domain(
    Images(
      name,
      lambda: images,
      identities.astype(np.int32),
      cameras.astype(np.int32),
      kinds.astype(np.int32),
    ),
    by_name.tolist() if listing.cameras else [],
    np.asarray(listing.splits or [''] * size)[kept],
    np.asarray([*manifest['sha256'].values()]),
    digest,
  )


def _rows(
  config, layout: Layout, roles: _Roles, read: dict[str, _Domain]
) -> tuple[Rows, Rows]:
  if layout.split:
    learn = {name: domain.rows(*LEARN) for name, domain in read.items()}
    return learn, {name: domain.rows(*TEST) for name, domain in read.items()}
  if not roles.within:
    everything = {n: np.arange(len(one.splits)) for n, one in read.items()}
    return everything, everything
  masks = {
    name: queries.held_out(
      domain.images,
      bool(domain.cameras),
      config.held_out,
      config.world_seed,
      'data.held_out',
    )
    for name, domain in read.items()
  }
  learn = {name: np.flatnonzero(~mask) for name, mask in masks.items()}
  return learn, {name: np.flatnonzero(mask) for name, mask in masks.items()}


def _check_overlap(
  roles: _Roles, read: dict[str, _Domain], learn: Rows, test: Rows
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
    {n: read[n].files[learn[n]].tolist() for n in roles.sources},
    {n: read[n].files[test[n]].tolist() for n in roles.targets},
  )


def _part(domain: Images, rows: Int[np.ndarray, ' rows']) -> Images:
  # All rows need no copy of the memory-mapped pixels.
  return domain if len(rows) == len(domain.identities) else domain.take(rows)


def _target(config, domain: _Domain, rows: Int[np.ndarray, ' rows']) -> Target:
  images = _part(domain.images, rows)
  if not domain.cameras:
    # With a view for each image, the camera rule hides no match.
    views = np.arange(len(rows), dtype=np.int32)
    images = images._replace(cameras=views)
  splits = domain.splits[rows]
  if (splits != '').any():
    query = np.flatnonzero(np.isin(splits, ('query', 'query+gallery')))
    gallery = np.flatnonzero(np.isin(splits, ('gallery', 'query+gallery')))
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


def check_colours(paths: Sequence[Path], config, root: Path) -> None:
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


def _notices(
  config,
  root: Path,
  layout: Layout,
  read: Mapping[str, _Domain],
  targets: Sequence[Target],
  within: bool,
) -> tuple[str, ...]:
  """The notices of a folder; the first describes its content."""
  domains = list(read.values())
  counts = [
    (sum(_people(one.images) for one in domains), 'identity', 'identities'),
    (sum(len(one.files) for one in domains), 'image', 'images'),
  ]
  if len(layout.domains) > 1:
    counts.insert(0, (len(domains), 'domain', 'domains'))
  found = [errors.counted(*given) for given in counts]
  found.append(_cameras(layout, read))
  if layout.split:
    tested = 'test images are listed'
  elif within:
    tested = _held_out([_people(target.images) for target in targets])
  else:
    tested = ', '.join(target.name for target in targets) or 'nothing'
    tested = f'test on {tested}'
  lines = [f'{root} ({layout.kind}): {", ".join(found)}; {tested}']
  if aside := files.set_aside(root):
    lines.append(aside)
  chosen = config.query == queries.RANDOM and not layout.split
  for target in targets if chosen else ():
    has_cameras = bool(read[target.name].cameras)
    can = queries.testable(target.images, has_cameras)
    if number := _people(target.images) - len(can):
      lines.append(_without_query(target.name, number, has_cameras))
  alone = within and len(domains) == 1 and config.client_split == 'by_dataset'
  if alone and domains[0].cameras:
    lines.append(
      'there is one client; data.client_split=by_camera makes each camera one'
    )
  return tuple(lines)


def _held_out(numbers: Sequence[int]) -> str:
  """Describes the number of held-out identities of each target."""
  *others, last = numbers
  people = errors.counted(last, 'identity', 'identities')
  said = ', '.join([*map(str, others), people])
  verb = 'is' if sum(numbers) == 1 else 'are'
  return f'{said} {verb} held out for the test'


def _without_query(name: str, number: int, cameras: bool) -> str:
  """Describes the number of identities of a target that have no query."""
  people = errors.counted(number, 'identity', 'identities')
  reason = 'it has' if number == 1 else 'they have'
  return (
    f'{people} of {name} {"has" if number == 1 else "have"} no query, since '
    f'{reason} no second image' + ' by another camera' * cameras
  )


def _cameras(layout: Layout, read: Mapping[str, _Domain]) -> str:
  """Describes the origin of cameras, and the domains if only some have any."""
  known = [name for name, domain in read.items() if domain.cameras]
  if not known:
    return 'no cameras'
  number = sum(len(domain.cameras) for domain in read.values())
  where = '' if len(known) == len(read) else f', only in {", ".join(known)}'
  cameras = errors.counted(number, 'camera')
  return f'{cameras} from {layout.cameras_from}{where}'


def _people(images: Images) -> int:
  return len(np.unique(images.identities))
