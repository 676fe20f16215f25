"""Persons of one data set that are tested on and not trained on."""

import numpy as np
from jaxtyping import Bool

from fedreid_jax import errors
from fedreid_jax.data.federation import Images
from fedreid_jax.data.folder import queries

FEWEST = 2  # with one person every image of the gallery is a match
STREAM = 1  # of random numbers; `queries` has another


def rows(
  domain: Images, has_cameras: bool, share: float, seed: int
) -> Bool[np.ndarray, ' M']:
  """Returns a mask of the images of random persons that are held out.

  Only persons who have two images that can match each other are held out. At
  least two persons are held out, and at least one is trained on.

  Args:
    domain: all images.
    has_cameras: whether the two images must be of different cameras.
    share: fraction of all persons.
    seed: seed of the draw.

  Raises:
    DataError: for too few persons.
  """
  people = len(np.unique(domain.identities))
  can = queries.testable(domain, has_cameras)
  number = min(max(round(share * people), FEWEST), len(can), people - 1)
  if number < FEWEST:
    views = ' of different cameras' if has_cameras else ''
    raise errors.DataError(
      f'{people} identities, of which {len(can)} have two images{views}',
      domain.name,
      'give at least three identities, or set data.held_out=0',
    )
  rng = np.random.default_rng([seed, STREAM])
  return np.isin(domain.identities, rng.choice(can, number, replace=False))
