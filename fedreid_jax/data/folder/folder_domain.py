"""Reads the images and labels of one domain of a folder."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from fedreid_jax import errors
from fedreid_jax.data import cache, decoder
from fedreid_jax.data.benchmark import integrity
from fedreid_jax.data.federation import Images
from fedreid_jax.data.folder.listings import Listing


class Domain(NamedTuple):
  """One domain.

  Attributes:
    images: images and labels.
    cameras: names by camera number, empty if nothing is known of cameras.
    splits: split of each image as in `Listing.splits`, or '' for each.
    files: SHA-256 of the file of each image, strings.
    digest: hash of the inputs of the images.
  """

  images: Images
  cameras: list[str]
  splits: Shaped[np.ndarray, ' M']
  files: Shaped[np.ndarray, ' M']
  digest: str

  def rows(self, *splits: str) -> Int[np.ndarray, ' rows']:
    """Returns the rows of the images of some splits, ascending."""
    return np.flatnonzero(np.isin(self.splits, splits))


def read(name: str, listing: Listing, config) -> Domain:
  """Reads one domain.

  Args:
    name: name of the domain.
    listing: files and labels of the domain.
    config: `config.data`.

  Raises:
    DataError: for an unreadable image.
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
  identities = np.unique(
    np.asarray(listing.identities)[kept], return_inverse=True
  )[1]
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
  )
