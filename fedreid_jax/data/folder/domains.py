"""The images of one domain of a folder, with persons and cameras by number."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from fedreid_jax import errors
from fedreid_jax.data import cache, decoder, integrity, names
from fedreid_jax.data.datasets.records import LEARN
from fedreid_jax.data.federation import NOBODY, Images
from fedreid_jax.data.folder.folder_layout import Listing
from fedreid_jax.data.options import Data


class Domain(NamedTuple):
  """One domain."""

  images: Images
  cameras: list[str]  # names by number, empty if unknown
  splits: Shaped[np.ndarray, ' M']  # as in `Listing`, or ''
  hashes: Shaped[np.ndarray, ' M']  # SHA-256 of the pixels of each image
  digest: str  # hash of the inputs of the images
  listing: Listing  # of the images
  copies: list[tuple[str, str]]  # files that are left out, and their originals


def read(name: str, listing: Listing, config: Data) -> Domain:
  """Decodes the images of a domain, or opens them in the user's cache.

  Of files with the same pixels at the size of training, whatever their names
  and formats, one is read.

  Raises:
    DataError: for images that cannot be read, or a picture of two persons.
  """
  images, manifest, digest = cache.build(
    listing.folder, listing.names, config.decoder()
  )
  if not manifest['kept']:
    raise errors.DataError(
      'no readable image', str(listing.folder), 'fix the files'
    )
  # The digest of the images covers names and not the lines of a manifest.
  if listing.origin:
    digest = integrity.digest(digest, listing.origin)
  hashes = manifest.get('pictures')
  if hashes is None:  # an array of an earlier version
    files = manifest['sha256'].values()
    hashes = [*map(decoder.picture_hash, images, files)]
  listed = listing.take(manifest['kept'])
  rows, copies = originals(listed, hashes)
  own = listed.take(rows)
  return Domain(
    # All rows need no copy of the memory-mapped pixels.
    *numbered(name, own, (lambda: images[rows]) if copies else lambda: images),
    np.asarray(own.splits or [''] * len(rows)),
    np.asarray([hashes[row] for row in rows]),
    digest,
    own,
    copies,
  )


def numbered(
  name: str, listing: Listing, pixels: Callable[[], np.ndarray]
) -> tuple[Images, list[str]]:
  """The images of a listing, and its cameras by number, [] if unknown."""
  people = np.asarray(listing.identities)
  persons, identities = np.unique(people, return_inverse=True)
  identities[people == names.NOBODY] = NOBODY
  size = len(listing.names)
  by_name, cameras = np.unique(
    listing.cameras or [''] * size, return_inverse=True
  )
  images = Images(
    name,
    pixels,
    identities.astype(np.int32),
    cameras.astype(np.int32),
    np.asarray(listing.modalities or [0] * size, np.int32),
    persons=tuple(persons.tolist()),
  )
  return images, by_name.tolist() if listing.cameras else []


def originals(
  listing: Listing, hashes: Sequence[str]
) -> tuple[list[int], list[tuple[str, str]]]:
  """Rows without copies of other files, and the copies with their originals.

  In query and gallery a copy would be a match that any model finds. Copies in
  training and test images are for `federation.check_no_copies`.

  Raises:
    DataError: for copies with two persons.
  """
  splits = listing.splits or ('',) * len(hashes)
  # A listed query stays one, and its copy leaves the gallery.
  order = sorted(range(len(hashes)), key=lambda k: 'query' not in splits[k])
  first: dict[tuple[str, bool], int] = {}
  copies: list[tuple[str, str]] = []
  for k in order:
    known = first.setdefault((hashes[k], splits[k] in LEARN), k)
    if known == k:
      continue
    pair = listing.names[k], listing.names[known]
    people = listing.identities[k], listing.identities[known]
    if people[0] != people[1]:
      who = ' and '.join(repr(person or 'nobody') for person in people)
      raise errors.DataError(
        f'{pair[0]!r} and {pair[1]!r} are the same picture, of {who}',
        str(listing.folder),
        'remove the wrong one',
      )
    copies.append(pair)
  return sorted(first.values()), sorted(copies)
