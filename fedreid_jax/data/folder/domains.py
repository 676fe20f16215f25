"""The images of one domain of a folder, with persons and cameras by number."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from fedreid_jax import errors
from fedreid_jax.data import cache, decoder, integrity, names
from fedreid_jax.data.federation import NOBODY, Images
from fedreid_jax.data.folder.folder_layout import Listing


class Domain(NamedTuple):
  """One domain."""

  images: Images
  cameras: list[str]  # names by number, empty if unknown
  splits: Shaped[np.ndarray, ' M']  # as in `Listing`, or ''
  files: Shaped[np.ndarray, ' M']  # SHA-256 of each file
  digest: str  # hash of the inputs of the images
  junk: int  # files of no person that are left out


def read(name: str, listing: Listing, config) -> Domain:
  """Decodes the images of a domain, or opens them in the user's cache.

  Raises:
    DataError: for images that cannot be read, or without any person.
  """
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
  people = np.asarray(listing.identities)[kept]
  identities = np.unique(people, return_inverse=True)[1]
  identities[people == names.NOBODY] = NOBODY
  by_name, cameras = np.unique(
    np.asarray(listing.cameras or [''] * size)[kept], return_inverse=True
  )
  kinds = np.asarray(listing.modalities or [0] * size)[kept]
  return Domain(
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
    listing.junk,
  )
